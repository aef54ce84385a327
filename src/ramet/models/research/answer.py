"""The final answer, as Markdown: what was found, in order of weight, each line with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ramet.models.research.evidence import Hit, moment
from ramet.models.research.findings import Findings
from ramet.models.research.links import (
    Linked,
    calls_between,
    contradictions,
    disagreements,
    link,
    resolve,
    settings_of,
)
from ramet.models.research.question import Question
from ramet.models.research.settings import Setting

SIGNED = (
    "*From ramet's offline researcher, which works by rules: it matched text and followed names and numbers between "
    "files; it did not reason about them. With `--model provider:name` a language model answers.*"
)


def signed(text: str) -> str:
    """Every answer says at its end what gave it."""
    return f"{text.strip()}\n\n{SIGNED}"


def fault_answer(
    question: Question,
    found: Findings,
    hits: Sequence[Hit],
    windows: Mapping[str, Mapping[int, str]],
    files: frozenset[str],
    notes: Sequence[str] = (),
) -> str:
    """Why something fails, as far as text tells."""
    linked = link(question, found, hits, windows)
    settings = settings_of(found)
    bearing = [setting for each in linked for setting in each.settings]
    against = contradictions(bearing, [*found.times, *hits])
    between = calls_between(linked)
    differ = disagreements(question, settings, bearing)
    evidence = _Evidence()
    lines = [f"**{' '.join(question.text.split())[:300]}**", ""]
    lines += _summary(linked, against, evidence)
    for number, each in enumerate(linked[:4], 1):
        lines += ["", f"{number}. {_described(each)}", *_followed(each, hits, evidence)]
    lines += _section("What connects these", _connections(linked, between, against, evidence))
    lines += _section(
        "Places that the logs name",
        (f"{evidence.cite(_line(place, windows, files))} (×{count})" for place, count in _places(found, files)),
    )
    lines += _section(
        "Settings that differ between files",
        (" · ".join(f"{evidence.cite(s.hit)}" for s in group[:3]) for group in differ),
    )
    rest = [each for each in linked[4:] if each.symptom.first not in evidence.cited]
    lines += _section("Also complained about, and followed less", (f"{_described(each)}" for each in rest))
    if not linked:
        lines += _without_logs(question, found, settings, evidence)
    lines += ["", f"Confidence: {_confidence(linked, against, between)}", *[f"Note: {note}" for note in notes]]
    return signed("\n".join(lines))


def topic_answer(
    question: Question,
    found: Findings,
    hits: Sequence[Hit],
    windows: Mapping[str, Mapping[int, str]],
    notes: Sequence[str] = (),
) -> str:
    """Where something is, or how it works: definitions first, then settings, then mentions."""
    settings = [each for each in settings_of(found) if question.weight(f"{each.name} {each.hit.path}")]
    settings.sort(key=lambda each: ("test" in each.hit.path, -question.weight(f"{each.name} {each.hit.path}")))
    lines = [f"**{' '.join(question.text.split())[:300]}**", ""]
    best = found.definitions[0] if found.definitions else settings[0].hit if settings else None
    if question.kind == "where" and settings and (not best or _closer(question, settings[0], best)):
        best = settings[0].hit
    if best is None and not found.mentions:
        return signed("\n".join([*lines, f"Nothing in these files matches {_terms(question)}.", *notes]))
    place = best or found.mentions[0]
    lines.append(f"The closest match for {_terms(question)} is {place}")
    if body := _excerpt(place, windows.get(place.path, {})):
        lines += ["", "```", *body, "```"]
    lines += _section("Defined", map(str, found.definitions[:8]))
    lines += _section("Settings", (_setting(each) for each in settings[:8]))
    shown = {*found.definitions[:8], *(each.hit for each in settings)}
    used = [hit for hit in hits if hit not in shown and hit not in found.mentions]
    lines += _section("Used", map(str, used[:8]))
    lines += _section("Mentioned", map(str, _spread(found.mentions, 12)))
    matched = max((question.weight(hit.text) for hit in (*found.definitions, *found.mentions)), default=0)
    sure = "medium" if matched >= 2 or len(question.terms) == 1 else "low"
    lines += ["", f"Confidence: {sure}: of {len(question.terms)} search words, the best line holds {matched}.", *notes]
    return signed("\n".join(lines))


class _Evidence:
    """The lines that the answer rests on, each cited in full once, at its end."""

    def __init__(self) -> None:
        self.cited: dict[Hit, None] = {}

    def cite(self, hit: Hit) -> str:
        self.cited.setdefault(hit, None)
        return f"{hit.path}:{hit.line}" + (f": `{_code(hit.text)}`" if hit.text.strip() else "")

    def place(self, hit: Hit) -> str:
        self.cited.setdefault(hit, None)
        return f"{hit.path}:{hit.line}"

    def lines(self) -> list[str]:
        return [str(hit) for hit in self.cited]


def _code(text: str) -> str:
    text = text.strip().replace("`", "'")
    return text[:100] + ("…" if len(text) > 100 else "")


def _section(title: str, entries: Iterable[str]) -> list[str]:
    lines = [f"- {entry}" for entry in entries]
    return ["", f"**{title}**", "", *lines] if lines else []


def _terms(question: Question) -> str:
    return ", ".join(f"`{term}`" for term in question.terms[:8]) or "the question"


def _summary(linked: Sequence[Linked], against: Sequence[tuple[Setting, Hit, float]], evidence: _Evidence) -> list[str]:
    if not linked:
        return ["No log line in these files complains of anything; what follows is what code and settings say."]
    said = [f"`{_code(each.symptom.template)}` ({_times(each)})" for each in linked[:2]]
    text = f"The logs complain most of {' and of '.join(said)}."
    traced = [(each, each.origins[0]) for each in linked[:3] if each.origins]
    if traced:
        text += f" The code that says so is at {', '.join(evidence.place(origin.hit) for _, origin in traced)}."
    for setting, hit, ms in against[:1]:
        text += (
            f" `{setting.key}` is {setting.value} in {evidence.place(setting.hit)}, "
            f"while {evidence.place(hit)} speaks of {ms:g} ms."
        )
    return [text]


def _times(each: Linked) -> str:
    return f"{'at least ' if each.symptom.more else ''}{each.symptom.lines} ×"


def _described(each: Linked) -> str:
    symptom = each.symptom
    since, until = moment(symptom.first.text), moment(symptom.last.text)
    when = f", {since} to {until}" if since and since != until else f", {since}" if since else ""
    already = " (long before the first of these, too)" if each.before else ""
    return f"`{_code(symptom.template)}`: {_times(each)} in {symptom.first.path}{when}{already}"


def _followed(each: Linked, hits: Sequence[Hit], evidence: _Evidence) -> list[str]:
    lines = [f"   - first at {evidence.cite(each.symptom.first)}"]
    for origin in each.origins:
        lines.append(f"   - written by {evidence.cite(origin.hit)}")
        if origin.inside:
            lines.append("     inside " + ", in ".join(evidence.cite(hit) for hit in origin.inside))
    for setting in each.settings:
        used = [hit for hit in hits if setting.key in hit.text and hit.path != setting.hit.path]
        here = {origin.hit.path for origin in each.origins}
        used.sort(key=lambda hit: hit.path not in here)
        lines.append(
            f"   - its number is that of {_setting(setting, evidence)}"
            + (f", used at {evidence.cite(used[0])}" if used else "")
        )
    if not each.origins:
        lines += [f"   - the same names at {evidence.cite(hit)}" for hit in each.mentions[:3]]
    return lines


def _setting(setting: Setting, evidence: _Evidence | None = None) -> str:
    place = evidence.place(setting.hit) if evidence else f"{setting.hit.path}:{setting.hit.line}"
    within = f" in `{' > '.join(setting.sections)}`" if setting.sections else ""
    return f"`{_code(setting.key)}: {_code(setting.value)}`{within} ({place})"


def _connections(
    linked: Sequence[Linked],
    between: Sequence[tuple[Linked, Hit, Linked, Hit]],
    against: Sequence[tuple[Setting, Hit, float]],
    evidence: _Evidence,
) -> list[str]:
    number = {id(each): at for at, each in enumerate(linked, 1)}
    lines = []
    for caller, call, other, definition in between[:3]:
        lines.append(
            f"({number[id(caller)]}) happens inside {evidence.cite(call)}, and that is where "
            f"({number[id(other)]}) is written: {evidence.cite(definition)}"
        )
    for setting, hit, ms in against[:4]:
        lines.append(f"{_setting(setting, evidence)} is less than the {ms:g} ms of {evidence.cite(hit)}")
    return lines


def _places(found: Findings, files: frozenset[str]) -> list[tuple[tuple[str, int], int]]:
    """Lines of this folder's own files that tracebacks and panics name."""
    real = ((resolve(path, files), line, count) for (path, line), count in found.places.items())
    return [((path, line), count) for path, line, count in real if path is not None][:6]


def _line(place: tuple[str, int], windows: Mapping[str, Mapping[int, str]], files: frozenset[str]) -> Hit:
    return Hit(place[0], place[1], windows.get(place[0], {}).get(place[1], ""))


def _without_logs(question: Question, found: Findings, settings: Sequence[Setting], evidence: _Evidence) -> list[str]:
    bearing = [each for each in settings if question.weight(f"{each.name} {each.hit.path}")]
    lines = _section("Settings that share words with the question", (_setting(s, evidence) for s in bearing[:8]))
    lines += _section("Code", (evidence.cite(hit) for hit in found.definitions[:6]))
    lines += _section("Mentions", (evidence.cite(hit) for hit in _spread(found.mentions, 8)))
    return lines or ["", f"Nothing in these files matches {_terms(question)}."]


def _spread(hits: Sequence[Hit], most: int) -> list[Hit]:
    """The first few of each file, so that one file does not take all the room."""
    taken: dict[str, int] = {}
    chosen: list[Hit] = []
    for hit in hits:
        taken[hit.path] = taken.get(hit.path, 0) + 1
        if taken[hit.path] <= 4 and len(chosen) < most:
            chosen.append(hit)
    return chosen


def _closer(question: Question, setting: Setting, hit: Hit) -> bool:
    return question.weight(f"{setting.name} {setting.hit.path}") >= question.weight(hit.text)


def _excerpt(place: Hit, window: Mapping[int, str]) -> list[str]:
    return [f"{at:5d}  {window[at]}"[:160] for at in range(place.line, place.line + 12) if at in window]


def _confidence(linked: Sequence[Linked], against: Sequence[object], between: Sequence[object]) -> str:
    if not linked:
        return "low: there are no complaints in logs to follow."
    followed = [
        name
        for name, there in (
            ("messages were traced to the code that writes them", any(each.origins for each in linked)),
            ("their numbers to settings", any(each.settings for each in linked)),
            ("a limit is below a time seen elsewhere", against),
            ("one fault's code runs inside another's", between),
        )
        if there
    ]
    level = "low" if len(followed) < 2 else "medium"
    return f"{level}: {'; '.join(followed) or 'nothing was found beside the logs'}. Frequency is not cause."
