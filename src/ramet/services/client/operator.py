"""`client.kernel`: the operator's view of a server's kernel: runs, questions, schedules, recipes, state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ramet.core.errors import Gone, ProtocolError
from ramet.core.events import Event, IntentionDecided, IntentionRecorded, ToolEnded, decode
from ramet.core.policy.policy import Policy
from ramet.core.safety import SafetyPolicy
from ramet.core.schedules.schedule import Misfire, Overlap
from ramet.core.schedules.ticks import TickResult
from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import EVERYTHING, GateEvent, GateEventFilter, GateEventPage
from ramet.host.schedules.view import ScheduleView
from ramet.host.sessions.rows import SessionRow
from ramet.services.client.errors import error_of
from ramet.services.client.requests import RequestSpec, encode, request_to
from ramet.services.client.retry import follow_changes, follow_events
from ramet.services.client.transport import Transport
from ramet.services.http import endpoints
from ramet.services.http.endpoints import Endpoint
from ramet.services.operator.changes import RunChanges
from ramet.services.operator.contract import (
    MOST,
    USUAL,
    Approval,
    GatePolicy,
    KeptTree,
    PassageRow,
    PausedRuns,
    PlainAgent,
    RecipeRow,
    RunDiff,
    ShownSession,
    StatePage,
    StateVersions,
    Stopped,
)
from ramet.services.operator.records.record_rows import BoardRow, BoardTask, KernelRow, KeyRow

T = TypeVar("T")


class Page(Protocol):
    """A page of a list."""

    @property
    def more(self) -> str:
        """Return the position to request the next page with; "" if there is none."""


P = TypeVar("P", bound=Page)


class RunEvent(NamedTuple):
    """A recorded event. A reader resumes after the `cursor`, which has no other meaning."""

    cursor: int
    event: Event


class OperatorClient:
    """The operator's view of a server. With any other key, every request is answered as if nothing existed.

    Methods raise the same errors as in the server's process, such as Unknown for a run that is not recorded.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # ---- runs

    async def runs(self, *, ended: bool = False) -> Sequence[RunRow]:
        """Return the runs that are alive or were interrupted; with `ended`, all recorded runs.

        Without their results.
        """
        return await self._all(endpoints.LIST_RUNS, lambda page: page.runs, ended=ended)

    async def run(self, id: str) -> RunRow:
        """Return a run, with its result. Raises Unknown."""
        return await self._transport.call(endpoints.GET_RUN, id)

    async def tree(self, id: str) -> Sequence[RunRow]:
        """Return every run of the tree of a run, in the order of their spawning. Raises Unknown."""
        return await self._all(endpoints.RUN_TREE, lambda page: page.runs, id)

    async def changes(
        self, *, after: str = "", ended: bool = False, run: str = "", interval_ms: int = 200
    ) -> AsyncGenerator[RunChanges, None]:
        """Yield the rows of all runs, or of a run and all below it, then new rows whenever they change.

        The first picture has the runs of trees that have not ended, or with `ended` all recorded runs. After the
        `cursor` of an earlier message, only rows that changed since are sent. Changes are gathered for `interval_ms`. A
        broken stream is resumed where it broke. Raises Unknown, InvalidValue, and Gone once no server answers.
        """

        def request(last: str) -> RequestSpec[None]:
            return request_to(endpoints.CHANGES, after=last, ended=ended, run=run, interval_ms=interval_ms)

        async with aclosing(follow_changes(lambda last: self._transport.stream(request(last)), after)) as messages:
            async for each in messages:
                yield msgspec.structs.replace(_changes(each.data), cursor=each.id)

    async def events(
        self, id: str, *, tree: bool = False, after: int = 0, follow: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield the recorded events of a run, or of its whole tree, after a cursor.

        With `follow`, new events follow until the end. A broken stream is resumed where it broke, also while no server
        can answer. Raises Unknown, and Gone once no server answers.
        """

        def request(last: int) -> RequestSpec[None]:
            return request_to(endpoints.RUN_EVENTS, id, tree=tree, after=last, follow=follow)

        async with aclosing(follow_events(lambda last: self._transport.stream(request(last)), after)) as stream:
            async for cursor, data in stream:
                yield RunEvent(cursor, decode(data))

    async def send(
        self, id: str, text: str, *, dedupe_s: float | None = None, idempotency_key: str | None = None
    ) -> str:
        """Send a message, which a run reads at its next step. Raises Unknown, MailRefused.

        Returns a text that says whether the message was delivered, and how. With `dedupe_s`, a message that equals one
        of the last `dedupe_s` seconds is not delivered again.
        """
        return (
            await self._transport.call(
                endpoints.SEND_RUN, id, idempotency_key=idempotency_key, text=text, dedupe_s=dedupe_s
            )
        ).mail

    async def fork(
        self,
        id: str,
        prompt: str,
        *,
        at: int | None = None,
        branch: bool = False,
        limits: Mapping[str, float] | None = None,
        policy: Policy | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start a tree with the messages of a run up to the event numbered `at`, and return the id of its root.

        With `branch` it works on a branch of the state as of that event; without a `policy`, in a sandbox if the run
        did, or has tools. Raises Unknown, InvalidValue, SpawnRefused, and DefinitionMissing for a model or tool that
        the server does not have.
        """
        return (
            await self._transport.call(
                endpoints.FORK_RUN,
                id,
                idempotency_key=idempotency_key,
                prompt=prompt,
                at=at,
                branch=branch,
                limits=limits,
                policy=policy,
            )
        ).run

    async def stop(self, id: str, reason: str = "") -> Stopped:
        """Stop a run and all runs below it, and wait until they have ended. Raises Unknown."""
        return await self._transport.call(endpoints.STOP_RUN, id, waits=True, reason=reason)

    async def raise_limits(
        self, /, id: str, *, key: str = "", idempotency_key: str | None = None, **add: float
    ) -> Mapping[str, Any]:
        """Add to the limits of a run, such as `usd=2`, and return the new ones; a repeated `key` adds nothing.

        Raises Unknown, InvalidValue, Gone if the run is not active, BudgetExceeded if the run above has not that much.
        """
        body = encode({"add": add, "key": key})
        raised = await self._transport.call(endpoints.RAISE_LIMITS, id, body=body, idempotency_key=idempotency_key)
        return raised.limits

    async def pause(self, id: str, reason: str = "", *, now: bool = False) -> PausedRuns:
        """Pause a run and all runs below it; with `now`, cut what they do.

        Raises Unknown, InvalidValue, and Gone if the run is not active.
        """
        return await self._transport.call(endpoints.PAUSE_RUN, id, reason=reason, now=now)

    async def resume(self, id: str) -> None:
        """Let a paused run go on. Raises Unknown, Gone, and InvalidValue if a run above it is paused."""
        await self._transport.call(endpoints.RESUME_RUN, id)

    async def read_file(self, id: str, path: str) -> bytes:
        """Return the content of a file of an active run, by its path relative to the run's workspace.

        Raises Unknown, InvalidValue, OutputTooLarge, and Gone if the run is not active or works in no sandbox.
        """
        return await self._transport.call(endpoints.RUN_FILE, id, path=path)

    async def diff(self, id: str) -> RunDiff:
        """Return what a run changed in its worktree or clone since the commit that it began at.

        Raises Unknown, and Gone if the run has no copy of a repository, or if its copy cannot be read.
        """
        return await self._transport.call(endpoints.RUN_DIFF, id)

    async def read_blob(self, id: str, name: str) -> bytes:
        """Return bytes that a message of the tree of a run names by their hash, such as an image.

        Raises InvalidValue for a name that is no hash, and Unknown for a run or a blob that is not there.
        """
        return await self._transport.call(endpoints.RUN_BLOB, id, name)

    async def keep(self, id: str, on: bool = True) -> KeptTree:
        """Keep the tree of a run without a time limit, or end that. Raises Unknown."""
        return await self._transport.call(endpoints.KEEP_RUN, id, on=on)

    # ---- conversations

    async def sessions(self, limit: int = 0) -> Sequence[SessionRow]:
        """Return the newest recorded conversations, newest first; without a limit, all of them."""
        if 0 < limit <= MOST:
            return (await self._transport.call(endpoints.LIST_SESSIONS, limit=limit)).sessions
        rows = await self._all(endpoints.LIST_SESSIONS, lambda page: page.sessions)
        return rows[:limit] if limit else rows

    async def session(self, id: str, *, last: int | None = None) -> ShownSession:
        """Return a conversation with its messages, or its `last` messages, by the id of its session or of its root.

        Raises Unknown, and InvalidValue for a `last` below 1.
        """
        return await self._transport.call(endpoints.GET_SESSION, id, last=last)

    async def remove_session(self, id: str) -> str:
        """Remove a conversation that is not open, with all data of its agents; return the id of its root.

        Raises Unknown, InUse and Denied.
        """
        return (await self._transport.call(endpoints.REMOVE_SESSION, id, waits=True)).root

    # ---- questions

    async def approvals(self) -> Sequence[Approval]:
        """Return the questions of all agents, and the runs at limits, that wait for a person, oldest first."""
        return await self._all(endpoints.LIST_APPROVALS, lambda page: page.approvals)

    async def answer(self, approval: str, allowed: bool, reason: str = "", *, for_run: bool = False) -> None:
        """Answer a question, once; an approved limit is raised by the amount of its entry, a denied request refused.

        With `for_run`, an approval also allows the later calls of the run that the question names in its `for_run`.

        Raises Unknown if the question does not wait, or no longer waits, BudgetExceeded if the run above a limit has
        not enough.
        """
        await self._transport.call(endpoints.ANSWER_APPROVAL, approval, allowed=allowed, reason=reason, for_run=for_run)

    # ---- records

    async def kernels(self) -> Sequence[KernelRow]:
        """Return the kernels of the server's store, with what those that answer have at work."""
        return (await self._transport.call(endpoints.LIST_KERNELS)).kernels

    async def boards(self) -> Sequence[BoardRow]:
        """Return all boards, without their tasks."""
        return await self._all(endpoints.LIST_BOARDS, lambda page: page.boards)

    async def board(self, name: str) -> Sequence[BoardTask]:
        """Return the tasks of a board. Raises Unknown."""
        return (await self._transport.call(endpoints.GET_BOARD, name)).tasks

    async def keys(self) -> Sequence[KeyRow]:
        """Return what each valid key opens, without the keys."""
        return await self._all(endpoints.LIST_KEYS, lambda page: page.keys)

    # ---- schedules

    async def schedules(self) -> Sequence[ScheduleView]:
        """Return every schedule, in order of ids."""
        return await self._all(endpoints.LIST_SCHEDULES, lambda page: page.schedules)

    async def schedule(self, id: str) -> ScheduleView:
        """Return a schedule by its id. Raises Unknown."""
        return await self._transport.call(endpoints.GET_SCHEDULE, id)

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
        repeatable: bool = False,
        in_process: bool = False,
        idempotency_key: str | None = None,
    ) -> ScheduleView:
        """Add a schedule to run an agent later or again; see `ramet.services.operator.contract.AddSchedule`.

        Raises InvalidValue, which names the field, and Unknown if the definition does not exist.
        """
        return await self._transport.call(
            endpoints.ADD_SCHEDULE,
            idempotency_key=idempotency_key,
            agent=agent,
            every_s=every_s,
            anchor=anchor,
            in_s=in_s,
            at=at,
            cron=cron,
            tz=tz,
            name=name,
            args=args,
            kwargs=kwargs,
            prompt=prompt,
            policy=policy,
            limits=limits,
            misfire=misfire,
            misfire_max=misfire_max,
            overlap=overlap,
            jitter_seconds=jitter_seconds,
            until=until,
            repeatable=repeatable,
            in_process=in_process,
        )

    async def pause_schedule(self, id: str) -> ScheduleView:
        """Start no ticks of the schedule until it is resumed; active runs continue. Raises Unknown."""
        return await self._transport.call(endpoints.PAUSE_SCHEDULE, id)

    async def resume_schedule(self, id: str) -> ScheduleView:
        """Continue with the schedule's next tick. Raises Unknown."""
        return await self._transport.call(endpoints.RESUME_SCHEDULE, id)

    async def trigger_schedule(self, id: str, *, idempotency_key: str | None = None) -> ScheduleView:
        """Run the schedule's agent now, in addition to its ticks. Raises Unknown."""
        return await self._transport.call(endpoints.TRIGGER_SCHEDULE, id, idempotency_key=idempotency_key)

    async def remove_schedule(self, id: str) -> None:
        """Remove the schedule; active runs continue. Raises Unknown."""
        await self._transport.call(endpoints.REMOVE_SCHEDULE, id)

    async def schedule_results(self, id: str) -> Sequence[TickResult]:
        """Return the schedule's last ticks: the newest twenty that ended, the running ones, and the waiting ones.

        Raises Unknown.
        """
        return (await self._transport.call(endpoints.SCHEDULE_RESULTS, id)).results

    # ---- registered agents

    async def recipes(self, place: str = "") -> Sequence[RecipeRow]:
        """Return the agents that agents have made: those of the agent at `place`, or all."""
        return await self._all(endpoints.LIST_RECIPES, lambda page: page.recipes, limit=USUAL, place=place)

    async def state(
        self, id: str, *, at: int = 0, commit: str = "", prefix: str = "", after: str = "", limit: int = USUAL
    ) -> StatePage:
        """Return a page of a run's own state: now, as of an event of its tree, or as of a commit of its branch.

        Raises Unknown if the run, the event or the commit does not exist.
        """
        return await self._transport.call(
            endpoints.RUN_STATE, id, at=at, commit=commit, prefix=prefix, after=after, limit=limit
        )

    async def state_versions(self, id: str, *, limit: int = USUAL) -> StateVersions:
        """Return the commits that changed a run's state, newest first, and the existing branches."""
        return await self._transport.call(endpoints.RUN_STATE_VERSIONS, id, limit=limit)

    # ---- safety gates

    async def policies(self) -> Mapping[str, int]:
        """Return the newest version number of every safety policy, by name."""
        policies = await self._all(endpoints.LIST_POLICIES, lambda page: page.policies)
        return {each.name: each.version for each in policies}

    async def policy(self, name: str, version: int = 0) -> GatePolicy:
        """Return a safety policy: its newest version, or the version of that number. Raises Unknown."""
        return await self._transport.call(endpoints.GET_POLICY, name, version=version)

    async def put_policy(self, name: str, policy: SafetyPolicy, *, expected: int) -> GatePolicy:
        """Store a new version of a policy. `expected` is the version before it, 0 for the first. Raises Conflict."""
        return await self._transport.call(endpoints.PUT_POLICY, name, policy=policy, expected=expected)

    async def passages(
        self, event_filter: GateEventFilter = EVERYTHING, *, after: int = 0, limit: int = USUAL
    ) -> GateEventPage:
        """Return a page of the gate events after a cursor, like `ramet.host.safety.inspection.passages`."""
        page = await self._transport.call(
            endpoints.PASSAGES, **msgspec.structs.asdict(event_filter), after=after, limit=limit
        )
        return GateEventPage(tuple(_passage(each) for each in page.entries), page.cursor, page.more)

    async def follow_passages(
        self, event_filter: GateEventFilter = EVERYTHING, *, after: int = 0
    ) -> AsyncGenerator[GateEvent, None]:
        """Yield the gate events after a cursor, and then new ones, until the server ends. Then raises Gone."""
        request = request_to(endpoints.FOLLOW_PASSAGES, **msgspec.structs.asdict(event_filter), after=after)
        async with aclosing(self._transport.stream(request)) as events:
            async for each in events:
                match each.event:
                    case "event":
                        yield _passage(msgspec.json.decode(each.data, type=PassageRow))
                    case "error":
                        raise error_of(each.data, 0)
        raise Gone("the server ended")

    # ---- internal

    async def _all(
        self, endpoint: Endpoint[P], items: Callable[[P], Iterable[T]], *path: str, limit: int = MOST, **values: Any
    ) -> list[T]:
        """Return the items of all pages of a list."""
        result, after = list[T](), ""
        while True:
            page = await self._transport.call(endpoint, *path, after=after, limit=limit, **values)
            result += items(page)
            if not (after := page.more):
                return result


def _changes(data: bytes) -> RunChanges:
    try:
        return msgspec.json.decode(data, type=RunChanges)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"an invalid message about changes: {problem}") from None


def _passage(row: PassageRow) -> GateEvent:
    event = decode(msgspec.json.encode(row.event))
    if not isinstance(event, IntentionRecorded | IntentionDecided | ToolEnded):
        raise ProtocolError(f"an invalid gate event: {row.event.get('type')!r}")
    return GateEvent(row.cursor, row.kind, event)
