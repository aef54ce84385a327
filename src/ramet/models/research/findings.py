"""What a scout found, as the text of its report, and read back from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ramet.models.research.evidence import Hit, Symptom, moment, template

_HIT = re.compile(r"- (?:\[(?P<severity>\d)\] )?(?P<path>[^:]+):(?P<line>\d+): (?P<text>.*)\Z")
_SAID = re.compile(
    r"  (?P<more>at least )?(?P<lines>\d+) ×, last (?P<last>[^:]+):(?P<last_line>\d+)(?: at (?P<until>[^;]*))?"
    r"(?:; steady: (?P<steady>.*))?\Z"
)
_IN = re.compile(r"  in (.+)\Z")
_PLACE = re.compile(r"- (?P<path>[^:]+):(?P<line>\d+) \(×(?P<count>\d+)\)\Z")
_TITLES = {
    "symptoms": "What the logs complain about, by what it says",
    "settings": "Settings",
    "definitions": "Definitions",
    "mentions": "Mentions",
    "times": "Times",
    "places": "Places that the logs name",
}
_BY_TITLE = {title: name for name, title in _TITLES.items()}
MAX_LINES = 40


@dataclass(kw_only=True)
class Findings:
    """Evidence of one kind each, the best first."""

    symptoms: list[Symptom] = field(default_factory=list)
    settings: list[tuple[Hit, tuple[str, ...]]] = field(default_factory=list)  #: with the sections around them
    definitions: list[Hit] = field(default_factory=list)
    mentions: list[Hit] = field(default_factory=list)
    times: list[Hit] = field(default_factory=list)  #: lines that speak of how long something takes
    places: dict[tuple[str, int], int] = field(default_factory=dict)  #: lines of code that logs name, and how often

    def add(self, other: Findings) -> None:
        """Take in what another found."""
        self.symptoms += [each for each in other.symptoms if each not in self.symptoms]
        self.settings += [each for each in other.settings if each[0] not in {hit for hit, _ in self.settings}]
        for name in ("definitions", "mentions", "times"):
            mine: list[Hit] = getattr(self, name)
            mine += [hit for hit in getattr(other, name) if hit not in mine]
        for place, count in other.places.items():
            self.places[place] = self.places.get(place, 0) + count

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _TITLES)

    def report(self) -> str:
        """All of it as text, in bounds."""
        lines: list[str] = []
        for name, entries in self._lines():
            entries = list(entries)
            if entries:
                lines += ["", f"{_TITLES[name]}:", *entries[:MAX_LINES]]
                if len(entries) > MAX_LINES:
                    lines.append(f"  … and {len(entries) - MAX_LINES} more")
        return "\n".join(lines).strip("\n")

    def _lines(self) -> Iterable[tuple[str, Iterable[str]]]:
        yield "symptoms", map(_symptom, self.symptoms)
        yield "settings", (f"- {hit}" + (f"\n  in {' > '.join(s)}" if s else "") for hit, s in self.settings)
        for name in ("definitions", "mentions", "times"):
            yield name, (f"- {hit}" for hit in getattr(self, name))
        yield "places", (f"- {path}:{line} (×{count})" for (path, line), count in self.places.items())


def _symptom(each: Symptom) -> str:
    until = f" at {moment(each.last.text)}" if moment(each.last.text) else ""
    steady = f"; steady: {', '.join(each.numbers)}" if each.numbers else ""
    said = f"{'at least ' if each.more else ''}{each.lines} ×, last {each.last.path}:{each.last.line}{until}{steady}"
    return f"- [{each.severity}] {each.first}\n  {said}"


def read_report(text: str) -> Findings:
    """What a report says; lines of no known form are passed over, and so is a text that is no report."""
    found = Findings()
    section = ""
    lines = text.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.endswith(":") and line[:-1] in _BY_TITLE:
            section = _BY_TITLE[line[:-1]]
        elif section == "places" and (place := _PLACE.match(line)):
            found.places[place["path"], int(place["line"])] = int(place["count"])
        elif section and (m := _HIT.match(line)):
            hit = Hit(m["path"], int(m["line"]), m["text"])
            if section == "symptoms" and (said := _SAID.match(below)):
                found.symptoms.append(_read_symptom(hit, int(m["severity"] or 0), said))
            elif section == "settings":
                within = _IN.match(below)
                found.settings.append((hit, tuple(within[1].split(" > ")) if within else ()))
            elif section in ("definitions", "mentions", "times"):
                getattr(found, section).append(hit)
    return found


def _read_symptom(first: Hit, severity: int, said: re.Match[str]) -> Symptom:
    last = Hit(said["last"], int(said["last_line"]), said["until"] or "")
    steady = tuple(said["steady"].split(", ")) if said["steady"] else ()
    return Symptom(template(first.text), first, last, int(said["lines"]), bool(said["more"]), severity, steady)
