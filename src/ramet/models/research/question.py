"""A question as words to search for. Any text is a question, possibly without words."""

from __future__ import annotations

import re
from typing import NamedTuple

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


class Question(NamedTuple):
    """A question, and the words to search for."""

    text: str
    about_fault: bool
    terms: dict[str, str]  #: at most six, lower case, each with a regular expression; may be empty

    def matching_terms(self, text: str) -> list[str]:
        return [term for term, pattern in self.terms.items() if re.search(pattern, text, re.IGNORECASE)]


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
