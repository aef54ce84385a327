"""Decisions about a call: of hooks, of a person, and of the safety gate."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class HookDecision(NamedTuple):
    """The decision of the hooks about one event. `deny` and `ask` have the reason or question."""

    verdict: Literal["allow", "deny", "ask", "continue"] = "allow"
    reason: str = ""
    updated_input: dict[str, Any] | None = None  #: PreToolUse may rewrite a call's arguments
    updated_output: str | None = None  #: PostToolUse may rewrite the model's result
    context: str = ""  #: text for the model, as data


class Approval(NamedTuple):
    """A person's decision on a call; as a condition it is `is_allowed`."""

    is_allowed: bool
    reason: str = ""  #: for the model, with a denial; or the text of the answer, to a question that asks for one

    def __bool__(self) -> bool:
        return self.is_allowed is True

    @property
    def denial(self) -> str:
        return f"it was not approved: {self.reason}" if self.reason else "it was not approved"


class SafetyDecision(NamedTuple):
    """The safety gate's decision about a call."""

    is_committed: bool
    reason: str = ""
