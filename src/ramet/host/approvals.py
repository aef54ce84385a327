"""The one inbox of a tree: questions for a person, from any depth, answered by id.

A question shows who asks (path and depth), about what, and until when. Whoever holds the inbox is host code: no tool
and no message of an agent reaches it, so consent cannot be relayed, and an answer is good for one question, once. A no,
a deadline, a closed inbox or an approver that fails denies that one call; the run that asked goes on, and its siblings
were never concerned. A run that waits here holds no slot.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import within
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import ApprovalAnswered, ApprovalAsked
from ramet.core.ids import Path, RunId
from ramet.tools.context import ToolUseContext, current_call

DEADLINE_S = 600.0
MAX_TEXT = 2_000  #: of the question, and of each text in the arguments
MAX_ITEMS = 50
MAX_SHOWN = 20_000  #: of all arguments together, give or take one text
MAX_DEPTH = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A question that waits. `args` are bounded for showing; what was cut says how long it is."""

    id: str
    run: RunId
    path: Path
    agent: str
    depth: int
    tool: str
    question: str
    args: dict[str, Any]
    asked_at: datetime
    deadline: datetime | None


class Word(NamedTuple):
    """An answer."""

    allowed: bool
    reason: str = ""


#: Answers at once, in place of a person. Only True is a yes; a synchronous one is asked in a thread.
Approver = Callable[[Pending], bool | Awaitable[bool]]


class Inbox:
    """Where a tree's questions wait. `ask` is the `Approve` of every context of the tree."""

    __slots__ = ("_approver", "_clock", "_closed", "_mint", "_timeout_s", "_unattended", "_waiting")

    def __init__(
        self,
        *,
        mint: Callable[[], str],
        clock: Clock,
        timeout_s: float | None = DEADLINE_S,
        approver: Approver | None = None,
        unattended: bool = False,
    ) -> None:
        """`mint` makes ids nobody can guess. `unattended` denies at once what neither a hook nor `approver` decides."""
        if timeout_s is not None and (not math.isfinite(timeout_s) or timeout_s <= 0):
            raise InvalidValue("timeout_s", timeout_s, "seconds above 0, or None")
        self._mint, self._clock, self._timeout_s = mint, clock, timeout_s
        self._approver, self._unattended = approver, unattended
        self._waiting: dict[str, tuple[Pending, asyncio.Future[Word]]] = {}
        self._closed: str | None = None

    @property
    def pending(self) -> tuple[Pending, ...]:
        """The questions that wait, oldest first."""
        return tuple(entry for entry, _ in self._waiting.values())

    def answer(self, approval_id: str, allowed: bool, reason: str = "") -> None:
        """Answer one question. Raises Unknown if it does not wait (any more): a second answer changes nothing."""
        if not isinstance(allowed, bool):
            raise InvalidValue("allowed", allowed, "True or False")
        if approval_id not in self._waiting:
            raise Unknown("approval", str(approval_id), tuple(self._waiting))
        _, word = self._waiting.pop(approval_id)
        word.set_result(Word(allowed, reason))

    def close(self, reason: str = "the session ended") -> None:
        """Deny all that waits and all that is asked from now on."""
        self._closed = reason
        for _, word in self._waiting.values():
            word.set_result(Word(False, reason))
        self._waiting.clear()

    async def ask(self, context: ToolUseContext, *, tool: str, question: str, args: dict[str, Any]) -> bool:
        """Return True only if a PermissionRequest hook, the approver or a person said yes before the deadline.

        Raises Aborted if the run is stopped; the question then leaves the inbox.
        """
        context.abort.raise_if_aborted()
        at_once = await self._decided_at_once(context, tool, question, args)
        now = self._clock.now()
        entry = Pending(
            id=self._mint(),
            run=context.run.id,
            path=context.run.path,
            agent=context.run.agent,
            depth=context.run.depth,
            tool=tool[:200],
            question=_cut(question),
            args=shown(args),
            asked_at=now,
            deadline=None if self._timeout_s is None else now + timedelta(seconds=self._timeout_s),
        )
        word: asyncio.Future[Word] = asyncio.get_running_loop().create_future()
        answered = Word(False, "the run was stopped")
        if at_once is None:  # Before it is announced, so that whoever hears of it can answer.
            self._waiting[entry.id] = (entry, word)
        try:
            call = current_call.get(None)
            context.emit(
                ApprovalAsked,
                approval_id=entry.id,
                tool=entry.tool,
                question=entry.question,
                args=entry.args,
                call_id=call.call_id if call is not None and call.context is context else None,
            )
            answered = at_once or await self._wait(context, entry, word)
            return answered.allowed
        finally:
            self._waiting.pop(entry.id, None)
            context.emit(
                ApprovalAnswered, approval_id=entry.id, allowed=answered.allowed, reason=answered.reason[:MAX_TEXT]
            )

    async def _decided_at_once(
        self, context: ToolUseContext, tool: str, question: str, args: dict[str, Any]
    ) -> Word | None:
        """What needs no waiting: a closed inbox, a hook's word, nobody there. None leaves it to somebody."""
        hooks = context.hooks
        if self._closed is None and hooks is not None and hooks.listens("PermissionRequest"):
            payload = {"tool_name": tool, "tool_input": args, "question": question}
            decision = await hooks.fire("PermissionRequest", context, payload, matcher=tool)
            if decision.verdict != "ask":
                return Word(decision.verdict == "allow", decision.reason or "by a hook")
        if self._closed is not None:
            return Word(False, self._closed)
        if self._unattended and self._approver is None:
            return Word(False, "nobody is there to answer")
        return None

    async def _wait(self, context: ToolUseContext, entry: Pending, word: asyncio.Future[Word]) -> Word:
        context.slot.begin_wait()
        try:
            return await within(
                self._first(entry, word), clock=self._clock, seconds=self._timeout_s, abort=context.abort
            )
        except TimeoutError:
            if word.done():  # Answered in the same moment: whoever did so was told that it counts.
                return word.result()
            return Word(False, f"nobody answered within {self._timeout_s:g} s")
        finally:
            context.slot.end_wait()

    async def _first(self, entry: Pending, word: asyncio.Future[Word]) -> Word:
        """The word of the approver or of whoever answers by id, whichever comes first."""
        if self._approver is None:
            return await asyncio.shield(word)
        asking = asyncio.ensure_future(_ask_approver(self._approver, entry))
        try:
            await asyncio.wait({asking, word}, return_when=asyncio.FIRST_COMPLETED)
            return word.result() if word.done() else asking.result()
        finally:
            asking.cancel()
            await asyncio.wait({asking})


async def _ask_approver(approver: Approver, entry: Pending) -> Word:
    """The approver's word; one that fails said no."""
    try:
        if inspect.iscoroutinefunction(approver):
            returned = await approver(entry)
        else:
            returned = await in_thread(lambda: approver(entry), name="ramet-approver")
            if inspect.isawaitable(returned):
                returned = await returned
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return Word(False, f"the approver failed: {type(error).__name__}: {error}")
    return Word(returned is True, "by the approver")


def shown(args: dict[str, Any]) -> dict[str, Any]:
    """`args` as bounded JSON for people to see: nothing is left out without a mark where it was."""
    room = MAX_SHOWN

    def show(value: Any, depth: int) -> Any:
        nonlocal room
        if room <= 0:
            return "… not shown"
        room -= 10
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) <= 2**53:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if depth < MAX_DEPTH and isinstance(value, dict):
            entries = {text(str(key)): show(each, depth + 1) for key, each in islice(value.items(), MAX_ITEMS)}
            return entries | ({"…": f"{len(value)} entries"} if len(value) > MAX_ITEMS else {})
        if depth < MAX_DEPTH and isinstance(value, list | tuple):
            items = [show(each, depth + 1) for each in islice(value, MAX_ITEMS)]
            return items + ([f"… {len(value)} entries"] if len(value) > MAX_ITEMS else [])
        return text(value if isinstance(value, str) else repr(value))

    def text(whole: str) -> str:
        nonlocal room
        part = _cut(whole)
        room -= len(part)
        return part

    plain: dict[str, Any] = show(args, 0)
    return plain


def _cut(text: str) -> str:
    """The beginning and the end: what matters of a long command may stand at either."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} … [{len(text)} characters, the middle is not shown] … {text[-half:]}"
