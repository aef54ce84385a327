"""A host of a program, without a kernel: it keeps what a driver reports, and answers as a test says.

host = RecordingHost(decide=lambda call: Permission(False, "not today"), mails=["And now?"])
text = await drive_program(start, host, workspace=folder, values={})
assert host.calls["c1"].status == "ok"
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.core.errors import RametError
from ramet.core.events import PlanStep
from ramet.guest.external.program_host import CallStatus, Permission, SubAgentState


@dataclass
class RecordedCall:
    """A call that a driver reported."""

    call_id: str
    tool: str
    args: dict[str, Any]
    status: CallStatus | None = None  #: None until it ended
    preview: str = ""


class RecordingHost:
    """An implementation of `ProgramHost` in memory."""

    def __init__(
        self,
        *,
        decide: Callable[[RecordedCall], Permission | None] = lambda _: Permission(True),
        mails: Sequence[str] = (),
        session: str | None = None,
        max_calls: int | None = None,
        refusal: RametError | None = None,
    ) -> None:
        self._decide = decide  #: None: nobody answers
        self._mails, self.session = list(mails), session
        self._max_calls, self._refusal = max_calls, refusal
        self.calls: dict[str, RecordedCall] = {}
        self.questions: list[RecordedCall] = []
        self.plans: list[list[PlanStep]] = []
        self.sub_agents: list[tuple[str, str, SubAgentState]] = []
        self.texts: list[str] = []
        self.read = asyncio.Event()  #: where cleared, no text is taken
        self.read.set()
        self._changed = asyncio.Condition()

    @property
    def text(self) -> str:
        """Return all parts of replies."""
        return "".join(self.texts)

    @property
    def tools(self) -> list[tuple[str, CallStatus | None]]:
        """Return the calls by tool, with their ends."""
        return [(call.tool, call.status) for call in self.calls.values()]

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return once something is true of what was reported."""
        async with self._changed:
            await self._changed.wait_for(is_true)

    async def start_call(self, call_id: str, tool: str, args: dict[str, Any]) -> None:
        assert call_id not in self.calls, "a call began twice"
        if self._refusal is not None and len(self.calls) == self._max_calls:
            raise self._refusal
        self.calls[call_id] = RecordedCall(call_id, tool, args)
        await self._notify()

    async def ask_permission(self, call_id: str, tool: str, args: dict[str, Any]) -> Permission:
        assert self.calls[call_id].status is None, "a question about a call that has not begun, or has ended"
        self.questions.append(RecordedCall(call_id, tool, args))
        await self._notify()
        permission = self._decide(self.questions[-1])
        if permission is None:
            await asyncio.get_running_loop().create_future()
        assert permission is not None
        return permission

    async def end_call(self, call_id: str, status: CallStatus, preview: str = "") -> None:
        call = self.calls[call_id]
        assert call.status is None, "a call ended twice"
        call.status, call.preview = status, preview
        await self._notify()

    async def report_plan(self, steps: Sequence[PlanStep]) -> None:
        self.plans.append(list(steps))
        await self._notify()

    async def report_sub_agent(self, sub_agent: str, title: str, state: SubAgentState) -> None:
        self.sub_agents.append((sub_agent, title, state))
        await self._notify()

    async def report_text(self, text: str) -> None:
        await self.read.wait()
        self.texts.append(text)
        await self._notify()

    async def load_session(self) -> str | None:
        return self.session

    async def save_session(self, session: str) -> None:
        self.session = session

    async def take_prompt(self) -> str | None:
        return self._mails.pop(0) if self._mails else None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
