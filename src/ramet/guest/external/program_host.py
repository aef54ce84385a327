"""The host, as the driver of a program sees it: calls, permissions, plans, the reply and further prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from ramet.core.events import PlanStep

CallStatus = Literal["ok", "error", "denied", "cancelled"]
SubAgentState = Literal["running", "completed", "failed", "cancelled"]


class Permission(NamedTuple):
    """An answer to a program that asked whether it may do a call."""

    is_allowed: bool
    reason: str = ""


class ProgramHost(Protocol):
    """The host of one program, in the event loop of its driver. Texts are cut to what a message holds."""

    async def start_call(self, call_id: str, tool: str, args: dict[str, Any]) -> None:
        """Record that a call begins, and count it. Raises BudgetExceeded beyond a limit, Aborted if the run ends."""

    async def ask_permission(self, call_id: str, tool: str, args: dict[str, Any]) -> Permission:
        """Ask whether a call may be done; this may take as long as a person takes. Raises Aborted if the run ends."""

    async def end_call(self, call_id: str, status: CallStatus, preview: str = "") -> None:
        """Record the end of a call that began."""

    async def report_plan(self, steps: Sequence[PlanStep]) -> None:
        """Record the plan of the program, in place of the one before."""

    async def report_sub_agent(self, sub_agent: str, title: str, state: SubAgentState) -> None:
        """Record that the program runs an agent by itself, or that such an agent has ended."""

    async def report_text(self, text: str) -> None:
        """Pass on a part of the reply to those who watch the run."""

    async def load_session(self) -> str | None:
        """Return the id of the program's session, if an earlier process of this run has saved one."""

    async def save_session(self, session: str) -> None:
        """Save the id of the program's session for a later process of this run."""

    async def take_prompt(self) -> str | None:
        """Return the mail that has arrived since, as the next prompt; None if there is none."""
