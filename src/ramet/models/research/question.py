"""What was asked, as far as rules can tell: its kind, and the words worth searching for."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["fault", "where", "how", "topic"]

#: Lines that tell of trouble, in logs and in code, in a few languages.
FAULT = (
    r"\b(fatal|panic\w*|critical|severe|errors?|err|\w*exception|traceback|fail\w*|refused|denied|unauthori[sz]ed|"
    r"forbidden|timeouts?|timed out|unreachable|unavailable|\w*exhausted|out of memory|oom\w*|killed|deadlock\w*|"
    r"abort\w*|corrupt\w*|overflow|no space|too many|cannot|could not|couldn't|unable|warn|warning|retry\w*|gave up|"
    r"dropped|reset by peer|broken pipe|segfault|invalid|missing|rejected|expired|"
    r"fehler\w*|ausnahme|erreurs?|échec|errore|erro|fallo|ошибк\w*|сбой)\b|\w+(Error|Exception)\b|"
    r"错误|失败|超时|异常|エラー|失敗|오류|실패|"
    r"\b(GET|HEAD|POST|PUT|PATCH|DELETE) \S+( HTTP/[\d.]+" + r'"?)? 5\d\d\b|File "[^"]+", line \d+|panicked at'
)
_ASKS_FOR_FAULT = re.compile(
    FAULT
    + r"|\b(why|bug|broken|breaks?|down|slow|wrong|crash\w*|hang\w*|stuck|problem\w*|issue\w*|cause\w*|not working|"
    r"warum|weshalb|wieso|kaputt|langsam|pourquoi|panne|lent|problème\w*|por qu[eé]|lento|perch[eé]|почему)\b|"
    r"为什么|为何|なぜ|どうして|왜",
    re.IGNORECASE,
)
_ASKS_WHERE = re.compile(
    r"\b(where|which file|wo|où|dónde|donde|dove|onde|где|configured|defined)\b|哪里|どこ|어디", re.IGNORECASE
)
_ASKS_HOW = re.compile(
    r"\b(how|explain|describe|what does|wie|comment|cómo|como|come|как)\b|如何|怎么|どう", re.IGNORECASE
)

_STOP = frozenset(
    (
        "a about above after again all also am an and any are as at be because been before being below between "
        "both but by can cannot could did do does doing done down during each few find for from further get gets "
        "give given go goes had has have having he her here him his how i if in into is it its itself just keep "
        "kept know let like look make many may me mean means might more most much must my no nor not now of off on "
        "once one only or other our out over own please same see shall she should show so some such tell than that "
        "the their them then there these they this those through to too under until up us use used uses using very "
        "was way we were what when where which while who whom whose why will with work works working would you "
        "your failing failed fails fail error errors broken wrong problem problems issue issues cause causes "
        "caused crash crashes crashing slow explain describe happens happening happen der die das den dem des ein "
        "eine einen einem ist sind war und oder nicht mit von zu zum zur im in auf für wie wo was wer warum "
        "weshalb wieso wird werden kann bei nach aus es sich wenn le la les un une des du de et ou est sont pas "
        "avec pour par dans sur que qui quoi où comment pourquoi il elle ce el los las una unos y o es son no con "
        "por para en que qué cómo dónde se lo al del il lo gli uno e è sono non con per che perché come dove di da "
        "и в не на с что как где почему это по из за "
    ).split()
)
_QUOTED = re.compile(r"`([^`\n]{2,80})`|\"([^\"\n]{2,80})\"|«([^»\n]{2,80})»|“([^”\n]{2,80})”")
_WORD = re.compile(r"[^\W_]+(?:[_.-][^\W_]+)*")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_ENDINGS = ("ations", "ation", "ings", "ing", "ied", "ies", "ed", "es", "s")
_META = re.compile(r"([.^$*+?()\[\]{}|\\])")
MAX_TERMS = 14


class Question(NamedTuple):
    """A question and what to search for to answer it."""

    text: str
    kind: Kind
    terms: tuple[str, ...]  #: lower case, the most telling first; may be empty

    @property
    def pattern(self) -> str:
        """A regular expression, without regard to case, for lines that speak of it; empty if nothing does."""
        return any_of(self.terms)

    @property
    def pairs(self) -> str:
        """A regular expression for lines that hold two of its terms; empty if there are not two."""
        each = [any_of([term]) for term in self.terms[:5]]
        return "|".join(f"({a}).*({b})" for a in each for b in each if a != b)

    def weight(self, text: str) -> int:
        """How many of its terms are in a text."""
        return sum(re.search(any_of([term]), text, re.IGNORECASE) is not None for term in self.terms)


def understand(text: str) -> Question:
    """Find out what a text asks for. Anything is a question; at worst it has no terms."""
    text = text.strip()[:4_000]
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(text)]
    words = [word for word in _WORD.findall(text) if word.lower() not in _STOP]
    terms: dict[str, None] = {}
    for term in [*quoted, *(form for word in words for form in _forms(word))]:
        if len(term) >= 3 or _CJK.search(term):
            terms.setdefault(term.lower(), None)
    # The shorter form of a word finds the longer one, too.
    kept = [t for t in terms if not any(o != t and o in t and len(o) >= 4 and " " not in t for o in terms)]
    return Question(text, _kind(text), tuple(kept[:MAX_TERMS]))


def _kind(text: str) -> Kind:
    if _ASKS_WHERE.search(text):
        return "where"
    if _ASKS_FOR_FAULT.search(text):
        return "fault"
    return "how" if _ASKS_HOW.search(text) else "topic"


def _forms(word: str) -> list[str]:
    """A word, without its ending; an identifier's parts, too; of scripts without spaces, pairs of signs."""
    if run := _CJK.search(word):
        signs = run.group()
        return [signs[at : at + 2] for at in range(max(1, len(signs) - 1))]
    forms = [_stem(word)]
    parts = _PARTS.findall(word)
    if len(parts) > 1 and not word.isupper():
        forms += [part for part in parts if len(part) > 3 and part.lower() not in _STOP]
    return forms


def _stem(word: str) -> str:
    if word.isascii() and word.isalpha() and len(word) > 5:
        for ending in _ENDINGS:
            if word.lower().endswith(ending) and len(word) - len(ending) >= 4:
                return word[: -len(ending)]
    return word


def escaped(text: str) -> str:
    """A text as a regular expression for itself, in every dialect: only what has a meaning is escaped."""
    return _META.sub(r"\\\1", text)


def any_of(texts: tuple[str, ...] | list[str]) -> str:
    """A regular expression for any of these texts; short words must stand alone, or begin a word."""
    return "|".join(map(_one, texts))


def _one(text: str) -> str:
    if len(text) > 5 or not (text.isascii() and text.isalnum()):
        return escaped(text)
    return f"(^|[^a-zA-Z]){escaped(text)}" + (r"\b" if len(text) <= 3 else "")
