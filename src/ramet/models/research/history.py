"""What a conversation holds for a model that keeps nothing itself: what is asked now, and what was done about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

_ID = re.compile(r"offline-([a-z]+)-\d+-\d+\Z")
_NO_MORE_TOOLS = re.compile(r"\b(do not|don't|no longer|cannot|without)\b.{0,30}\btools?\b", re.IGNORECASE)
_REFUSED = re.compile(r"spawn refused|Agent \S+ did not finish|There is no tool named|^Denied: ")


class Done(NamedTuple):
    """One call that was made for this question, and what came of it."""

    stage: str  #: why it was made: see `ramet.models.research.researcher`
    tool: str
    args: dict[str, Any]  # Any: what was sent, and came back in the history
    text: str
    failed: bool


class Turn(NamedTuple):
    """The question that stands, and all that was done about it so far."""

    asked: str
    earlier: str  #: what was asked before it in the same conversation
    done: tuple[Done, ...]
    place: int  #: how many messages there are: makes the ids of calls differ
    must_end: bool  #: it was said that no more tools will be run

    def of(self, stage: str) -> list[Done]:
        """What was done for one reason."""
        return [each for each in self.done if each.stage == stage]

    def reached(self, stage: str) -> bool:
        """Whether that was done already."""
        return any(each.stage == stage for each in self.done)


def read(messages: Sequence[BaseMessage]) -> Turn:
    """Read a conversation. A question is the newest message of a person, or of an agent that gives a brief."""
    spoken = [
        (at, text)
        for at, message in enumerate(messages)
        if isinstance(message, HumanMessage)
        and (text := text_of(message).strip())
        and not text.startswith("<")  # mail and notices come in tags
    ]
    must_end = len(spoken) > 1 and spoken[-1][0] == len(messages) - 1 and bool(_NO_MORE_TOOLS.search(spoken[-1][1]))
    if must_end:
        spoken.pop()
    start, asked = spoken[-1] if spoken else (0, "")
    earlier = "\n".join(text for _, text in spoken[:-1])
    return Turn(asked, earlier, tuple(_done(messages[start:])), len(messages), must_end)


def is_brief(text: str) -> bool:
    """Whether a text is a brief that this model writes for its scouts."""
    return text.startswith("Question: ") and "\nKind: " in text


def _done(messages: Sequence[BaseMessage]) -> list[Done]:
    answers = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}
    found = []
    for message in messages:
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            name, answer = _ID.match(call["id"] or ""), answers.get(call["id"] or "")
            if name and answer is not None:
                text = text_of(answer)
                failed = answer.status == "error" or bool(_REFUSED.match(text))
                found.append(Done(name[1], call["name"], call["args"], text, failed))
    return found


def text_of(message: BaseMessage) -> str:
    """The text of a message, whatever blocks it is made of."""
    if isinstance(message.content, str):
        return message.content
    parts = [part if isinstance(part, str) else str(part.get("text", "")) for part in message.content]
    return "\n".join(part for part in parts if part)
