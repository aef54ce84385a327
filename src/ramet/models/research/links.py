"""From a symptom to its source: which code writes the message, inside what, and which setting its number is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ramet.models.research.evidence import Hit, Symptom, message, seconds
from ramet.models.research.explore import TIMES, Call, defined_name, grep
from ramet.models.research.findings import Findings
from ramet.models.research.parts import kind_of
from ramet.models.research.question import Question, any_of, escaped
from ramet.models.research.settings import Setting, differing, exceeded_by, fitting, read_setting

MAX_SYMPTOMS = 8
MAX_WINDOWS = 8
_LOGGER = re.compile(r"^[\[(]?[A-Za-z_][\w./-]*[\])]?:\s+")
_CAMEL = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b")
_SNAKE = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_QUOTED = re.compile(r"\"([^\"\s]{3,60})\"|'([^'\s]{3,60})'")
_HOST = re.compile(r"\b[a-zA-Z][\w-]*(?:\.[a-zA-Z][\w-]*)+\b|\b(?<==)[A-Za-z][\w.-]{3,}")
_OPENS = re.compile(r"(:|\{|=>|\bdo|\bthen|\|[\w, ]*\|)\s*(#.*|//.*)?$")
_DEFINED = re.compile(
    r"\b(?:def|fn|func|function|sub)\s+(?:\([^)]*\)\s*)?(\w+)|^\s*(?:public|private|static).*?(\w+)\("
)
_NOT_CODE = re.compile(r"^\s*(#|//|\*|--|/\*|\"\"\"|import\b|from\b.*\bimport\b|use\b|require\b)")
_COMMENT = re.compile(r"^\s*(#|//|\*|--|/\*|\"\"\")")


class Origin(NamedTuple):
    """Where a message comes from in the code."""

    hit: Hit
    inside: tuple[Hit, ...] = ()  #: what the line stands in, from the inside out


class Linked(NamedTuple):
    """A symptom with what it leads to."""

    symptom: Symptom
    origins: tuple[Origin, ...]
    settings: tuple[Setting, ...]
    mentions: tuple[Hit, ...]  #: lines beside the logs that name the same hosts, types or errors
    score: float
    before: bool  #: the logs said so long before the worst of them began


def words_of(symptom: Symptom) -> tuple[list[str], list[str]]:
    """What to search beside the logs: stretches of the message that code would hold as they are, and names in it."""
    text = _LOGGER.sub("", symptom.template)
    pieces = [piece.strip(" .,;()[]-=/:") for run in text.split("…") for piece in (run, *re.split(r": |; | - ", run))]
    phrases = [p for p in dict.fromkeys(pieces) if len(p) >= 8 and (" " in p or _CAMEL.fullmatch(p))]
    said = message(symptom.first.text)
    names = [*_CAMEL.findall(said), *_SNAKE.findall(_LOGGER.sub("", said)), *_HOST.findall(_LOGGER.sub("", said))]
    names += [next(filter(None, found)) for found in _QUOTED.findall(said)]
    names = [name for name in dict.fromkeys(names) if len(name) > 4 and not name.endswith((".log", ".py", ".rs"))]
    return sorted(phrases, key=len, reverse=True)[:4], names[:6]


def prominent(question: Question, symptoms: Sequence[Symptom]) -> list[Symptom]:
    """The symptoms worth following, the most telling first; what was there long before the others comes last."""
    ranked = sorted(symptoms, key=lambda each: (-_weight(question, each, symptoms), each.first))
    if not ranked:
        return []
    before = earlier(ranked[0], symptoms)
    return [*(s for s in ranked if s not in before), *(s for s in ranked if s in before)][:MAX_SYMPTOMS]


def earlier(main: Symptom, symptoms: Sequence[Symptom]) -> list[Symptom]:
    """What the logs already said well before they began to say `main`: by more than a tenth of the time they cover."""
    times = {each: (seconds(each.first.text), seconds(each.last.text)) for each in symptoms}
    known = [at for pair in times.values() for at in pair if at is not None]
    onset = times[main][0]
    if onset is None:
        return []
    margin = (max(known) - min(known)) / 10
    return [each for each, (first, _) in times.items() if first is not None and first < onset - margin]


def _weight(question: Question, symptom: Symptom, symptoms: Sequence[Symptom]) -> float:
    weight = {4: 8.0, 3: 5.0, 2: 3.5}.get(symptom.severity, 0.0) + 1.3 * math.log2(symptom.lines + 1)
    for term in question.terms:  # a word that is in every message tells none from another
        share = sum(term in each.first.text.lower() for each in symptoms) / len(symptoms)
        weight += 2 * (1 - share) * (term in symptom.first.text.lower())
    return weight


def linking(question: Question, found: Findings, others: bool) -> list[Call]:
    """Searches beside the logs for what the logs say, and for the settings that could be behind it."""
    calls: list[Call] = []
    beside = {"glob": "!*.{log,out,err}"}
    chosen = prominent(question, found.symptoms) if question.kind == "fault" or not found.definitions else []
    for symptom in chosen if others else ():
        phrases, names = words_of(symptom)
        if phrases or names:
            calls.append(grep(any_of([*phrases, *names]), head_limit=40, **beside))
    keys = {each.key for symptom in chosen for _, each in fitting(symptom, settings_of(found))}
    if question.kind != "fault":
        keys |= {defined_name(hit) for hit in found.definitions[:4]}
    keys = {key for key in keys if len(key) > 3 and not key.startswith("__")}
    if keys and others:
        calls.append(grep(rf"\b({'|'.join(sorted(map(escaped, keys))[:12])})\b", head_limit=60, **beside))
    if any(setting.ms for setting in settings_of(found)):
        calls.append(grep(r"\bp99(\b|_)", head_limit=20))
        calls.append(grep(TIMES, head_limit=40, **beside))
    return calls


def settings_of(found: Findings) -> list[Setting]:
    """The settings that were found, with their sections."""
    pairs = ((read_setting(hit), sections) for hit, sections in found.settings)
    return [setting._replace(sections=sections) for setting, sections in pairs if setting is not None]


def origins(symptom: Symptom, hits: Sequence[Hit]) -> list[Hit]:
    """The lines of code most likely to write this message: those that hold most of its words as they are."""
    phrases, _ = words_of(symptom)
    scored = []
    for hit in dict.fromkeys(hits):
        text = hit.text.lower()
        held = [phrase for phrase in phrases if phrase.lower() in text]
        size = sum(len(p) for p in held if not any(p != other and p in other for other in held))
        if size and kind_of(hit.path) == "source" and not _NOT_CODE.match(hit.text):
            scored.append((-size - 6 * _is_module(symptom, hit.path), hit))
    scored.sort()
    return [hit for score, hit in scored if score <= scored[0][0] * 0.9][:2]


def _is_module(symptom: Symptom, path: str) -> bool:
    """Whether the logger's name is this file's."""
    logger = _LOGGER.match(symptom.template)
    name = logger.group().strip("[]():; ").replace(".", "/") if logger else ""
    return bool(name) and path.rpartition(".")[0].endswith(name)


def inside(hit: Hit, window: Mapping[int, str]) -> tuple[Hit, ...]:
    """The headings of the blocks that a line stands in: less and less indented, ending in a colon or brace."""
    if hit.line not in window:
        return ()
    found: list[Hit] = []
    depth = _indent(window[hit.line])
    for at in range(hit.line - 1, min(window) - 1, -1):
        text = window.get(at, "")
        if not text.strip() or _indent(text) >= depth or _COMMENT.match(text):
            continue
        depth = _indent(text)
        if _OPENS.search(text) and text.strip() not in ("{", "} else {", "else:", "try:"):
            found.append(Hit(hit.path, at, text))
        if not depth or len(found) >= 6:
            break
    return tuple(found)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def windows_wanted(question: Question, found: Findings, hits: Sequence[Hit], files: frozenset[str]) -> list[Call]:
    """Reads of the code around the places that matter."""
    places: dict[tuple[str, int], None] = {}
    for symptom in prominent(question, found.symptoms):
        for hit in origins(symptom, hits):
            places.setdefault((hit.path, hit.line), None)
    for path, line in found.places:
        if real := resolve(path, files):
            places.setdefault((real, line), None)
    if not places or question.kind != "fault":
        for hit in [*found.definitions[:4], *found.mentions[:2]]:
            places.setdefault((hit.path, hit.line), None)
    calls: list[Call] = []
    taken: list[tuple[str, int]] = []
    for path, line in places:
        if not any(path == other and abs(line - at) < 30 for other, at in taken):
            taken.append((path, line))
            calls.append(Call("Read", {"file_path": path, "offset": max(1, line - 60), "limit": 100}))
    return calls[:MAX_WINDOWS]


def resolve(path: str, files: frozenset[str]) -> str | None:
    """The file of this folder that a log means: it knows another directory above it, or only the name."""
    parts = path.lstrip("./").split("/")
    for start in range(len(parts)):
        tail = "/".join(parts[start:])
        found = [each for each in files if each == tail or each.endswith("/" + tail)]
        if len(found) == 1:
            return found[0]
    return None


def link(
    question: Question, found: Findings, hits: Sequence[Hit], windows: Mapping[str, Mapping[int, str]]
) -> list[Linked]:
    """Each prominent symptom with its origins and settings, those that lead furthest first."""
    settings = settings_of(found)
    chosen = prominent(question, found.symptoms)
    fits = {symptom: fitting(symptom, settings) for symptom in chosen}
    weight: dict[str, int] = {}
    for score, setting in (pair for pairs in fits.values() for pair in pairs):
        weight[setting.hit.path] = weight.get(setting.hit.path, 0) + score
    before = earlier(chosen[0], found.symptoms) if chosen else []
    result = []
    for rank, symptom in enumerate(chosen):
        come_from = tuple(Origin(hit, inside(hit, windows.get(hit.path, {}))) for hit in origins(symptom, hits))
        # Of several files with the same number, such as one for each environment, the one that explains most.
        most = max((weight[setting.hit.path] for _, setting in fits[symptom]), default=0)
        bear = tuple(setting for _, setting in fits[symptom] if weight[setting.hit.path] == most)[:3]
        _, names = words_of(symptom)
        at = {origin.hit for origin in come_from}
        others = [h for h in dict.fromkeys(hits) if h not in at and any(name in h.text for name in names)]
        worth = len(chosen) - rank + 2.0 * bool(come_from) + 2.0 * bool(bear)
        result.append(Linked(symptom, come_from, bear, tuple(others[:4]), worth, symptom in before))
    return sorted(result, key=lambda each: (each.before, -each.score))


def calls_between(linked: Sequence[Linked]) -> list[tuple[Linked, Hit, Linked, Hit]]:
    """Pairs where the code around one symptom calls the function that writes the other: (caller, call, other, def)."""
    found: dict[tuple[Hit, Hit], tuple[Linked, Hit, Linked, Hit]] = {}
    for other in linked:
        for origin in other.origins:
            heads = [(hit, _DEFINED.search(hit.text)) for hit in origin.inside]
            named = next(((hit, m[1] or m[2]) for hit, m in heads if m), None)
            if named is None or len(named[1]) < 4:
                continue
            call = re.compile(rf"\b{re.escape(named[1])}\s*\(")
            for caller in linked:
                for hit in (h for o in caller.origins for h in o.inside if o.hit.path != origin.hit.path):
                    if caller is not other and call.search(hit.text) and not _DEFINED.search(hit.text):
                        found.setdefault((hit, named[0]), (caller, hit, other, named[0]))
    return list(found.values())


def contradictions(settings: Sequence[Setting], times: Sequence[Hit]) -> list[tuple[Setting, Hit, float]]:
    """Time limits with a line about the same thing that speaks of a longer time: the longest for each."""
    found = []
    for setting in dict.fromkeys(settings):
        longer = exceeded_by(setting, times)
        documents = [pair for pair in longer if kind_of(pair[1].path) == "docs"]
        for ms, hit in [*documents[-1:], *[p for p in longer if p not in documents][-1:]]:
            found.append((setting, hit, ms))
    return found


def disagreements(question: Question, settings: Sequence[Setting], about: Sequence[Setting]) -> list[list[Setting]]:
    """Settings of one name that differ between files, where they bear on the question."""
    names = {setting.name.lower() for setting in about}
    groups = differing(settings)
    return [g for g in groups if g[0].name.lower() in names or question.weight(" ".join(map(str, g[0][:3])))][:6]
