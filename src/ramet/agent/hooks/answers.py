"""Parse the answers of hooks, in the forms of Claude Code, strictly: an answer that is not understood is an error.

| answer | meaning |
|---|---|
| None, `{}`, nothing on stdout | no opinion |
| `"allow"`, `"deny"`, `"ask"`; `{"decision": "approve" | "block", "reason": …}` | the decision itself |
| `{"hookSpecificOutput": {"permissionDecision": …, "permissionDecisionReason": …, "updatedInput": …}}` | PreToolUse |
| `{"hookSpecificOutput": {"decision": {"behavior": "allow" | "deny", "message": …}}}` | PermissionRequest |
| `{"hookSpecificOutput": {"additionalContext": …, "updatedToolOutput": …}}` | text for the model; the result it sees |
| `{"continue": false, "stopReason": …}` | the agent stops |
| `{"systemMessage": …}` | a notice for people |
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from ramet.agent.hooks.config import GATES
from ramet.tools.decisions import HookDecision

MAX_REASON = 4_000
MAX_CONTEXT = 20_000

#: Events at which an agent is about to become idle; "block" means: continue, with a reason.
CONTINUABLE_EVENTS = frozenset({"Stop", "SubagentStop", "TeammateIdle"})
#: Events at which a command's output that is not JSON becomes text for the model, as in Claude Code.
_PLAIN_TEXT = frozenset({"UserPromptSubmit", "SessionStart", "SubagentStart"})

_TOP_KEYS = frozenset(
    {"continue", "stopReason", "suppressOutput", "systemMessage", "decision", "reason", "hookSpecificOutput"}
)
_SPECIFIC_KEYS = frozenset(
    {
        "hookEventName",
        "permissionDecision",
        "permissionDecisionReason",
        "updatedInput",
        "additionalContext",
        "updatedToolOutput",
        "updatedMCPToolOutput",
        "decision",
    }
)
_VERDICTS = {
    "approve": "allow",
    "allow": "allow",
    "block": "deny",
    "deny": "deny",
    "ask": "ask",
    "continue": "continue",
}

Verdict = Literal["allow", "deny", "ask", "continue", "stop"]


class HookError(Exception):
    """The error for a hook that gave no answer, or one that cannot be understood."""


class HookAnswer(NamedTuple):
    """The answer of one hook, or of several combined.

    No word is no opinion, which does not approve a PermissionRequest.
    """

    verdict: Verdict | None = None
    reason: str = ""
    updated_input: dict[str, Any] | None = None
    updated_output: str | None = None
    context: str = ""
    notice: str = ""

    @property
    def is_final(self) -> bool:
        """Return whether no later hook can change the answer."""
        return self.verdict in ("deny", "continue", "stop")

    def combine(self, later: HookAnswer) -> HookAnswer:
        """Combine with the answer of a later hook, which saw this one's rewrites: deny before ask before allow."""
        weaker = later.verdict is None or (later.verdict == "allow" and self.verdict == "ask")
        reasons = [self.reason if weaker or later.verdict == self.verdict else "", "" if weaker else later.reason]
        return HookAnswer(
            verdict=self.verdict if weaker else later.verdict,
            reason="\n".join(each for each in reasons if each),
            updated_input=later.updated_input if later.updated_input is not None else self.updated_input,
            updated_output=later.updated_output if later.updated_output is not None else self.updated_output,
            context="\n".join(each for each in (self.context, later.context) if each),
        )


def from_command(event: str, code: int, stdout: bytes, stderr: bytes) -> HookAnswer:
    """Parse a command's answer: exit status 0 decides (JSON or nothing), 2 blocks. Raises HookError for any other."""
    if code == 2:
        return _for_event(event, HookAnswer("deny", _clip(stderr.decode(errors="replace").strip(), MAX_REASON)))
    if code != 0:
        error_text = stderr.decode(errors="replace").strip()[-500:]
        ending = f"was ended by signal {-code}" if code < 0 else f"exit status {code}"
        raise HookError(f"{ending}: {error_text}" if error_text else ending)
    text = stdout.decode(errors="replace").strip()
    if not text:
        return HookAnswer()
    if not text.startswith("{") and event not in GATES:
        return HookAnswer(context=_clip(text, MAX_CONTEXT)) if event in _PLAIN_TEXT else HookAnswer()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HookError(f"its output is not JSON ({error}): {text[:200]!r}") from None
    if not isinstance(answer, dict):
        raise HookError(f"its output is no JSON object: {text[:200]!r}")
    return from_value(event, answer)


def from_value(event: str, answer: Any) -> HookAnswer:
    """Parse the value that a function returned, or a command printed. Raises HookError if it cannot be understood."""
    if answer is None:
        return HookAnswer()
    if isinstance(answer, HookDecision):
        return _for_event(
            event,
            HookAnswer(
                _verdict(answer.verdict),
                _text("reason", answer.reason, MAX_REASON),
                _arguments(event, answer.updated_input),
                answer.updated_output,
                _text("context", answer.context, MAX_CONTEXT),
            ),
        )
    if isinstance(answer, str):
        return _for_event(event, HookAnswer(_verdict(answer)))
    if isinstance(answer, dict):
        return _for_event(event, _from_dict(event, answer))
    raise HookError(f"it returned {type(answer).__name__}, not None, a string, a dict or a HookDecision")


def decision(event: str, hook_answer: HookAnswer, label: str) -> HookDecision:
    """Return the decision of all hooks. Without a word it is allow, but ask on PermissionRequest: a person decides."""
    verdict = hook_answer.verdict or ("ask" if event == "PermissionRequest" else "allow")
    reason = hook_answer.reason
    if verdict == "stop":
        verdict = "allow" if event in CONTINUABLE_EVENTS else "deny"
    if verdict in ("deny", "continue") and not reason:
        reason = f"blocked by the hook {label}"
    rewritten = None if verdict == "deny" else hook_answer.updated_input
    return HookDecision(verdict, reason, rewritten, hook_answer.updated_output, hook_answer.context)


def _from_dict(event: str, answer: dict[str, Any]) -> HookAnswer:
    _known_keys(event, answer, _TOP_KEYS)
    specific = answer.get("hookSpecificOutput") or {}
    if not isinstance(specific, dict):
        raise HookError("hookSpecificOutput is no object")
    _known_keys(event, specific, _SPECIFIC_KEYS)
    if specific.get("hookEventName", event) != event:
        raise HookError(f"it answered for {specific['hookEventName']!r}, not for {event}")
    verdict, reason = _verdict_and_reason(answer, specific)
    output = specific.get("updatedToolOutput", specific.get("updatedMCPToolOutput"))
    if output is not None and not isinstance(output, str):
        output = json.dumps(output, ensure_ascii=False, default=str)
    hook_answer = HookAnswer(
        verdict,
        reason,
        _arguments(event, specific.get("updatedInput")),
        output,
        _text("additionalContext", specific.get("additionalContext"), MAX_CONTEXT),
        _text("systemMessage", answer.get("systemMessage"), MAX_REASON),
    )
    continues = answer.get("continue", True)
    if not isinstance(continues, bool):
        raise HookError("continue is neither true nor false")
    if not continues:
        return hook_answer._replace(
            verdict="stop", reason=_text("stopReason", answer.get("stopReason"), MAX_REASON) or reason
        )
    return hook_answer


def _verdict_and_reason(answer: dict[str, Any], specific: dict[str, Any]) -> tuple[Verdict | None, str]:
    """Return the word and its reason, from the one of three places that contains it."""
    reason = answer.get("reason")
    verdict: Any = answer.get("decision")
    if "permissionDecision" in specific:
        verdict, reason = specific["permissionDecision"], specific.get("permissionDecisionReason", reason)
    elif "decision" in specific:
        inner = specific["decision"]
        if not isinstance(inner, dict) or "behavior" not in inner or "updatedInput" in inner:
            raise HookError("decision is not {'behavior': 'allow' | 'deny', 'message': …}")
        verdict, reason = inner["behavior"], inner.get("message", reason)
        if inner.get("interrupt") and verdict == "deny":
            return "stop", _text("message", reason, MAX_REASON)
    return None if verdict is None else _verdict(verdict), _text("reason", reason, MAX_REASON)


def _for_event(event: str, hook_answer: HookAnswer) -> HookAnswer:
    """Return the opinion in the terms of its event. Raises HookError if the event does not accept the word."""
    if event in CONTINUABLE_EVENTS and hook_answer.verdict == "deny":
        return hook_answer._replace(verdict="continue")
    if hook_answer.verdict == "continue" and event not in CONTINUABLE_EVENTS:
        raise HookError(f"'continue' is no answer to {event}")
    if hook_answer.verdict == "ask" and event not in GATES:
        raise HookError(f"'ask' is no answer to {event}")
    return hook_answer


def _verdict(value: Any) -> Verdict:
    if not isinstance(value, str) or value not in _VERDICTS:
        raise HookError(f"{str(value)[:100]!r} is no decision; known: {', '.join(_VERDICTS)}")
    return _VERDICTS[value]  # type: ignore[return-value]  # the values of the table are such words


def _arguments(event: str, updated: Any) -> dict[str, Any] | None:
    if updated is None:
        return None
    if event != "PreToolUse":  # On a PermissionRequest, dropping it would allow input that was not agreed to.
        raise HookError(f"updatedInput is no answer to {event}")
    if not isinstance(updated, dict) or not all(isinstance(key, str) for key in updated):
        raise HookError("updatedInput is no object")
    return updated


def _text(field: str, value: Any, max_chars: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise HookError(f"{field} is no text")
    return _clip(value, max_chars)


def _clip(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}… [{len(text)} characters, cut]"


def _known_keys(event: str, answer: dict[str, Any], known_keys: frozenset[str]) -> None:
    """Check the keys of an answer.

    For gates all must be known: a misspelt "updatedInput" must not pass the original.
    """
    for key in answer:
        if key not in known_keys and event in GATES:
            raise HookError(f"its answer has an unknown key {str(key)[:100]!r}; known: {', '.join(sorted(known_keys))}")
