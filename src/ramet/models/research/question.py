"""The question of a conversation, as words to search for, and the calls made for it: the model has no state.

Any text is a question, possibly without words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

#: Words that report trouble, for a case-insensitive search.
FAULT = (
    r"\b(fatal|panic\w*|critical|severe|errors?|err|exception|traceback|fail\w*|timed? ?out|timeout|refused|denied|"
    r"exhausted|killed|deadlock\w*|abort\w*|cannot|could not|unable|warn|warning|gave up|invalid|missing|expired)\b|"
    r"\w+(Error|Exception)\b|\b(GET|HEAD|POST|PUT|PATCH|DELETE) \S+( HTTP/[\d.]+.?)? 5\d\d\b"
)
_ASKS_FOR_FAULT = re.compile(
    rf"(?is)(?!.*\b(where|which file|how does|explain|describe|wo|où)\b).*({FAULT}|\b(why|bug|broken|down|"
    r"wrong|crash\w*|stuck|problem\w*|issue\w*|not working|warum|pourquoi|почему)\b|为什么)"
)
_STOP = frozenset(
    "about after all and any are before between both but can cannot could did does each find for from get give goes "
    "had has have how into its just like look make many more most much must nor not now off one only other our out "
    "over please same show some such tell than that the their them then there these they this those through too under "
    "use used uses using was way were what when where which while who why will with work would you fail failing "
    "failed fails error errors broken wrong problem problems issue cause crash crashes slow explain describe happens "
    "defined configured code file files default der die das und wie warum les des est que los las por".split()
)
_WORD = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+)|([^\W_][\w.-]+\w)")
_ENDING = re.compile(r"(?<=[A-Za-z]{4})(ations?|ings?|ied|ies|ed|es|s)\Z")
_ID = re.compile(r"offline-([a-z]+)-\d+-\d+\Z")
_NO_MORE_TOOLS = re.compile(r"\b(do not|don't|no longer|cannot|without)\b.{0,30}\btools?\b", re.IGNORECASE)
_REFUSED = re.compile(r"spawn refused|Agent \S+ did not finish|There is no tool named|^Denied: ")


class Question(NamedTuple):
    """A question, and the words to search for."""

    text: str
    about_fault: bool
    terms: dict[str, str]  #: at most six, lower case, each with a regular expression; may be empty

    def matching_terms(self, text: str) -> list[str]:
        return [term for term, pattern in self.terms.items() if re.search(pattern, text, re.IGNORECASE)]


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


def understand(text: str) -> Question:
    """Return a question with its search terms; `about_fault` is set by its wording."""
    text, terms = text.strip()[:4_000], list[str]()
    for code_term, quoted_term, signs, word in _WORD.findall(text):
        terms += [code_term, quoted_term, *(signs[at : at + 2] for at in range(len(signs) - 1))]
        terms += [_ENDING.sub("", word) if len(word) > 5 else word] if word.lower() not in _STOP else []
    chosen_terms = [term for term in dict.fromkeys(term.lower()[:80] for term in terms) if len(term) > 1][:6]
    return Question(text, bool(_ASKS_FOR_FAULT.match(text)), {term: _pattern_of(term) for term in chosen_terms})


def _pattern_of(term: str) -> str:
    """Return a regular expression for a term: a short term must be a whole word, or the start of one."""
    short = len(term) < 6 and term.isascii() and term.isalnum()
    return rf"(^|[^a-zA-Z]){term}" + r"\b" * (len(term) < 4) if short else escape(term)


def escape(text: str) -> str:
    """Return a regular expression for a literal text, valid for both ripgrep and Python."""
    return re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", text)
