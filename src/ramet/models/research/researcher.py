"""What to do next: a pure function from a conversation and the tools at hand to calls, or to the answer.

The way of a root: list the folder, split it between scouts, link what they report, read around the places that matter,
answer. A scout counts, looks and reads in its part, and reports. Who cannot have scouts does their work, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from ramet.models.research import answer, explore, links, parts
from ramet.models.research.evidence import parse_hits, parse_window
from ramet.models.research.explore import Call
from ramet.models.research.findings import Findings, read_report
from ramet.models.research.history import Turn, is_brief, read
from ramet.models.research.listing import first_look, read_listing, second_look
from ramet.models.research.question import Question, understand

SCOUT = "explore"
_NO_TOOLS = (
    "I cannot look at any files: no tool for that was given to me. I am a program of rules that searches a folder with "
    "`Glob`, `Grep` and `Read`; without them I know nothing, and I will not guess."
)


class Step(NamedTuple):
    """What to do next: calls, for a reason, or a text that ends the turn."""

    calls: tuple[Call, ...] = ()
    stage: str = ""
    text: str = ""


def decide(messages: Sequence[BaseMessage], tools: frozenset[str]) -> Step:
    """The next step. The same conversation always gets the same one."""
    turn = read(messages)
    if not turn.done and not {"Grep", "Read"} & tools:
        return Step(text=answer.signed(_NO_TOOLS))
    if is_brief(turn.asked):
        asked, part = parts.read_brief(turn.asked)
        return _Search(turn, understand(asked), tools, scout=part).next()
    question = understand(turn.asked)
    if not question.terms and turn.earlier:  # "go on", "and why?": about what was asked before
        earlier = understand(turn.earlier)
        question = question._replace(terms=earlier.terms, kind=earlier.kind)
    return _Search(turn, question, tools).next()


class _Search:
    """One turn's search, as far as it has come."""

    def __init__(self, turn: Turn, question: Question, tools: frozenset[str], scout: parts.Part | None = None) -> None:
        self._turn, self._question, self._tools, self._scout = turn, question, tools, scout
        self._ending = turn.must_end or not tools
        self._listing = read_listing(turn)
        self._readable = self._listing.readable
        self._hits = [hit for each in turn.of("link") if not each.failed for hit in parse_hits(each.text)]
        self._hits = [hit for hit in self._hits if parts.kind_of(hit.path) not in ("binary", "skipped")]

    def next(self) -> Step:
        """The first stage that is not done and has something to do; else the answer."""
        stages: list[tuple[str, Callable[[], list[Call]]]] = [
            ("list", first_look),
            ("levels", lambda: second_look(self._listing)),
            ("split", self._split),
            ("count", self._count),
            ("look", self._look),
            ("read", self._read),
            ("link", self._link),
            ("around", self._around),
        ]
        if self._scout is not None:
            stages = stages[3:6]
        for at, (stage, wanted) in enumerate(stages):
            if self._ending or any(self._turn.reached(each) for each, _ in stages[at:]):
                continue
            if calls := tuple(call for call in wanted() if call.tool in self._tools):
                return Step(calls, stage)
        return Step(text=self._report() if self._scout else self._answer())

    def _split(self) -> list[Call]:
        """A scout for each part, all in one turn; none where it would be more talk than work."""
        divided = parts.divide(self._readable, self._listing.beyond)
        if "Agent" not in self._tools or len(divided) < 2:
            return []
        return [
            Call(
                "Agent",
                {
                    "name": part.name,
                    "description": f"look at {part.files} {part.kind} file{'s' * (part.files != 1)}",
                    "subagent_type": SCOUT,
                    "prompt": parts.brief(self._question.text, part),
                },
            )
            for part in divided
        ]

    def _own(self) -> list[parts.Part]:
        """The parts that are ours to search: a scout's one; alone, what no scout reported on."""
        if self._scout is not None:
            return [self._scout]
        sent = self._turn.of("split")
        if not sent:
            return parts.whole(self._readable, self._listing.beyond)
        return [parts.read_brief(each.args["prompt"])[1] for each in sent if each.failed]

    def _count(self) -> list[Call]:
        return explore.counting(self._question, self._own())

    def _look(self) -> list[Call]:
        counted = [each.text for each in self._turn.of("count") if not each.failed]
        return explore.looking(self._question, self._own(), counted)

    def _read(self) -> list[Call]:
        return explore.reading(self._question, self._found()) if self._own() else []

    def _link(self) -> list[Call]:
        others = any(parts.kind_of(path) != "logs" for path in self._readable)
        return links.linking(self._question, self._found(), others)

    def _around(self) -> list[Call]:
        return links.windows_wanted(self._question, self._found(), self._hits, frozenset(self._readable))

    def _found(self) -> Findings:
        found = explore.findings(self._question, self._turn)
        for each in self._turn.of("split"):
            if not each.failed:
                found.add(read_report(each.text))
        explore.rank(self._question, found)
        return found

    def _report(self) -> str:
        """A scout's last words."""
        assert self._scout is not None
        found = self._found()
        said = found.report() if found else f"Nothing here bears on it: searched for {', '.join(self._question.terms)}."
        notes = "".join(f"\nNote: {note}" for note in self._notes())
        return answer.signed(f"{self._scout.name}: {self._scout.files} files.\n\n{said}\n{notes}")

    def _answer(self) -> str:
        if not self._readable:
            return self._nothing()
        found, windows = self._found(), self._windows()
        if self._question.kind == "fault" or (found.symptoms and not found.definitions and not found.mentions):
            files = frozenset(self._readable)
            return answer.fault_answer(self._question, found, self._hits, windows, files, self._notes())
        return answer.topic_answer(self._question, found, self._hits, windows, self._notes())

    def _windows(self) -> dict[str, dict[int, str]]:
        windows: dict[str, dict[int, str]] = {}
        for each in (*self._turn.of("read"), *self._turn.of("around")):
            if not each.failed:
                windows.setdefault(each.args["file_path"], {}).update(parse_window(each.text))
        return windows

    def _notes(self) -> list[str]:
        notes = []
        if self._listing.files and not self._listing.complete:
            notes.append("the folder has more files than were listed; parts were searched by pattern.")
        if alone := [each for each in self._turn.of("split") if each.failed]:
            reason = " ".join(alone[0].text.split())[:160]
            notes.append(f"{len(alone)} of {len(self._turn.of('split'))} scouts did not report ({reason}).")
        failed = [each for each in self._turn.done if each.failed and each.tool != "Agent"]
        if failed:
            notes.append(f"{len(failed)} searches failed ({' '.join(failed[0].text.split())[:160]}).")
        for each in self._turn.of("split"):
            notes += [f"{each.args['name']}: {line[6:]}" for line in each.text.split("\n") if line.startswith("Note: ")]
        if self._ending:
            notes.append("the search was cut short; this is what was found until then.")
        return notes

    def _nothing(self) -> str:
        if not self._turn.reached("list"):
            return answer.signed("I could not list this folder: that takes `Glob`, and I was not given it in time.")
        if self._listing.files:
            kinds = sorted({path.rpartition("/")[2].rpartition(".")[2] for path in self._listing.files})
            shown = f"{len(self._listing.files)} files, of the kinds {', '.join(kinds[:10])}"
            return answer.signed(f"There is no text to search here: {shown}.")
        failed = [each.text for each in self._turn.of("list") if each.failed]
        reason = f" The folder could not be listed: {failed[0][:300]}" if failed else ""
        return answer.signed("There are no files here, so there is nothing to answer from." + reason)
