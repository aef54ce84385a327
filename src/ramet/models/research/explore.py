"""What to search in a part of a folder, and what the results amount to. The same for a scout and for one alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ramet.models.research.evidence import Hit, gather, parse_counts, parse_hits, parse_window
from ramet.models.research.findings import Findings
from ramet.models.research.history import Turn
from ramet.models.research.parts import Part, kind_of
from ramet.models.research.question import FAULT, Question
from ramet.models.research.settings import KEYS, Setting, read_setting

_BEFORE = "export|pub|pub\\([a-z]+\\)|public|private|protected|static|final|abstract|async|default|unsafe|inline"
_KEYWORDS = (
    "def|class|function|func|fn|struct|enum|trait|impl|interface|type|module|mod|package|macro_rules!|const|let|var|sub|"
    "proc|object|record|create (table|index|view|function|unique index)"
)
DEFINES = rf"^\s*(({_BEFORE}) )*({_KEYWORDS})\b"
TIMES = (
    r"\bp(50|9[059]|999)(\b|_)|\blatenc|\b(within|took|takes?|takes up to|elapsed|duration|response time)\b.{0,30}\d+ ?"
    r"(ms|s|sec|seconds|min|minutes)\b"
)
_PLACE = re.compile(r"([\w./\\-]*\w\.[A-Za-z]\w{0,4})[\",:(]{1,2}\s?(?:line )?(\d{1,6})\b")
_TOP = re.compile(r"\d{1,2}:\d\d")
QUOTE = "[\"']"
WORD = "[\\w\"'.-]"
SAMPLE = 150
MAX_SETTINGS_READ = 5


class Call(NamedTuple):
    """A tool call that is wanted."""

    tool: str
    args: dict[str, Any]  # Any: JSON, as the tool takes it


def grep(pattern: str, **more: Any) -> Call:
    """A search for lines, without regard to case."""
    return Call("Grep", {"pattern": pattern, "output_mode": "content", "-i": True, **more})


def counting(question: Question, parts: Sequence[Part]) -> list[Call]:
    """First, where the complaints are: how many in each log."""
    return [
        grep(FAULT, output_mode="count", glob=glob, head_limit=0)
        for part in parts
        if part.kind == "logs"
        for glob in part.patterns()
    ]


def looking(question: Question, parts: Sequence[Part], counted: Iterable[str]) -> list[Call]:
    """Then, the lines themselves; of a long log, its beginning, its middle and its end."""
    calls: list[Call] = []
    counts: dict[str, int] = {}
    for text in counted:
        counts |= parse_counts(text)
    for path, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:6]:
        offsets = (0,) if count <= 2 * SAMPLE else (0, (count - SAMPLE) // 2, count - SAMPLE)
        size = count if count <= 2 * SAMPLE else SAMPLE
        calls += [grep(FAULT, path=path, head_limit=size, offset=offset) for offset in offsets]
    for part in parts:
        for glob in part.patterns():
            calls += _looking_into(question, part.kind, glob)
    return calls[:24]


def _looking_into(question: Question, kind: str, glob: str) -> list[Call]:
    calls = []
    if question.terms and not (kind == "logs" and question.kind == "fault"):
        # Results come in the order of paths: what matches well must not wait behind what merely matches.
        patterns = filter(None, (question.pairs, question.pattern))
        calls += [grep(pattern, glob=glob, head_limit=120) for pattern in patterns]
    if kind == "settings":
        calls.append(grep(rf"^\s*{WORD}*{KEYS}{WORD}*\s*[:=]|^\s*- \w+:|^(ENV|ARG) ", glob=glob, head_limit=250))
    if kind in ("source", "any"):
        if question.terms:
            calls.append(grep(f"{DEFINES}.*({question.pattern})", glob=glob, head_limit=60))
        calls.append(grep(rf"^\s*({WORD}|[ :])*{KEYS}{WORD}*\s*[:=]\s*({QUOTE}|\d)[^()]*$", glob=glob, head_limit=120))
    if kind == "docs":
        calls.append(grep(TIMES, glob=glob, head_limit=40))
    return calls


def reading(question: Question, found: Findings) -> list[Call]:
    """Then, the files of settings: only whole do they say which section a key stands in."""
    weights: dict[str, int] = {}
    for hit, _ in found.settings:
        weights[hit.path] = weights.get(hit.path, 0) + 1 + 3 * question.weight(f"{hit.path} {hit.text}")
    best = sorted(weights, key=lambda path: (-weights[path], path))[:MAX_SETTINGS_READ]
    return [Call("Read", {"file_path": path, "limit": 500}) for path in best if kind_of(path) == "settings"]


def findings(question: Question, turn: Turn) -> Findings:
    """What the searches so far amount to."""
    looked = [each for each in turn.of("look") if not each.failed]
    whole = {each.args["file_path"]: parse_window(each.text) for each in turn.of("read") if not each.failed}
    found = Findings()
    partly = frozenset(str(each.args["path"]) for each in looked if each.args.get("offset"))
    logged = [hit for each in looked for hit in parse_hits(each.text) if kind_of(hit.path) == "logs"]
    found.symptoms = gather(logged, partly=partly)[:30]
    found.places = _places(logged)
    seen: set[Hit] = set()
    for each in looked:
        for hit in parse_hits(each.text):
            if kind_of(hit.path) != "logs" or question.kind != "fault":
                _sort_in(question, hit, found, whole, seen)
    rank(question, found)
    return found


def rank(question: Question, found: Findings) -> None:
    """Put the best of each kind first."""
    found.symptoms.sort(key=lambda s: (-s.severity, -s.lines, s.first))
    found.definitions.sort(key=lambda hit: (-_closeness(question, hit), hit.path, hit.line))
    found.mentions.sort(key=lambda hit: (-_telling(question, hit), kind_of(hit.path) == "logs", hit.path, hit.line))
    found.settings.sort(key=lambda pair: (-question.weight(f"{pair[0].text} {pair[1]}"), pair[0].path, pair[0].line))


def defined_name(hit: Hit) -> str:
    """What a line defines, if it defines anything."""
    found = re.match(rf"{DEFINES}\s+(?:if not exists\s+)?(?:\([^)]*\)\s*)?[\"`]?(\w+)", hit.text, re.IGNORECASE)
    return found.groups()[-1] or "" if found else ""


def _closeness(question: Question, hit: Hit) -> float:
    """How well a definition fits: its name counts most, then the file's, then the rest of the line."""
    stem = "/".join(hit.path.split("/")[-2:])
    aside = "test" in hit.path and "test" not in question.terms
    return 3 * question.weight(defined_name(hit)) + 2 * question.weight(stem) + question.weight(hit.text) - 3 * aside


def _telling(question: Question, hit: Hit) -> float:
    trouble = question.kind == "fault" and re.search(FAULT, hit.text, re.IGNORECASE) is not None
    return question.weight(hit.text) + 0.5 * trouble + 0.3 * question.weight(hit.path)


def _sort_in(
    question: Question, hit: Hit, found: Findings, whole: Mapping[str, Mapping[int, str]], seen: set[Hit]
) -> None:
    if hit in seen:
        return
    seen.add(hit)
    kind = kind_of(hit.path)
    if kind == "source" and re.match(DEFINES, hit.text, re.IGNORECASE) and question.weight(hit.text):
        found.definitions.append(hit)
    elif kind == "docs" and re.search(TIMES, hit.text, re.IGNORECASE):
        found.times.append(hit)
    elif (setting := _setting(kind, hit, whole)) is not None:
        found.settings.append((hit, setting.sections))
    elif question.weight(hit.text):
        found.mentions.append(hit)


def _setting(kind: str, hit: Hit, whole: Mapping[str, Mapping[int, str]]) -> Setting | None:
    """The setting on a line, if its file is one of settings; in source, only if its value stands there as it is."""
    if kind not in ("settings", "source"):
        return None
    setting = read_setting(hit, whole.get(hit.path))
    return setting if setting is None or kind == "settings" or setting.is_literal else None


def _places(hits: Iterable[Hit]) -> dict[tuple[str, int], int]:
    """Files and lines that log lines name, as tracebacks and panics do."""
    counts: dict[tuple[str, int], int] = {}
    for hit in hits:
        for path, line in _PLACE.findall(hit.text):
            if not _TOP.fullmatch(f"{path}:{line}"):
                place = (path.replace("\\", "/"), int(line))
                counts[place] = counts.get(place, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:30])
