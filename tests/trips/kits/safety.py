"""Helpers for tests of the safety gate: policies, a dangerous tool, and voters that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.tools import BaseTool, tool

from ramet.core.events import Event, IntentionDecided, IntentionRecorded
from ramet.core.safety import Rule, SafetyPolicy, VoterAnswer
from ramet.models.scripted.dialogue import Call
from tests.trips.kits.sessions import of_kind

REASON = "nobody deletes here"
LOOK_CALL, DELETE_CALL = Call("look", {"path": "a"}, id="c-look"), Call("delete", {"path": "a"}, id="c-delete")
#: Everything but `delete`.
POLICY = SafetyPolicy(rules=(Rule(tool="delete", verdict="deny", reason=REASON),), otherwise="allow")
ALLOW_ALL = SafetyPolicy(otherwise="allow")
ASK_BEFORE_DELETE = SafetyPolicy(rules=(Rule(tool="delete", verdict="ask", reason="Really?"),), otherwise="allow")


class RecordingTools:
    """Two tools, and a list of their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        @tool
        async def look(path: str) -> str:
            """Look at a file."""
            self.calls.append(f"look {path}")
            return f"{path} is there"

        @tool
        async def delete(path: str) -> str:
            """Delete a file."""
            self.calls.append(f"delete {path}")
            return f"{path} is gone"

        look.metadata = {"read_only": True}  # Nothing but the gate has its beginning put on disk before it runs.
        self.tools: list[BaseTool] = [look, delete]


class FixedVoter:
    """A voter that returns or raises a given value; with None it never returns."""

    def __init__(self, answer: Any, name: str = "second") -> None:
        self._what, self.name = answer, name
        self.intentions: list[IntentionRecorded] = []
        self.is_asked = asyncio.Event()

    async def vote(self, intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
        self.intentions.append(intention)
        self.is_asked.set()
        if self._what is None:
            await asyncio.Event().wait()
        if isinstance(self._what, BaseException):
            raise self._what
        return self._what  # type: ignore[no-any-return]  # that is the point


def intention_outcomes(events: Sequence[Event]) -> list[str]:
    """Return each intention with its outcome."""
    decisions = {each.intention: each.committed for each in of_kind(events, IntentionDecided)}
    words = {True: "committed", False: "aborted", None: "open"}
    return [f"{each.path} {each.tool} {words[decisions.get(each.seq)]}" for each in of_kind(events, IntentionRecorded)]
