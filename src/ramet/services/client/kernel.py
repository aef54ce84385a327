"""`client.kernel`: the operator's view of a server's kernel: runs, questions, schedules, recipes, state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from ramet.core.errors import Gone, ProtocolError
from ramet.core.events import Event, decode
from ramet.core.policy import Policy
from ramet.core.schedule import Misfire, Overlap
from ramet.core.ticks import TickResult
from ramet.host.records import RunRow
from ramet.host.schedules_view import ScheduleView
from ramet.services.client import kernel_asks as asks
from ramet.services.client.asking import Ask
from ramet.services.client.refusals import error_of
from ramet.services.kernel import (
    MOST,
    USUAL,
    AddSchedule,
    Approval,
    Kept,
    PlainAgent,
    RecipeRow,
    StatePage,
    StateVersions,
    Stopped,
)
from ramet.wire.sse import ServerSentEvent

T = TypeVar("T")
_TRIES, _TRY_S = 5, 0.05


class RunEvent(NamedTuple):
    """An event on record; `cursor` is what a reader goes on by, and means nothing else."""

    cursor: int
    event: Event


class Way(Protocol):
    """How requests reach the server."""

    async def send(self, ask: Ask[T], key: str | None = None, *, waits: bool = False) -> T:
        """Its answer. `waits` is for what may take as long as it takes."""

    def stream(self, ask: Ask[None], key: str | None = None) -> AsyncGenerator[ServerSentEvent, None]:
        """The events of its answer."""


class Kernel:
    """What goes on in a server, for its operator: any other key is told that there is nothing, whatever it asks for.

    Raises what the same question raises in the server's process, such as Unknown for a run that is not on record.
    """

    def __init__(self, way: Way) -> None:
        self._way = way

    # ---- runs

    async def runs(self, *, ended: bool = False) -> Sequence[RunRow]:
        """The runs that live, or were interrupted; with `ended` all on record. Without their results."""
        found: list[RunRow] = []
        after = ""
        while True:
            page = await self._way.send(asks.runs(ended, after, MOST))
            found += page.runs
            if not (after := page.more):
                return found

    async def run(self, id: str) -> RunRow:
        """One run, with its result. Raises Unknown."""
        return await self._way.send(asks.run(id))

    async def tree(self, id: str) -> Sequence[RunRow]:
        """Every run of the tree that a run is in, in the order of their births. Raises Unknown."""
        found: list[RunRow] = []
        after = ""
        while True:
            page = await self._way.send(asks.tree(id, after, MOST))
            found += page.runs
            if not (after := page.more):
                return found

    async def events(
        self, id: str, *, tree: bool = False, after: int = 0, follow: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        """What is on record of a run, or of its whole tree, behind a cursor; with `follow` what comes, until its end.

        A lost connection is taken up again where it broke off. Raises Unknown, and Gone once no server answers.
        """
        failed = 0
        while True:
            try:
                async with aclosing(self._way.stream(asks.events(id, tree, after, follow))) as told:
                    async for each in told:
                        match each.event:
                            case "event":
                                after, failed = _cursor(each), 0
                                yield RunEvent(after, decode(each.data))
                            case "error":
                                raise error_of(each.data, 0)
                            case "done":
                                return
            except Gone:
                if failed >= _TRIES:
                    raise
            else:
                if failed >= _TRIES:
                    raise Gone(f"the events of {id!r} broke off behind cursor {after}")
            await asyncio.sleep(_TRY_S * 2**failed)
            failed += 1

    async def send(self, id: str, text: str) -> str:
        """A message that a run reads at its next step; its id. Raises Unknown, MailRefused."""
        return (await self._way.send(asks.send(id, text))).mail

    async def stop(self, id: str, reason: str = "") -> Stopped:
        """End a run and all below it, and wait until they are gone. Raises Unknown."""
        return await self._way.send(asks.stop(id, reason), waits=True)

    async def keep(self, id: str, on: bool = True) -> Kept:
        """Keep the tree of a run on record whatever its time is, or no longer. Raises Unknown."""
        return await self._way.send(asks.keep(id, on))

    # ---- questions

    async def approvals(self) -> Sequence[Approval]:
        """The questions of all agents that wait for a person, the oldest first."""
        found: list[Approval] = []
        after = ""
        while True:
            page = await self._way.send(asks.approvals(after, MOST))
            found += page.approvals
            if not (after := page.more):
                return found

    async def answer(self, approval: str, allowed: bool, reason: str = "") -> None:
        """Answer a question, once. Raises Unknown for one that does not wait (any more)."""
        await self._way.send(asks.answer(approval, allowed, reason))

    # ---- schedules

    async def schedules(self) -> Sequence[ScheduleView]:
        """Every schedule, in order of ids."""
        found: list[ScheduleView] = []
        after = ""
        while True:
            page = await self._way.send(asks.schedules(after, MOST))
            found += page.schedules
            if not (after := page.more):
                return found

    async def schedule(self, id: str) -> ScheduleView:
        """One schedule. Raises Unknown."""
        return await self._way.send(asks.schedule(id))

    async def add_schedule(
        self,
        agent: str | PlainAgent,
        *,
        every_s: float | None = None,
        anchor: datetime | None = None,
        in_s: float | None = None,
        at: datetime | None = None,
        cron: str = "",
        tz: str = "",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        prompt: str = "",
        policy: Policy | None = None,
        limits: Mapping[str, float] | None = None,
        misfire: Misfire = "once",
        misfire_max: int = 10,
        overlap: Overlap = "skip",
        jitter_seconds: float = 0.0,
        until: datetime | None = None,
    ) -> ScheduleView:
        """Have the server run an agent later or again; see `ramet.services.kernel.AddSchedule`.

        Raises InvalidValue, which names the field, and Unknown for a definition that is not there.
        """
        asked = AddSchedule(
            agent=agent,
            every_s=every_s,
            anchor=anchor,
            in_s=in_s,
            at=at,
            cron=cron,
            tz=tz,
            name=name,
            args=list(args),
            kwargs=dict(kwargs or {}),
            prompt=prompt,
            policy=policy,
            limits=dict(limits or {}),
            misfire=misfire,
            misfire_max=misfire_max,
            overlap=overlap,
            jitter_seconds=jitter_seconds,
            until=until,
        )
        return await self._way.send(asks.add_schedule(asked))

    async def pause_schedule(self, id: str) -> ScheduleView:
        """Begin nothing of it until it is resumed; a run that is going goes on. Raises Unknown."""
        return await self._way.send(asks.steer_schedule(id, "pause"))

    async def resume_schedule(self, id: str) -> ScheduleView:
        """Go on with its next time. Raises Unknown."""
        return await self._way.send(asks.steer_schedule(id, "resume"))

    async def trigger_schedule(self, id: str) -> ScheduleView:
        """Run it now, beside its times. Raises Unknown."""
        return await self._way.send(asks.steer_schedule(id, "trigger"))

    async def remove_schedule(self, id: str) -> None:
        """Forget it; a run that is going goes on. Raises Unknown."""
        await self._way.send(asks.remove_schedule(id))

    async def schedule_results(self, id: str) -> Sequence[TickResult]:
        """Its last ticks, as they stand: the newest twenty that ended, what runs, what waits. Raises Unknown."""
        return (await self._way.send(asks.schedule_results(id))).results

    # ---- what agents wrote down

    async def recipes(self, place: str = "") -> Sequence[RecipeRow]:
        """The agents that agents have made: the one who stands at `place`, or all."""
        found: list[RecipeRow] = []
        after = ""
        while True:
            page = await self._way.send(asks.recipes(place, after, USUAL))
            found += page.recipes
            if not (after := page.more):
                return found

    async def state(
        self, id: str, *, at: int = 0, commit: str = "", prefix: str = "", after: str = "", limit: int = USUAL
    ) -> StatePage:
        """A page of a run's own state: now, as of an event of its tree, or as of a commit of its branch.

        Raises Unknown for a run, an event or a commit that is not there.
        """
        return await self._way.send(asks.state(id, at, commit, prefix, after, limit))

    async def state_versions(self, id: str, *, limit: int = USUAL) -> StateVersions:
        """The commits that changed something of a run's state, the newest first, and the branches there are."""
        return await self._way.send(asks.state_versions(id, limit))


def _cursor(event: ServerSentEvent) -> int:
    if not event.id.isdigit():
        raise ProtocolError(f"an event without a cursor: {event.id!r}")
    return int(event.id)
