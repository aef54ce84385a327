"""Lines of files as evidence: each quoted unchanged, and equivalent log lines counted together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

LOG_GLOB = "{*.log*,*.out,*.err,*.trace,*log.txt,*logs.txt,*_log,syslog,**/log/**,**/logs/**}"
SETTINGS_GLOB = "{*.{yaml,yml,toml,ini,cfg,conf,env,properties,json,json5,tfvars,service,config},.env*,Dockerfile}"
_KINDS = {  # the first that fits a name; source if none does
    "logs": r"\.(log|out|err|trace)([.-]\d[\w.-]*)?$|(^|[/_.-])logs?(\.txt)?$|(^|/)syslog$|"
    r"(^|/)logs?/(.*/)?[^/.]+(\.(txt|jsonl?|ndjson))?$",
    "docs": r"(^|[-.])lock(\.\w+)?$|\.min\.\w+$|\.(map|svg|csv|md|rst|txt|adoc|org)$|(^|/)(?!Dockerfile)[^./]+$",
    "settings": r"\.(ya?ml|toml|ini|cfg|conf|env|properties|json5?|tfvars|service|config)$|(^|/)(\.env.*|Dockerfile)$",
}
_LEVEL = re.compile(
    r"\b(?:(INFO|NOTICE|DEBUG|TRACE)|(WARN|WARNING)|(ERROR|ERR)|(FATAL|PANIC|CRITICAL|CRIT|EMERG|ALERT|SEVERE))\b|"
    r"(?:level=\"?|\[)(?:(info|debug)|(warn)|(err)|(crit|fatal))"
)
_FAILURE = re.compile(
    r"(Error|Exception)\b|(?i:\b(error|fail|failed|refused|denied|exhausted|timed out|panicked)\b)|"
    r"\b(GET|HEAD|POST|PUT|PATCH|DELETE) \S+( HTTP/[\d.]+.?)? 5\d\d\b"
)
_FRONT = re.compile(  # the time and the level that a log line begins with
    r"[\s\[(<]*(?:\w{3} +\d{1,2} )?(?:\d{4}[-/]\d\d[-/]\d\d)?[T ]?(?:\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?"
    r"(?:Z| ?[+-]\d\d:?\d\d)?[\])>]*[\s|-]*"
    r"(?:[\[(<]?(?:level=)?(?i:info|debug|trace|warn(ing)?|err(or)?|fatal|critical)\b[\])>:]*[\s|:-]*)?"
)
_VARIES = re.compile(r"\"[^\"]*\"|'[^']*'|\b[0-9a-fA-F]{8,}\b|(?<![\w-])[\w-]*\d[\w.:-]*")
_LITERAL = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'|`([^`]*)`")
_PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-+#\d.]*[a-zA-Z]|\$?\{[^{}]*\}|\$\w+")
MAX_SEARCHED = 500  #: characters of a line of code that are searched for literals
MAX_SHOWN = 200  #: characters of a line that are quoted, and searched for words of the question


class EvidenceLine(NamedTuple):
    """A line of a file; of a log, also the number of equivalent lines that were read."""

    path: str
    number: int
    text: str
    section: str = ""  #: of a setting: the headings above the line
    alike: int = 1
    last: int = 0

    @property
    def kind(self) -> str:
        return kind_of(self.path)

    def cite(self) -> str:
        """Return the place and the quoted text on one line; an ellipsis after the quotes marks a truncation."""
        text = " ".join(self.text.strip().splitlines())  # `\r` would end the quotation on a terminal.
        quoted = f"`` {text[:MAX_SHOWN]} ``" if "`" in text[:MAX_SHOWN] else f"`{text[:MAX_SHOWN]}`"
        return f"{self.path}:{self.number}: {quoted}{'…' if len(text) > MAX_SHOWN else ''}"


def kind_of(path: str) -> str:
    """Return the kind of a file by its name: logs, settings, docs or source."""
    return next((kind for kind, name in _KINDS.items() if re.search(name, path, re.IGNORECASE)), "source")


def parse_counts(text: str) -> dict[str, int]:
    """Return the numbers of matches by path, from the result of a counting search."""
    return {match[1]: int(match[2]) for line in text.split("\n") if (match := re.fullmatch(r"(.+):(\d+)", line))}


def parse_lines(text: str, known_paths: Iterable[str]) -> list[EvidenceLine]:
    """Return the `path:line:text` lines of a search; a line that does not match exactly one known name is dropped."""
    names, lines = set(known_paths), []
    for each in text.split("\n"):
        matches = [at for at in re.finditer(r":(\d+)(?=:)", each) if each[: at.start()] in names]
        lines += [
            EvidenceLine(each[: at.start()], int(at[1]), each[at.end() + 1 :]) for at in matches if len(matches) == 1
        ]
    return lines


def parse_numbered(path: str, text: str) -> list[EvidenceLine]:
    """Return the lines of a file, from the numbered output of Read."""
    return [
        EvidenceLine(path, int(f[1]), f[2]) for line in text.split("\n") if (f := re.fullmatch(r"\s*(\d+)\t(.*)", line))
    ]


def severity(text: str) -> int:
    """Return 4 for fatal, 3 for an error, 2 for a warning, 1 for a lower level, 0 for none of these."""
    if level := _LEVEL.search(text[:120]):
        return ((level.lastindex or 1) - 1) % 4 + 1
    return 3 if _FAILURE.search(text) else 0


def message(text: str) -> str:
    """Return a log line without its leading time and level."""
    return _FRONT.sub("", text.strip(), count=1)


def group(lines: Iterable[EvidenceLine]) -> list[EvidenceLine]:
    """Return the first line of each message about a problem, with the number of similar lines in its file."""
    groups: dict[tuple[str, str], list[EvidenceLine]] = {}
    for line in sorted(set(lines)):
        if severity(line.text) > 1:
            groups.setdefault((line.path, _VARIES.sub("…", message(line.text))[:160]), []).append(line)
    return [each[0]._replace(alike=len(each), last=each[-1].number) for each in groups.values()]


def phrases(line: EvidenceLine) -> list[str]:
    """Return pairs of plain words of a message; the code that writes the message probably contains one of them."""
    pairs = re.findall(r"(?<!\S)(?=([A-Za-z][A-Za-z'-]*[,:;]? [A-Za-z][A-Za-z'-]+))", message(line.text)[:300])
    return [pair for pair in dict.fromkeys(pairs) if len(pair) > 8][:10]


def find_writers(line: EvidenceLine, candidates: Iterable[EvidenceLine]) -> list[EvidenceLine]:
    """Return at most 3 lines of code with a literal that matches this message, apart from its placeholders.

    The longest literals win. A literal with fewer than ten letters outside of placeholders, such as `%s`, is ignored.
    """
    letters_by_line: dict[EvidenceLine, int] = {}
    for each in (each for each in candidates if each.kind == "source"):
        for parts in (_PLACEHOLDER.split("".join(literal)) for literal in _LITERAL.findall(each.text[:MAX_SEARCHED])):
            text, at = message(line.text), 0
            for part in parts:  # by hand: a regular expression could be made to search without end
                at = text.find(part, at) + len(part) if at >= 0 and part in text[at:] else -1
            letters = sum(c.isalpha() for part in parts for c in part)
            if letters >= 10 and at >= 0:
                letters_by_line[each] = max(letters, letters_by_line.get(each, 0))
    return sorted(each for each, letters in letters_by_line.items() if letters == max(letters_by_line.values()))[:3]
