"""Settings as they stand in files: a key, its value, the sections around it, and what its number means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ramet.models.research.evidence import Hit, Symptom, message, numbers
from ramet.models.research.parts import kind_of

_PAIR = re.compile(
    r"""^\s*(?:-\s+|export\s+|set\s+|const\s+|(?:pub\s+)?static\s+|ENV\s+|ARG\s+)?["']?(?P<key>[A-Za-z_][\w.-]*)["']?"""
    r"""(?:\s*:\s*[&'\w<>\[\], ]+?(?=\s=\s))?\s*(?:=>|:=|=|:|\s(?=["'\d]))\s*"""
    r"""(?P<value>[^=\s{\[(].*?)[,;]?\s*(?:\s#.*)?$"""
)
_SECTION = re.compile(
    r"""^\s*(?:\[+(?P<table>[^\]]+)\]+|["']?(?P<name>[A-Za-z_][\w .-]*?)["']?\s*(?::|=|=>|\s)\s*[{\[(]?)\s*$"""
)
_QUANTITY = re.compile(r"""^["']?(\d+(?:\.\d+)?)\s*([A-Za-z%]*)["']?$""")
_LITERAL = re.compile(r"""-?\d[\w.]*%?$|"[^"]*"$|'[^']*'$|(?:true|false|none|null|nil)$""", re.IGNORECASE)
_UNIT_IN_KEY = re.compile(
    r"[_.-](ms|millis|milliseconds|s|secs?|seconds?|mins?|minutes?|hours?|days?)$|"
    r"(?<=[a-z])(Ms|Millis|Milliseconds|Secs?|Seconds?|Mins?|Minutes?|Hours?|Days?)$"
)
_MS = {
    **dict.fromkeys(("ms", "millis", "milliseconds", "msec"), 1.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000.0),
    **dict.fromkeys(("d", "day", "days"), 86_400_000.0),
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Words that many settings have, and that therefore link none.
COMMON = frozenset(
    "timeout timeouts ms s sec seconds max min limit limits size count number interval read write connect request "
    "value default config settings enabled the a of in to for and by on is at ttl age time delay wait url host port "
    "name".split()
)
#: What the keys of interesting settings hold. For a search, without regard to case.
KEYS = (
    r"(time_?out|deadline|ttl|retr|attempt|backoff|pool|limit|max|min|size|interval|period|host|port|url|uri|dsn|"
    r"endpoint|address|server|database|db|broker|region|bucket|queue|threads?|workers?|concurren|buffer|batch|expir|max_?age|"
    r"level|mode|enabled|debug|version|image|replicas|memory|cpu|path|dir|user|schema|cache|lock|window|threshold|rate)"
)


class Setting(NamedTuple):
    """A key and its value at one line."""

    hit: Hit
    key: str
    value: str
    sections: tuple[str, ...] = ()  #: what it stands in, from the outside in

    @property
    def name(self) -> str:
        """The key with its sections, to compare it between files."""
        return ".".join((*self.sections, self.key))

    @property
    def is_literal(self) -> bool:
        """Whether the value is a number or a text, and not something to be worked out."""
        return bool(_LITERAL.match(self.value))

    @property
    def words(self) -> set[str]:
        """The words of the key and of its sections."""
        return words(self.name)

    @property
    def number(self) -> float | None:
        """Its value as a number, if it is one."""
        found = _QUANTITY.match(self.value)
        return float(found[1]) if found else None

    @property
    def ms(self) -> float | None:
        """Its value in milliseconds, if it is a time that names its unit."""
        found = _QUANTITY.match(self.value)
        if not found:
            return None
        in_key = _UNIT_IN_KEY.search(self.key)
        unit = (found[2] or (in_key[1] or in_key[2] if in_key else "")).lower()
        return float(found[1]) * _MS[unit] if unit in _MS else None


def words(text: str) -> set[str]:
    """The words of a text, identifiers taken apart, in the singular as far as an `s` tells."""
    return {word.lower().removesuffix("s") if len(word) > 3 else word.lower() for word in _WORD.findall(text)}


def read_setting(hit: Hit, window: Mapping[int, str] | None = None) -> Setting | None:
    """The setting on a line, with its sections if the lines above are known; None if it holds none."""
    found = _PAIR.match(hit.text)
    if not found or len(found["value"]) > 160:
        return None
    sections = _sections(hit.line, window) if window and hit.line in window else ()
    return Setting(hit, found["key"], found["value"].strip(), sections)


def _sections(line: int, window: Mapping[int, str]) -> tuple[str, ...]:
    """The headings above a line: of less indentation, or in brackets as in INI and TOML."""
    found: list[str] = []
    indent = _indent(window[line])
    for at in range(line - 1, max(0, line - 400), -1):
        text = window.get(at, "")
        heading = _SECTION.match(text)
        if heading is None or text.lstrip().startswith(("#", "//")):
            continue
        if heading["table"]:
            return (heading["table"].strip(), *found)
        if _indent(text) < indent:
            found.insert(0, heading["name"])
            indent = _indent(text)
    return tuple(found)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def fitting(symptom: Symptom, settings: Iterable[Setting]) -> list[tuple[int, Setting]]:
    """Settings whose number a symptom always shows, or that its number lies just above: a limit that is hit.

    With each, how much speaks for it; of one file, for one number, only the settings for which most does.
    """
    said = words(message(symptom.first.text))
    found: dict[Setting, int] = {}
    for written in symptom.numbers:
        ((value, unit),) = numbers(written) or [(0.0, "")]
        best: dict[str, list[tuple[int, Setting]]] = {}
        for setting in settings:
            shared = len(said & (setting.words - COMMON)) + len(said & words(setting.key) - {"ms", "s"})
            if _is_number_of(setting, value, unit, shared):
                best.setdefault(setting.hit.path, []).append((1 + shared, setting))
        for fits in best.values():
            most = max(score for score, _ in fits)
            found |= {setting: score for score, setting in fits if score == most and len(fits) <= 8}
    return [(score, setting) for setting, score in found.items()]


def _is_number_of(setting: Setting, value: float, unit: str, shared: int) -> bool:
    if setting.number is None:
        return False
    if unit in _MS and setting.ms is not None:
        ms = value * _MS[unit]
        return setting.ms <= ms <= setting.ms * 1.02 and (shared > 0 or bool(ms % 60_000))
    return unit not in _MS and setting.ms is None and setting.number == value and shared > 0


def times_in(hit: Hit) -> list[float]:
    """The times that a line speaks of, in milliseconds; of percentiles, only the highest."""
    text = hit.text
    found = [value * _MS[unit] for value, unit in numbers(text) if unit in _MS]
    found += [float(value) for value in re.findall(r"\bp99\w*_ms[=:]\s*(\d+(?:\.\d+)?)", text)]
    return found


def exceeded_by(setting: Setting, hits: Iterable[Hit]) -> list[tuple[float, Hit]]:
    """Lines about the same thing that speak of longer times than a time limit allows, the longest last."""
    limit, about = setting.ms, setting.words - COMMON
    found = []
    for hit in hits:
        if limit is None or hit.path == setting.hit.path or not about & words(f"{hit.path} {hit.text}"):
            continue
        longer = [ms for ms in times_in(hit) if limit < ms <= limit * 20]
        if longer:
            found.append((max(longer), hit))
    return sorted(found, key=lambda pair: pair[0])


def differing(settings: Iterable[Setting]) -> list[list[Setting]]:
    """Settings of one name with several values in several files."""
    by_name: dict[str, dict[str, Setting]] = {}
    for setting in settings:
        if kind_of(setting.hit.path) == "settings":
            by_name.setdefault(setting.name.lower(), {}).setdefault(setting.hit.path, setting)
    groups = [list(files.values()) for files in by_name.values()]
    return [group for group in groups if len({each.value.strip("\"'") for each in group}) > 1]
