"""Evidence: lines of files, and log lines that say the same thing gathered into symptoms."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_HIT = re.compile(r"(?P<path>[^:\n]+):(?P<line>\d+):(?P<text>.*)\Z")
_NUMBERED = re.compile(r"\s*(\d+)\t(.*)\Z")
_LEVELS = (
    (4, re.compile(r"\b(FATAL|PANIC|CRITICAL|CRIT|EMERG|ALERT|SEVERE)\b|panicked at|panic:")),
    (3, re.compile(r"\b(ERROR|ERR)\b|\[error\]|level=(error|err)\b|Traceback|\bE/\w", re.IGNORECASE)),
    (2, re.compile(r"\b(WARN|WARNING)\b|\[warn(ing)?\]|level=warn", re.IGNORECASE)),
    (1, re.compile(r"\b(INFO|NOTICE|DEBUG|TRACE|VERBOSE)\b|\[(info|notice|debug)\]|level=(info|debug)")),
)
_SERVER_ERROR = re.compile(r"\b(?:GET|HEAD|POST|PUT|PATCH|DELETE) \S+(?: HTTP/[\d.]+\"?)? 5\d\d\b")
_FAILURE = re.compile(r"(Error|Exception)\b|\b(error|fail|refused|denied|fatal|exception|exhausted)", re.IGNORECASE)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?|\b\d\d:\d\d:\d\d\b")
#: What a log line begins with and says nothing of what happened.
_FRONT = re.compile(
    r"^[\s\[(<]*(?:\w{3} +\d{1,2} )?(?:\d{4}[-/]\d\d[-/]\d\d)?[T ]?(?:\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?"
    r"(?:Z|[+-]\d\d:?\d\d)?[\])>]*\s*"
)
_LEVEL_WORD = re.compile(
    r"^[\[(<]?(?:level=)?(?:FATAL|PANIC|CRITICAL|ERROR|ERR|WARNING|WARN|INFO|NOTICE|DEBUG|TRACE)[\])>:]*[\s|:-]*",
    re.IGNORECASE,
)
#: What differs between lines that say the same: quoted values, hexadecimal ids, anything with a digit in it.
_VARIES = re.compile(r"\"[^\"]*\"|'[^']*'|\b[0-9a-fA-F]{8,}\b|\b[\w-]*\d[\w.:-]*")
_NUMBER = re.compile(
    r"(?<![\w.-])(\d+(?:\.\d+)?)(?:\s?(ms|s|sec|seconds?|m|min|minutes?|h|hours?|days?|[kmg]i?b|%))?(?![\w-])"
)
MAX_TEXT = 220


class Hit(NamedTuple):
    """One line of one file."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        text = self.text.strip()
        return f"{self.path}:{self.line}: {text[:MAX_TEXT]}{'…' if len(text) > MAX_TEXT else ''}"


class Symptom(NamedTuple):
    """What a log says again and again, up to numbers and names."""

    template: str
    first: Hit
    last: Hit
    lines: int  #: how many say so
    more: bool  #: not all lines were seen: there may be more of them
    severity: int
    numbers: tuple[str, ...] = ()  #: those that hardly vary, such as a limit that is always the same


def parse_hits(text: str) -> list[Hit]:
    """The `path:line:text` lines of a search's result; all else in it is passed over."""
    hits = []
    for line in text.split("\n"):
        numbered = _NUMBERED.match(line)  # a spilled result that was read back
        if found := _HIT.match(numbered[2] if numbered else line):
            hits.append(Hit(found["path"], int(found["line"]), found["text"].strip("\r")))
    return hits


def parse_counts(text: str) -> dict[str, int]:
    """The `path:count` lines of a search's result."""
    counts = {}
    for line in text.split("\n"):
        path, _, number = line.rpartition(":")
        if path and number.isdigit():
            counts[path] = int(number)
    return counts


def parse_window(text: str) -> dict[int, str]:
    """The lines of a file by their numbers, as Read gives them."""
    return {int(found[1]): found[2] for line in text.split("\n") if (found := _NUMBERED.match(line))}


def severity(text: str) -> int:
    """4 fatal, 3 error, 2 warning, 1 said to be harmless, 0 nothing said."""
    for level, pattern in _LEVELS:
        if pattern.search(text[:120]):
            return 3 if level == 1 and _SERVER_ERROR.search(text) else level
    return 3 if _SERVER_ERROR.search(text) or _FAILURE.search(text) else 0


def message(text: str) -> str:
    """A log line without the time and level in front."""
    return _LEVEL_WORD.sub("", _FRONT.sub("", text.strip(), count=1), count=1).strip()


def template(text: str) -> str:
    """What is the same in all lines that say the same."""
    return re.sub(r"\s+", " ", _VARIES.sub("…", message(text)))[:160]


def moment(text: str) -> str:
    """The time that a line begins with; empty if none is found."""
    found = _MOMENT.search(text[:60])
    return found.group() if found else ""


def seconds(text: str) -> float | None:
    """The time that a line begins with, in seconds from some day on; None if none is found."""
    found = re.findall(r"\d+", moment(text))
    if len(found) == 3:
        found = ["1", "1", "1", *found]
    if len(found) < 5:
        return None
    year, month, day, hour, minute, *rest = map(int, found)
    days = (year * 12 + month) * 31 + day  # in order, which is all that is asked of it
    return days * 86_400.0 + hour * 3_600 + minute * 60 + (rest[0] if rest else 0)


def numbers(text: str) -> list[tuple[float, str]]:
    """The numbers that stand alone in a text, with their units as written."""
    return [(float(value), unit) for value, unit in _NUMBER.findall(text)]


def gather(hits: Iterable[Hit], *, partly: frozenset[str] = frozenset()) -> list[Symptom]:
    """Lines gathered by what they say, the gravest and most frequent first; `partly` are files not wholly seen."""
    groups: dict[tuple[str, int], list[Hit]] = {}
    for hit in hits:
        if (grave := severity(hit.text)) >= 2:
            groups.setdefault((template(hit.text), grave), []).append(hit)
    found = []
    for (said, grave), members in groups.items():
        ordered = sorted(set(members), key=lambda hit: (moment(hit.text), hit.path, hit.line))
        more = any(hit.path in partly for hit in ordered)
        found.append(Symptom(said, ordered[0], ordered[-1], len(ordered), more, grave, steady_numbers(ordered)))
    return sorted(found, key=lambda s: (-s.severity, -s.lines, s.first))


def steady_numbers(hits: list[Hit]) -> tuple[str, ...]:
    """The values that all lines of a message share; of times, the smallest if they lie within two per cent."""
    rows = [[(value, unit) for value, unit in numbers(message(hit.text))] for hit in hits[:200]]
    width = min(len(row) for row in rows)
    steady: dict[str, None] = {}
    for at in range(width if all(len(row) == width for row in rows) else 0):
        values = [row[at][0] for row in rows]
        if 1 < max(values) <= min(values) * (1.02 if rows[0][at][1] else 1):
            steady.setdefault(f"{min(values):g} {rows[0][at][1]}".strip(), None)
    return tuple(steady)
