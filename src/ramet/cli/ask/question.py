"""Run one question from the first event to the last: agents work, a view shows them, and a person may stop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from msgspec.structs import replace

from ramet.cli.pauses.handler import PauseHandler
from ramet.cli.render.approvals import Questions
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.views import View
from ramet.cli.signals import Interrupts
from ramet.core.events import Event, RunEnded
from ramet.core.ids import RunId
from ramet.core.lifecycle import LIVE_STATES, State
from ramet.core.media.attachment import Attachment
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.host.session import Session


class QuestionOutcome(NamedTuple):
    """The outcome of a question."""

    result: Result
    unfinished_calls: tuple[str, ...] = ()  #: calls that could not be ended
    output_closed: bool = False  #: the reader of the output closed it


class QuestionRunner:
    """A runner that asks a session and shows its events. The tree model is updated first, so a view may use it."""

    def __init__(
        self,
        session: Session,
        model: TreeModel,
        view: View,
        questions: Questions | None = None,
        *,
        timeout_s: float | None = None,
        pauses: PauseHandler | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> None:
        self._attachments = attachments  #: of the question
        self._session, self._model, self._view, self._questions = session, model, view, questions
        self._pauses = pauses  #: None if no limit given by the command line pauses
        self._prepare = prepare  #: called with the open session, before the question is asked
        self._stopped_by: str | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._open = False
        self._timeout_s = timeout_s  #: of the whole tree; the session itself bounds only the root's turn
        self._deadline: float | None = None
        self._change_event = asyncio.Event()
        self._later_answer: str | None = None  #: the root's last answer, if the end of an agent made it continue
        self._unfinished_calls: tuple[str, ...] = ()
        self._output_closed = False  #: the view has no viewer any more

    async def run(self, question: str) -> QuestionOutcome:
        """Ask, and wait until all resulting work has ended. A signal stops it cleanly."""
        loop = asyncio.get_running_loop()
        self._deadline = None if self._timeout_s is None else loop.time() + self._timeout_s

        def on_signal(name: str) -> None:
            loop.call_soon_threadsafe(self._stop, name)

        async with self._view:
            with Interrupts(on_signal, self._view.restore):
                async with asyncio.TaskGroup() as group:
                    await self._ask(question, group)
        return QuestionOutcome(
            self._result(), self._unfinished_calls, output_closed=self._output_closed and self._view.is_output
        )

    async def _ask(self, question: str, group: asyncio.TaskGroup) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._session)
            group.create_task(self._watch(), name="ramet watch")  # Ends when the session has closed.
            if self._questions is not None:
                serving = group.create_task(self._questions.serve(), name="ramet questions")
                stack.callback(serving.cancel)
            if self._pauses is not None:
                tree = self._session.runtime.trees[RunId(self._session.id)]
                stack.callback(group.create_task(self._pauses.serve(tree), name="ramet pauses").cancel)
            if self._prepare is not None:
                await self._prepare()
            self._open = True
            if self._stopped_by is None:
                async for _ in self._session.submit_message(question, self._attachments):
                    pass  # Visible progress comes through the tree's events.
                await self._settle()
            if self._stopping is not None:
                await self._stopping

    async def _settle(self) -> None:
        """Wait for agents that the root left running: each end wakes the root, and its last reply is the answer."""
        known = len(self._session.messages)
        try:
            async with asyncio.timeout_at(self._deadline):
                while self._stopped_by is None and self._is_active():
                    self._change_event.clear()
                    await self._change_event.wait()
        except TimeoutError:
            self._view.show_message("out of time: agents that are still active are stopped; the answer stays valid")
        messages = self._session.messages
        if len(messages) > known and messages[-1].type == "ai" and not self._is_active():
            self._later_answer = str(messages[-1].text) or None

    def _is_active(self) -> bool:
        """Return whether any run is active: an idle root does not count."""
        return any(
            view.state in LIVE_STATES and not (view.depth == 0 and view.state == State.IDLE)
            for view in self._session.runs()
        )

    async def _watch(self) -> None:
        async for event in self._events():
            self._change_event.set()
            self._model.apply(event)
            if self._questions is not None:
                self._questions.handle_event(event)
            if not self._output_closed:
                try:
                    self._view.show_event(event)
                except OSError:  # A closed pipe, a full disk, a lost terminal.
                    self._output_closed = True
                    if self._view.is_output:
                        self._stop("the output cannot be written")
            if self._pauses is not None:
                self._pauses.handle_event(event)

    async def _events(self) -> AsyncIterator[Event]:
        async for event in self._session.events(tree=True, deltas=self._view.shows_deltas):
            if isinstance(event, RunEnded) and event.run == event.root and self._session.result is not None:
                # The root of a session ends when it closes; here the outcome of the question matters.
                event = replace(event, result=self._result())
            yield event

    def _stop(self, by: str) -> None:
        if self._stopped_by is None:
            self._stopped_by = by
            self._change_event.set()
            if not self._output_closed:
                self._view.show_message(f"{by}: stopping … (again: exit immediately)")
            if self._open:
                self._stopping = asyncio.create_task(self._cancel(by), name="ramet stop")

    async def _cancel(self, by: str) -> None:
        receipt = await self._session.cancel(by)
        self._unfinished_calls = receipt.left

    def _result(self) -> Result:
        result = self._session.result
        if result is None:
            reason = self._stopped_by or "the session ended without an answer"
            return Result(status=Status.CANCELLED, error=ErrorInfo(type="Aborted", message=reason))
        if result.status is Status.COMPLETED and self._later_answer is not None:
            result = replace(result, value=self._later_answer)
        return replace(result, usage_subtree=self._session.usage)
