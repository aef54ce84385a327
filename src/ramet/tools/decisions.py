"""Decisions that a run waits for: of hooks, of a person, of the safety gate, of its lead and of its peers."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from ramet.core.errors import InvalidValue
from ramet.core.ids import CallId


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


#: What a lead and its peers ask of each other.
RequestKind: TypeAlias = Literal["plan", "shutdown"]
#: Default wait for the answer to a plan, and the maximum.
PLAN_WAIT_S = 600.0
PLAN_WAIT_MAX_S = 86_400.0
MAX_PLAN = 64 * 1024  #: characters of a plan
MAX_REASON = 8 * 1024  #: characters of a reason


class PeerRequest(NamedTuple):
    """The request of a run for a decision of its lead, or of a peer; or the answer to one."""

    do: Literal["plan", "shutdown", "answer"]
    target: str = ""  #: for a shutdown the peer, for an answer the id of the request
    text: str = ""  #: the plan, or the reason
    is_approved: bool = False  #: of an answer
    timeout_s: float = PLAN_WAIT_S  #: of a plan
    call_id: CallId | None = None  #: the call that waits for the answer


def check_peer_request(request: PeerRequest) -> None:
    """Raise InvalidValue for a request that is too large, or has nothing to decide about."""
    limit = MAX_PLAN if request.do == "plan" else MAX_REASON
    least = 1 if request.do == "plan" else 0
    if not least <= len(request.text.strip()) or len(request.text) > limit:
        field = "plan" if request.do == "plan" else "reason"
        raise InvalidValue(field, request.text[:200], f"text of {least} to {limit} characters")
    if not 0 <= request.timeout_s <= PLAN_WAIT_MAX_S:
        raise InvalidValue("timeout", request.timeout_s, f"0 to {PLAN_WAIT_MAX_S:g} seconds")
