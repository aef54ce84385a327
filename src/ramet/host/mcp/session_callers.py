"""The callers of one session: whose call is open, who is asked what a server asks, and whose time stands meanwhile.

Several agents may use one session. A question belongs to the agent whose call it is about, and to no other: neither its
text, nor the time that its answer takes, nor the number of questions concerns anybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final

import mcp_types as types
from mcp import MCPError

from ramet.host.mcp.address_transport import NO_CONNECTION
from ramet.host.mcp.call_clocks import CallClocks
from ramet.host.mcp.elicitation import MAX_QUESTIONS, Elicitation
from ramet.tools.mcp.connection_port import McpCaller

#: Codes of errors that are no answer of the server: it may be at work on the call.
_UNANSWERED_CODES: Final = frozenset({types.CONNECTION_CLOSED, NO_CONNECTION})
_NOBODY: Final = 0  #: the number of no caller: of requests that are no calls


class CallerState:
    """The state of one caller."""

    def __init__(self, caller: McpCaller, number: int) -> None:
        self.number = number
        self.clocks = CallClocks()
        self.elicitation = Elicitation(caller.ask, self.clocks)
        self.open_calls = 0
        self._questions: set[asyncio.Task[None]] = set()

    @property
    def can_be_asked(self) -> bool:
        """True if the number of questions that wait for an answer is below the limit."""
        return len(self._questions) < MAX_QUESTIONS

    def start_question(self, work: Coroutine[Any, Any, None]) -> None:
        """Ask in a task, so that the messages of the server are read meanwhile."""
        task = asyncio.create_task(work)
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    def cancel_questions(self) -> None:
        """Cancel the questions that wait for an answer."""
        for question in self._questions:
            question.cancel()


class SessionCallers:
    """The callers of one session."""

    def __init__(self, owner: McpCaller | None) -> None:
        """Set `owner`, who makes every call of the session; None: several agents share it."""
        self._owner = owner
        self._states: dict[McpCaller, CallerState] = {}
        self._count = 0
        #: Numbers of callers with a call that ended here without an answer: the server may still be at work on it.
        self._unanswered: set[int] = set()
        self._open_queries = 0

    def state_of(self, caller: McpCaller | None) -> CallerState:
        """Return the state of a caller; None: of the owner of the session."""
        caller = caller or self._owner
        assert caller is not None, "a call in a shared session has a caller"
        if (state := self._states.get(caller)) is None:
            self._count += 1
            state = self._states[caller] = CallerState(caller, self._count)
        return state

    @contextmanager
    def open_call(self, caller: McpCaller | None) -> Generator[CallerState]:
        """Count a call of this caller as open while the context is open."""
        state = self.state_of(caller)
        state.open_calls += 1
        try:
            yield state
        except BaseException as error:
            self._note_end(state.number, error)
            raise
        finally:
            state.open_calls -= 1

    @contextmanager
    def open_query(self) -> Generator[None]:
        """Count a request that is no call, such as for a resource, as open while the context is open."""
        self._open_queries += 1
        try:
            yield
        except BaseException as error:
            self._note_end(_NOBODY, error)
            raise
        finally:
            self._open_queries -= 1

    def _note_end(self, number: int, error: BaseException) -> None:
        if not isinstance(error, MCPError) or error.code in _UNANSWERED_CODES:
            self._unanswered.add(number)

    def find_asked(self) -> CallerState | None:
        """Return the caller that a question without a call is for; None if that is not certain.

        A message of 2025 does not say which call it is about. In a shared session the question is for the only agent
        on whose calls the server can be at work; with several, or with a request that is no call, nobody can tell, and
        nobody is asked.
        """
        if self._owner is not None:
            return self.state_of(self._owner)
        numbers = self._unanswered | {each.number for each in self._states.values() if each.open_calls}
        if self._open_queries:
            numbers.add(_NOBODY)
        return next((each for each in self._states.values() if numbers == {each.number}), None)

    def drop(self, caller: McpCaller) -> None:
        """Cancel the questions of a caller that has ended."""
        if (state := self._states.pop(caller, None)) is not None:
            state.cancel_questions()
            if state.open_calls:
                self._unanswered.add(state.number)

    def cancel_questions(self) -> None:
        """Cancel the questions of all callers."""
        for state in self._states.values():
            state.cancel_questions()
