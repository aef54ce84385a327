"""Settings in files and in code: names, values, and which of them are equal or contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ramet.models.research.evidence import EvidenceLine, message

_WHOLE = re.compile(
    r"""\s*+(?:-\s++|export\s++|ENV\s++|ARG\s++)?["']?(?P<key>[A-Za-z_][\w.-]*+)["']?\s*(?:=>|:=|=|:|\s(?=["'\d]))\s*"""
    r"""(?P<value>[^=\s{\[(].{0,59}?)[,;]?\s*(?:\s#.*)?$"""
)
_LITERAL = re.compile(
    r"""(?<![\w.$-])["']?(?P<key>[A-Za-z_][\w.-]*)["']?\s*(?::[\w\[\]<>&|' .\t]+(?==))?(?::=|=>|=|:)(?![=>])\s*"""
    r"""(?P<value>"[^"]{0,60}"|'[^']{0,60}'|-?\d[\w.]*%?|(?i:true|false)\b)(?=\s*(?:[,;)}\]#]|//|$))"""
)
_HEADING = re.compile(
    r"""\s*+(?:\[++([^\[\]]++)\]++\s*+|(?:-\s++)?+["']?([\w .-]*?\w)["']?\s*(?::|=|=>)\s*(?:[{\[(]\s*)?)(?:#.*)?$"""
)
READS = re.compile(
    r"""(?i:env|environ|config|conf|cfg|settings|options|props)(?:\.get\w*)?\s*[(\[]\s*["']([\w.-]+)["']|"""
    r"""process\.env\.(\w+)|\b(?:settings|config|cfg)\.([a-z_]\w*)\b(?!\s*[(=])"""
)
TIMES = r"\d+ ?(ms|s|sec|seconds|min|minutes|h|hours|days)\b"
_NUMBER = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)(?:\s?(ms|s|secs?|seconds?|min|minutes?|h|hours?|days?))?(?!\.?[\w-])")
_UNITS = {1: "ms millis milliseconds", 1_000: "s sec secs second seconds", 60_000: "m min mins minute minutes"}
_UNITS |= {3_600_000: "h hour hours", 86_400_000: "d day days"}
_MS = {unit: float(ms) for ms, units in _UNITS.items() for unit in units.split()}
_FILLER = frozenset("default config settings setting app application spring options option env the self".split())
#: Words that link nothing by themselves, because many settings contain them.
_COMMON = frozenset(
    "timeout max min limit size count number request connect read write http api time after before no".split()
) | {*_MS}
#: Names that every place has separately.
_LOCAL_NAMES = frozenset("name type id key value version title description kind path label image file dir".split())


class Setting(NamedTuple):
    """A name with its value, and the line that sets it."""

    line: EvidenceLine
    name: str  #: with the headings above
    key: str  #: without them
    value: str

    @property
    def unit(self) -> str:
        """Return the unit of time at the end of the key, or ""."""
        match = re.search(r"(?<=[a-z])[_.-]?([A-Z]?[a-z]+)\Z|_([A-Z]+)\Z", self.key)
        suffix = "".join(match.groups("")).lower() if match else ""
        return suffix if suffix in _MS else ""

    @property
    def name_words(self) -> frozenset[str]:
        """Return the words of the name, without its unit and without filler words."""
        return split_words(self.name) - _FILLER - {self.unit}

    @property
    def measure(self) -> tuple[str, float | str]:
        """Return the value to compare: in milliseconds, as a number without a unit, or as text."""
        text = self.value.strip("\"'")
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.replace("_", ""))
        unit = (match[2].lower() or self.unit) if match else "text"
        if not match or (unit and unit not in _MS):
            return "text", text
        return "ms" if unit else "number", float(match[1]) * _MS.get(unit, 1)

    def cite(self) -> str:
        return f"`{self.name}` = {self.value} ({self.line.cite()})"


def split_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case; identifiers are split into words."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))


def settings_on(line: EvidenceLine) -> list[Setting]:
    """Return the settings on a line: of code, only those with a literal value."""
    full_match = _WHOLE.match(line.text) if line.kind == "settings" else None
    settings = []
    for each in (
        [full_match] if full_match else _LITERAL.finditer(line.text) if line.kind in ("settings", "source") else ()
    ):
        is_paired = each["key"] == "value" and bool(line.section)  # of a list of names with values
        name = line.section if is_paired else ".".join(filter(None, (line.section, each["key"])))
        settings.append(Setting(line, name, name if is_paired else each["key"], each["value"]))
    return settings


def with_sections(lines: Sequence[EvidenceLine]) -> list[EvidenceLine]:
    """Return the lines of a settings file, each with the headings above it, by indentation or brackets."""
    headings, result = list[tuple[int, str]](), list[EvidenceLine]()
    for line in lines:
        text, indent = line.text.strip(), len(line.text) - len(line.text.lstrip())
        if text and not text.startswith(("#", "//", ";")):
            headings = [each for each in headings if each[0] < indent]
            pair = re.fullmatch(r"-\s+name:\s*(\S+)", result[-1].text.strip()) if result else None
            section = pair[1] if pair and text.startswith("value:") else ".".join(name for _, name in headings)
            result.append(line._replace(section=section))
            if heading := _HEADING.match(line.text):
                headings = [(-1, heading[1].strip())] if heading[1] else [*headings, (indent, heading[2])]
    return result


def compare(settings: Iterable[Setting]) -> list[list[Setting]]:
    """Return groups of settings of one name in several files, with equal or contradicting values.

    Code contributes its constants, and any value whose name a settings file has. A bare name in code matches a name
    under a heading only if exactly one heading has it. Values with and without a unit are not compared.
    """
    full = {each for each in settings if each.name_words - _LOCAL_NAMES}
    words_by_setting = {
        each.name_words: split_words(each.key) - _FILLER - {each.unit} for each in full if each.line.kind == "settings"
    }
    groups: dict[tuple[frozenset[str], str], dict[tuple[str, object], Setting]] = {}
    for each in sorted(full):
        same = (
            [name for name, key in words_by_setting.items() if key == each.name_words]
            if each.line.kind == "source"
            else []
        )
        name = same[0] if len(same) == 1 and each.name_words not in words_by_setting else each.name_words
        if name in words_by_setting or each.key.isupper():
            groups.setdefault((name, each.measure[0]), {}).setdefault((each.line.path, each.measure), each)
    return [list(group.values()) for group in groups.values() if len({path for path, _ in group}) > 1]


def find_renamed_keys(lines: Iterable[EvidenceLine], settings: Iterable[Setting]) -> list[str]:
    """Return names that code reads and no settings file sets, with a similar setting that no code names."""
    code, notes = [line for line in lines if line.kind == "source"], dict[str, str]()
    code_words = {word.lower() for line in code for word in re.findall(r"[\w-]+", line.text)}
    settings_by_key = {each.key.lower(): each for each in settings if each.line.kind == "settings"}
    for line, key in [(each, key) for each in code for key in map("".join, READS.findall(each.text))]:
        similar = [
            s
            for at, s in settings_by_key.items()
            if split_words(s.key) & split_words(key) - _FILLER - _LOCAL_NAMES and at not in code_words
        ]
        if similar and key.lower() not in settings_by_key:
            text = f"code reads `{key}`, which no settings file that was read sets: {line.cite()}; no code that was"
            notes.setdefault(key, f"{text} searched names {similar[0].cite()}")
    return list(notes.values())


def values_shared(line: EvidenceLine, settings: Iterable[Setting]) -> list[tuple[str, Setting]]:
    """Return the settings whose value a log line states, or slightly exceeds, with the shared part."""
    links, text = dict[tuple[str, Setting], None](), message(line.text)
    for setting in settings:
        kind, value = setting.measure
        alike = split_words(text.replace("timed out", "timeout")) & split_words(setting.name) - (_COMMON - {"timeout"})
        if isinstance(value, str):
            if len(value) > 4 and re.search(rf"(?<![\w.]){re.escape(value)}(?![\w])", text):
                links["the same text", setting] = None
            continue
        for number, unit in _NUMBER.findall(text):
            is_duration = unit and kind == "ms"
            log_value = float(number) * (_MS[unit] if is_duration else _MS.get(setting.unit, 1))
            if log_value == value and (
                is_duration or (alike and float(number) > 1) or (not unit and float(number) >= 1_000)
            ):
                vague = " (the setting states no unit)" if unit and not is_duration else ""
                links[f"the same number, {number} {unit}".strip() + vague, setting] = None
            elif is_duration and alike and value < log_value <= value * 1.02:
                links[f"{number} {unit} is at most 2 % more", setting] = None
    return list(links)


def longer_times(setting: Setting, lines: Iterable[EvidenceLine]) -> list[str]:
    """Return lines of documents that share a word with a setting's name and state a longer time."""
    kind, value = setting.measure
    notes, limit = [], float(value) if kind == "ms" else 0.0
    for line in lines if limit else ():
        times = [(float(number) * _MS[unit], f"{number} {unit}") for number, unit in _NUMBER.findall(line.text) if unit]
        if line.kind == "docs" and split_words(setting.name) - _COMMON & split_words(f"{line.path} {line.text}"):
            longest, duration = max(times, default=(0.0, ""))
            notes += [f"{duration} in {line.cite()}: longer than {setting.cite()}"] * (limit < longest <= 20 * limit)
    return notes
