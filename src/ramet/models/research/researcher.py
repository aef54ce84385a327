"""The next step: a pure function from a conversation and the available tools to calls, or to the answer.

A root surveys the folder, asks why files were skipped, splits the best files between scouts, links their reports and
answers. A scout searches its files and reports lines. A root without scouts also does their work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from ramet.models.research import evidence, settings
from ramet.models.research.answer import answer, by_weight, sign
from ramet.models.research.evidence import EvidenceLine, kind_of
from ramet.models.research.question import FAULT, Question, Turn, escape, read, understand

MAX_FILES = {"logs": 6, "settings": 12, "source": 12, "docs": 6}  #: maximum number of files that are searched, by kind
MAX_LINES, MAX_REASONS, MAX_KEYS, MAX_REPORTED = 200, 20, 30, 150
# how tools display characters that no tool argument can contain
_ODD = re.compile(r"\\(u[0-9a-f]{4}|x[0-9a-f]{2}|[nrt])")
_BOUND = re.compile(r"^… \[(.*?)\]?$", re.MULTILINE)


class PlannedCall(NamedTuple):
    """A tool call to make, and the stage that needs it."""

    stage: str
    tool: str
    args: dict[str, Any]  # Any: JSON, as the tool takes it


class Step(NamedTuple):
    """The next step: calls, or a text that ends the turn."""

    calls: Sequence[PlannedCall] = ()
    text: str = ""


def decide(messages: Sequence[BaseMessage], tools: frozenset[str]) -> Step:
    """Return the next step. Equal conversations give equal steps."""
    turn = read(messages)
    if (missing := {"Glob", "Grep", "Read"} - tools) and not turn.finished_calls:
        lacks = f"no tool for that was given to me ({', '.join(sorted(missing))} missing)"
        return Step(text=sign(f"I cannot look at any files: {lacks}. I will not guess."))
    if brief := re.fullmatch(r"Question: (.*)\n.*\n(\{.*\})", turn.question):
        return _Research(turn, understand(brief[1]), tools).scout(json.loads(brief[2]))
    question = understand(turn.question)
    if not question.terms and turn.earlier_questions:  # "go on", "and why?": about the earlier question
        question = understand(turn.earlier_questions)
    return _Research(turn, question, tools).root()


def _grep(stage: str, pattern: str, mode: str = "content", limit: int = MAX_LINES, **options: Any) -> PlannedCall:
    args = {"pattern": pattern, "output_mode": mode, "-i": True, "head_limit": limit}
    return PlannedCall(stage, "Grep", args | {name: value for name, value in options.items() if value})


class _Research:
    """The state of one turn's research."""

    def __init__(self, turn: Turn, question: Question, tools: frozenset[str]) -> None:
        self._turn, self._question, self._tools = turn, question, tools
        self._is_over = turn.must_end or not tools
        self._omissions: dict[str, bool] = {}  #: True: a bound, beyond which more may be found
        survey = {each.args["pattern"]: each.text for each in turn.calls_of("survey")}
        names = [survey.get(pattern, "").split("\n") for pattern in ("**", "**/")]
        self._files, self._folders = (
            [n for n in entries if n and not n.startswith(("… [", "No "))] for entries in names
        )
        self._counts = {pattern: evidence.parse_counts(survey.get(pattern, "")) for pattern in survey}
        self._text = {path for each in self._counts.values() for path in each if not _ODD.search(path)}
        for pattern, text in survey.items():
            if limit_note := _BOUND.search(text):
                self._omissions[f"beyond a bound of the search for `{pattern[:30]}`: {limit_note[1]}"] = True
        is_complete = not any(_BOUND.search(survey.get(pattern, "… [")) for pattern in ("**", "^"))
        skipped_files = sorted({*self._files} - {*self._counts.get("^", ())}) if is_complete else []
        self._skipped_files = [path for path in skipped_files if not _ODD.search(path)]
        odd = [path for path in self._files if _ODD.search(path)]
        self._omit(f"{path}: no name that a tool can be given" for path in odd[:MAX_REASONS])

    def root(self) -> Step:
        """Return the calls of the first unfinished stage that has any; otherwise, the answer."""
        stages = {
            "survey": self._survey,
            "why": self._explain_skipped,
            "split": self._split,
            "look": self._look,
            "link": self._link,
        }
        done_stages = {each.stage for each in self._turn.finished_calls}
        for at, plan_stage in enumerate(stages.values()):
            calls = [] if self._is_over or done_stages & {*[*stages][at:]} else plan_stage()
            if calls := [call for call in calls if call.tool in self._tools]:
                return Step(calls)
        lines, linked_lines = self._lines(), list[EvidenceLine]()
        for each in self._turn.calls_of("link"):
            linked_lines += evidence.parse_lines(each.text, self._text)
            self._omit(["uses of settings in code beyond a bound"] if _BOUND.search(each.text) else [], bound=True)
        self._omit(_short(each.text) for each in self._turn.calls_of("why", has_failed=True))
        links = [each.args["file_path"] for each in self._turn.calls_of("why") if "1\t" in each.text]
        self._omit(f"{path}: passed over by the search, as links and binary files are" for path in links)
        for label, stage in (("searches", "survey"), ("later searches", "link"), ("scouts", "split")):
            failures = [_short(each.text) for each in self._turn.calls_of(stage, has_failed=True)]
            self._omit([f"{len(failures)} {label} failed ({failures[0]})"] if failures else [], bound=True)
        self._omit(["the rest: the search was cut short"] if self._is_over else [], bound=True)
        self._omit(["folders that the tools always skip, such as `.git`, `.venv`, `node_modules` and `__pycache__`"])
        search_scope = ", ".join(
            f"{len(files)} file{'s' * (len(files) != 1)} of {kind}" for kind, files in self._best_files().items()
        )
        return Step(text=answer(self._question, lines, linked_lines, search_scope, self._omissions))

    def scout(self, files: Mapping[str, int]) -> Step:
        """Return the calls that search the files; afterwards, a report with a JSON list for each line."""
        if not self._turn.finished_calls:
            return Step(self._calls_for(files))
        lines, kinds = self._lines_from_calls(), " and ".join({kind_of(path) for path in files})
        if len(lines) > MAX_REPORTED:
            self._omit([f"{len(lines) - MAX_REPORTED} of {len(lines)} lines that were found in {kinds}"], bound=True)
        notes = [f"Not looked at: {note}" for note in self._omissions]
        return Step(text=sign("\n".join([*map(_json, lines[:MAX_REPORTED]), *notes])))

    def _omit(self, notes: Iterable[str], *, bound: bool = False) -> None:
        self._omissions |= dict.fromkeys(notes, bound)

    def _survey(self) -> list[PlannedCall]:
        globs = [PlannedCall("survey", "Glob", {"pattern": pattern}) for pattern in ("**", "**/")]
        glob_by_pattern = {
            FAULT: evidence.LOG_GLOB,
            "^": "",
            "$": evidence.SETTINGS_GLOB,
            **dict.fromkeys(self._question.terms.values(), ""),
        }
        return globs + [_grep("survey", pattern, "count", 0, glob=glob) for pattern, glob in glob_by_pattern.items()]

    def _explain_skipped(self) -> list[PlannedCall]:
        """Ask for the reason why the search skipped files, and look into folders that seem to be empty."""
        surplus = len(self._skipped_files) - MAX_REASONS
        self._omit([f"{surplus} other files that the search passed over"] if surplus > 0 else [])
        empty = [each for each in self._folders if not any(path.startswith(each) for path in self._files)]
        reads = [
            PlannedCall("why", "Read", {"file_path": path, "limit": 1}) for path in self._skipped_files[:MAX_REASONS]
        ]
        return reads + [PlannedCall("why", "Glob", {"pattern": "*", "path": each[:-1]}) for each in empty[:MAX_REASONS]]

    def _best_files(self) -> dict[str, dict[str, int]]:
        """Return the files to search by kind, those with most of the rarest words of the question first."""
        holding = [self._counts.get(pattern, {}) for pattern in self._question.terms.values()]
        faults = self._counts.get(FAULT, {}) if self._question.about_fault else {}

        def score(path: str) -> tuple[float, str]:
            term_score = sum(1 / (1 + len(each)) ** 0.5 for each in holding if path in each)
            path_score = 0.2 * len(self._question.matching_terms(path))
            return -faults.get(path, 0) - (term_score + path_score) * (0.4 if "test" in path else 1), path

        best = {}
        for kind, limit in MAX_FILES.items():
            paths = sorted((path for path in self._text if kind_of(path) == kind), key=score)
            best[kind] = {path: faults.get(path, 0) for path in paths[:limit]}
            note = f"{len(paths) - limit} of {len(paths)} files of {kind}: searched for words, and not read"
            self._omit([note] if len(paths) > limit else [], bound=kind == "settings")
        return {kind: paths for kind, paths in best.items() if paths}

    def _split(self) -> list[PlannedCall]:
        best, question_text = self._best_files(), " ".join(self._question.text.split())[:2_000]
        calls = []
        for kind, files in best.items() if len(best) > 1 else ():
            prompt = f"Question: {question_text}\nReport lines of these files, and of no others:\n{_json(files)}"
            args = {"name": kind, "description": f"look at {len(files)} files of {kind}"}
            calls.append(PlannedCall("split", "Agent", args | {"subagent_type": "explore", "prompt": prompt}))
        return calls

    def _look(self) -> list[PlannedCall]:
        reported_names = {each.args["name"] for each in self._turn.calls_of("split")}
        return [
            call
            for kind, files in self._best_files().items()
            if kind not in reported_names
            for call in self._calls_for(files)
        ]

    def _calls_for(self, files: Mapping[str, int]) -> list[PlannedCall]:
        calls, term_pattern = [], "|".join([*self._question.terms.values(), settings.TIMES])
        for path, faults in files.items():
            pattern = FAULT if kind_of(path) == "logs" and self._question.about_fault else term_pattern
            offsets = sorted({0, max(0, faults - MAX_LINES // 2) if faults > MAX_LINES else 0})
            if kind_of(path) in ("logs", "docs"):
                calls += [_grep("look", pattern, path=path, offset=offset) for offset in offsets]
            else:
                calls.append(PlannedCall("look", "Read", {"file_path": path}))
        return calls

    def _lines_from_calls(self) -> list[EvidenceLine]:
        """Return the reportable lines that this agent has found itself, the best first."""
        evidence_lines, log_lines, terms_in = list[EvidenceLine](), list[EvidenceLine](), self._question.matching_terms
        for each in self._turn.calls_of("look"):
            path = each.args.get("file_path") or each.args["path"]
            lines = (
                evidence.parse_lines(each.text, [path])
                if "path" in each.args
                else evidence.parse_numbered(path, each.text)
            )
            limit_note = None if each.args.get("offset") else _BOUND.search(each.text)
            self._omit(
                [f"{path}: the rest of it ({limit_note[1]})"] if limit_note else [], bound=kind_of(path) == "settings"
            )
            long = [line for line in lines if len(line.text) > 500 and line.text.endswith(("…", "in this line]"))]
            self._omit(f"{path}:{line.number}: the rest of a long line" for line in long[:5])
            log_lines += lines if kind_of(path) == "logs" else []
            evidence_lines += (
                settings.with_sections(lines)
                if kind_of(path) == "settings"
                else lines
                if kind_of(path) != "logs"
                else []
            )
        self._omit((_short(each.text) for each in self._turn.calls_of("look", has_failed=True)), bound=True)
        reported = [
            line
            for line in evidence_lines
            if line.kind == "docs" or settings.settings_on(line) or settings.READS.search(line.text)
        ]
        reported += [
            line
            for line in (evidence_lines if self._question.about_fault else evidence_lines + log_lines)
            if terms_in(line.text)
        ]
        return by_weight(
            [*reported, *(evidence.group(log_lines) if self._question.about_fault else [])], self._question
        )

    def _lines(self) -> list[EvidenceLine]:
        """Return the lines that this agent and its scouts have found."""
        lines = self._lines_from_calls()
        for line in (line for each in self._turn.calls_of("split") for line in each.text.split("\n")):
            if line.startswith('["') and line.endswith("]"):
                lines.append(EvidenceLine(*json.loads(line)))
            elif line.startswith(("Not looked at: ", "… [")):
                self._omit([line.removeprefix("Not looked at: ")], bound=True)
        return by_weight((line for line in lines if line.path in self._text), self._question)

    def _link(self) -> list[PlannedCall]:
        lines = self._lines()
        setting_keys = [s.key for line in lines if line.kind == "settings" for s in settings.settings_on(line)]
        keys = list(dict.fromkeys(key for key in setting_keys if len(key) > 2))
        self._omit(["uses of some settings in code"] if len(keys) > MAX_KEYS else [], bound=True)
        log_lines = [line for line in lines if line.kind == "logs"][: 5 if self._question.about_fault else 0]
        patterns = ["|".join(map(escape, evidence.phrases(line))) for line in log_lines]
        patterns += [rf"\b({'|'.join(map(escape, keys[:MAX_KEYS]))})\b"] if keys else []
        return [_grep("link", each, glob="!{*.log*,*.out,*.err,*.trace}") for each in dict.fromkeys(patterns) if each]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return " ".join(text.split())[:200]
