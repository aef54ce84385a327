"""Read a conversation for a model without state: the question, and the calls made for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

_ID = re.compile(r"offline-([a-z]+)-\d+-\d+\Z")
_NO_MORE_TOOLS = re.compile(r"\b(do not|don't|no longer|cannot|without)\b.{0,30}\btools?\b", re.IGNORECASE)
_REFUSED = re.compile(r"spawn refused|Agent \S+ did not finish|There is no tool named|^Denied: ")


class FinishedCall(NamedTuple):
    """A call that was made for this question, and its result."""

    stage: str  #: reason for the call: see `ramet.models.research.researcher`
    args: dict[str, Any]  # Any: what was sent, and came back in the history
    text: str
    has_failed: bool


class Turn(NamedTuple):
    """The newest question, earlier questions, and all calls for the question so far."""

    question: str
    earlier_questions: str
    finished_calls: tuple[FinishedCall, ...]
    must_end: bool  #: the newest message says that no more tools will be run

    def calls_of(self, stage: str, *, has_failed: bool = False) -> list[FinishedCall]:
        """Return the successful calls of a stage; with `has_failed`, only the failed ones."""
        return [each for each in self.finished_calls if each.stage == stage and each.has_failed is has_failed]


def read(messages: Sequence[BaseMessage]) -> Turn:
    """Parse a conversation. The question is the newest message of a person, or of an agent that delegates a task."""
    prompts = [(at, str(m.text).strip()) for at, m in enumerate(messages) if isinstance(m, HumanMessage)]
    prompts = [(at, text) for at, text in prompts if text and not text.startswith("<")]  # mail and notices have tags
    must_end = len(prompts) > 1 and prompts[-1][0] == len(messages) - 1 and bool(_NO_MORE_TOOLS.search(prompts[-1][1]))
    *earlier, (start, prompt) = [(0, ""), *(prompts[:-1] if must_end else prompts)]
    answers, finished_calls = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}, []
    for call in (call for m in messages[start:] if isinstance(m, AIMessage) for call in m.tool_calls):
        name, answer = _ID.match(call["id"] or ""), answers.get(call["id"] or "")
        if name and answer is not None:
            has_failed = answer.status == "error" or bool(_REFUSED.match(str(answer.text)))
            finished_calls.append(FinishedCall(name[1], call["args"], str(answer.text), has_failed))
    return Turn(prompt, "\n".join(text for _, text in earlier), tuple(finished_calls), must_end)
