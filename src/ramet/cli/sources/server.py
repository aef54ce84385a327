"""A server as source: its kernel is called over HTTP, with the operator's key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import convert

from ramet.cli.sources.contract import Change, NewSchedule, Question
from ramet.core.errors import InvalidValue, NotYours, RametError
from ramet.core.events import Event
from ramet.host.control.run_queries import RunRow
from ramet.host.observability.redaction import STARS
from ramet.host.safety.inspection import GateEvent, GateEventFilter, GateEventPage
from ramet.host.schedules.view import ScheduleView
from ramet.host.sessions.rows import SessionRow
from ramet.services.client.client import Client
from ramet.services.client.errors import Refused
from ramet.services.config.settings import TOKEN_VARIABLE, SecretReference

_KEY = (
    f"{TOKEN_VARIABLE} holds the operator's key, or RAMET_TOKEN says where the key is, "
    "or a file next to the socket holds it"
)


class ServerSource:
    """The `Source` of a server: it answers from the server's replies."""

    damage_errors = ()
    interrupted_hint = (
        "the server does not run it; once the server has stopped, ramet resume in its folder continues it"
    )

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        """Create the client. Raises InvalidValue for an invalid location or key."""
        self.address = address
        self._client = Client(address, key_in(environ))
        self._kernel = self._client.kernel

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__()
        # The server answers the operator's key with the real state, so a key that opens nothing is another.
        if isinstance(error, NotYours) or (isinstance(error, Refused) and error.status == 401):
            raise RametError(
                f"the server at {self.address} does not accept this key, or no key was given; {_KEY}"
            ) from None

    # ---- conversations

    async def sessions(self, limit: int) -> tuple[Sequence[SessionRow], int]:
        rows = await self._kernel.sessions(limit + 1 if limit else 0)
        return (rows[:limit], -1) if limit and len(rows) > limit else (rows, 0)

    async def session(self, id: str, last: int | None = None) -> tuple[SessionRow, Sequence[Mapping[str, Any]]]:
        reply = await self._kernel.session(id, last=last)
        return reply.session, reply.messages

    async def remove_session(self, id: str) -> str:
        return await self._kernel.remove_session(id)

    # ---- looking

    async def runs(self, *, ended: bool = False) -> list[RunRow]:
        return list(await self._kernel.runs(ended=ended))

    async def run(self, id: str) -> RunRow:
        return await self._kernel.run(id)

    async def root_of(self, run: str) -> str:
        return (await self._kernel.run(run)).root

    async def tree(self, run: str) -> list[RunRow]:
        return list(await self._kernel.tree(run))

    async def events(self, run: str, *, tree: bool = False, follow: bool = False) -> AsyncGenerator[Event]:
        async with aclosing(self._kernel.events(run, tree=tree, follow=follow)) as events:
            async for each in events:
                yield each.event

    async def questions(self) -> list[Question]:
        return convert(await self._kernel.approvals(), list[Question], from_attributes=True)

    async def gate_events(self, gate_filter: GateEventFilter, *, after: int, limit: int) -> GateEventPage:
        return await self._kernel.passages(gate_filter, after=after, limit=limit)

    def follow_gate_events(self, gate_filter: GateEventFilter, *, after: int) -> AsyncGenerator[GateEvent]:
        return self._kernel.follow_passages(gate_filter, after=after)

    # ---- steering

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> dict[str, Any]:
        return {"mail": await self._kernel.send(run, text, dedupe_s=dedupe_s)}

    async def stop(self, run: str, reason: str) -> dict[str, Any]:
        receipt = await self._kernel.stop(run, reason)
        return {"stopped": list(receipt.stopped), "left": list(receipt.left)}

    async def raise_limits(self, run: str, add: Mapping[str, float], key: str) -> dict[str, Any]:
        limits = await self._kernel.raise_limits(run, key=key, **add)  # type: ignore[arg-type]  # names of limits
        return {"run": run, "limits": limits}

    async def pause(self, run: str, reason: str, *, now: bool) -> dict[str, Any]:
        receipt = await self._kernel.pause(run, reason, now=now)
        return {"paused": list(receipt.paused), "working": list(receipt.working)}

    async def resume(self, run: str) -> dict[str, Any]:
        await self._kernel.resume(run)
        return {"resumed": run}

    async def read_file(self, run: str, path: str) -> bytes:
        return await self._kernel.read_file(run, path)

    async def answer(self, approval: str, allowed: bool, reason: str, *, for_run: bool = False) -> dict[str, Any]:
        await self._kernel.answer(approval, allowed, reason, for_run=for_run)
        return {"approval": approval, "allowed": allowed} | ({"for_run": True} if for_run else {})

    async def keep(self, run: str, on: bool) -> dict[str, Any]:
        reply = await self._kernel.keep(run, on)
        return {"tree": reply.tree, "kept": reply.kept}

    # ---- schedules

    async def schedules(self) -> Sequence[ScheduleView]:
        return await self._kernel.schedules()

    async def add_schedule(self, new: NewSchedule) -> ScheduleView:
        """Add a schedule; the server resolves the function. Raises InvalidValue for a relative path."""
        location, _, name = new.function.rpartition(":")
        if not location or not name or (location.endswith(".py") and not location.startswith("/")):
            accepted = "module:function, or /path/to/script.py:function, as the server can import it"
            raise InvalidValue("MODULE:FUNCTION", new.function, accepted)
        return await self._kernel.add_schedule(
            new.function,
            args=new.args,
            every_s=new.every,
            in_s=new.after,
            at=new.at,
            cron=new.cron or "",
            tz=new.tz or "",
            name=new.name,
            repeatable=new.repeatable,
            in_process=new.in_process,
        )

    async def change_schedule(self, id: str, change: Change) -> ScheduleView | None:
        match change:
            case "pause":
                return await self._kernel.pause_schedule(id)
            case "resume":
                return await self._kernel.resume_schedule(id)
            case "trigger":
                return await self._kernel.trigger_schedule(id)
            case "rm":
                await self._kernel.remove_schedule(id)
                return None


def key_in(environ: Mapping[str, str]) -> str | None:
    """Return the operator's key from the environment, like `ramet serve`; None: use the file next to the socket."""
    variable, prefix = environ.get("RAMET_TOKEN", ""), ""
    if variable.strip():
        from ramet.services.config.validators import reference_of

        reference, prefix = reference_of("RAMET_TOKEN", variable, Path.cwd()), "RAMET_TOKEN: "
    elif environ.get(TOKEN_VARIABLE, "").strip():
        reference = SecretReference("env", TOKEN_VARIABLE)
    else:
        return None
    try:
        key = reference.read(environ)
    except InvalidValue as problem:
        raise InvalidValue(f"{prefix}{problem.field}", problem.value, problem.accepted) from None
    if not key.isascii():  # It could not be sent.
        raise InvalidValue(str(reference), STARS, "a key of ASCII letters, digits and punctuation")
    return key
