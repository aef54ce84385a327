"""A folder in parts: which files are logs, settings, documents or source, and who looks at which."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

KINDS = ("logs", "settings", "source", "docs")
_EXTENSIONS = {
    "logs": {"log", "out", "err", "trace", "stderr", "stdout", "journal"},
    "settings": {
        *("yaml", "yml", "toml", "ini", "cfg", "conf", "env", "properties", "json", "json5", "tf", "tfvars", "xml"),
        *("plist", "hcl", "service", "config", "lock"),
    },
    "docs": {"md", "rst", "txt", "adoc", "markdown", "org", "tex"},
    "binary": {
        *(
            "png",
            "jpg",
            "jpeg",
            "gif",
            "webp",
            "ico",
            "pdf",
            "zip",
            "gz",
            "tgz",
            "bz2",
            "xz",
            "zst",
            "tar",
            "jar",
            "whl",
        ),
        *("so", "dylib", "dll", "exe", "o", "a", "pyc", "class", "wasm", "woff", "woff2", "ttf", "mp3", "mp4", "mov"),
        *("sqlite", "sqlite3", "db", "bin", "dat", "parquet", "pkl", "npy", "avif", "bmp", "svg"),
    },
}
_LOCKS = re.compile(r"(^|[-.])lock(\.|$)|\.min\.|\.map$", re.IGNORECASE)
_LOG_NAME = re.compile(r"\.(log|out|err)[.-][\w.-]+$|(^|[_.-])logs?([_.-]|$)", re.IGNORECASE)
_SETTINGS_NAME = re.compile(r"^(dockerfile|makefile|procfile|vagrantfile|jenkinsfile|\.env.*)$", re.IGNORECASE)
#: Folders of what others wrote or a machine made; looked into by nobody who asks about the rest.
_FOREIGN = frozenset(
    ".cache site-packages vendor third_party dist build target .idea .vscode coverage .next .gradle .terraform .eggs "
    ".nox .hypothesis bower_components Pods".split()
)
_GLOB_SIGNS = re.compile(r"[*?\[\]{},!\\]|[^ -~]")
MAX_PARTS = 5
MAX_LISTED = 60  #: files that a brief names one by one
MAX_GLOB = 900


class Part(NamedTuple):
    """Files for one scout: of one kind, named one by one or by patterns."""

    name: str
    kind: str  #: one of KINDS, or `any`
    globs: tuple[str, ...]
    files: int

    def patterns(self) -> list[str]:
        """Its globs in as few as a search takes: joined by braces."""
        joined: list[list[str]] = [[]]
        alternatives = 0
        for each in self.globs:
            alternatives += 1 + each.count(",")
            if sum(map(len, joined[-1])) + len(joined[-1]) + len(each) > MAX_GLOB or alternatives > 90:
                joined.append([])
                alternatives = 1 + each.count(",")
            joined[-1].append(each)
        return [each[0] if len(each) == 1 else "{" + ",".join(each) + "}" for each in joined if each][:4]


def kind_of(path: str) -> str:
    """What a file is by its name: one of KINDS, `binary`, or `skipped` for what nobody wrote by hand."""
    *folders, name = path.split("/")
    if not _FOREIGN.isdisjoint(folders) or any(f.startswith(".") and "cache" in f for f in folders):
        return "skipped"
    extension = name.rpartition(".")[2].lower() if "." in name[1:] else ""
    if extension in _EXTENSIONS["binary"]:
        return "binary"
    if _LOCKS.search(name):
        return "skipped"
    if extension in _EXTENSIONS["logs"] or _LOG_NAME.search(name):
        return "logs"
    if extension in {"", "txt", "json", "jsonl", "ndjson"} and any(part.lower() in ("log", "logs") for part in folders):
        return "logs"
    if _SETTINGS_NAME.match(name) or extension in _EXTENSIONS["settings"]:
        return "settings"
    return "docs" if extension in _EXTENSIONS["docs"] or not extension else "source"


def divide(files: list[str], folders: list[str] | None = None) -> list[Part]:
    """Two to five parts, by kind and then by folder; fewer only if there is too little to divide.

    With `folders`, those at the top, these are not all files: then the parts are patterns, which fit the others, too.
    """
    by_kind = {kind: sorted(f for f in files if kind_of(f) == kind) for kind in KINDS}
    groups = [(kind, kind, members) for kind, members in by_kind.items() if members]
    level = None if folders is None else 0  # patterns tell only the folders at the top apart
    while groups and len(groups) < MAX_PARTS:
        at = max(range(len(groups)), key=lambda i: len(groups[i][2]))
        name, kind, members = groups[at]
        if len(members) < (2 if len(groups) == 1 else 40):
            break
        first, second = _halves(members, level)
        if not first or not second:
            break
        groups[at : at + 1] = [(_name(kind, first), kind, first), (_name(kind, second), kind, second)]
    parts: list[Part] = []
    for name, kind, members in groups:
        others = [f for _, other, theirs in groups for f in theirs if other == kind and theirs is not members]
        leads = all(part.kind != kind for part in parts)
        while any(part.name == name for part in parts):
            name += "x"
        beyond = None if folders is None else _unseen(folders, others) if leads else []
        parts.append(Part(name, kind, _globs(members, beyond), len(members)))
    return parts


def whole(files: list[str], folders: list[str] | None = None) -> list[Part]:
    """The same folder for one who works alone: one part for each kind."""
    found = []
    for kind in KINDS:
        if members := sorted(f for f in files if kind_of(f) == kind):
            beyond = None if folders is None else _unseen(folders, [])
            found.append(Part(kind, kind, _globs(members, beyond), len(members)))
    return found


def _unseen(folders: list[str], others: list[str]) -> list[str]:
    """The folders at the top that nobody else looks into."""
    taken = {f.split("/")[0] for f in others}
    return [each for each in folders if each not in taken and not each.startswith(".") and each not in _FOREIGN]


def _halves(members: list[str], depth: int | None) -> tuple[list[str], list[str]]:
    """Two parts of about one size, cut between folders where that is possible; between those of one level, if given."""
    only, depth = depth is not None, depth or 0
    while not only and len({f.split("/")[depth] if f.count("/") >= depth else f for f in members}) == 1 and depth < 20:
        depth += 1
    keys = [f.split("/")[depth] if f.count("/") > depth else "" for f in members]
    cuts = [at for at in range(1, len(members)) if keys[at] != keys[at - 1]]
    cuts = cuts if cuts or only else list(range(1, len(members)))
    at = min(cuts, key=lambda cut: abs(cut - len(members) / 2), default=0)
    return members[:at], members[at:]


def _name(kind: str, members: list[str]) -> str:
    shared = PurePosixPath(members[0]).parts[:-1]
    for each in members:
        parts = PurePosixPath(each).parts[:-1]
        shared = tuple(a for a, b in zip(shared, parts, strict=False) if a == b)
    tail = shared[-1] if shared else PurePosixPath(members[0]).stem
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{kind}-{tail}").strip("-")[:40]


def _globs(members: list[str], beyond: list[str] | None) -> tuple[str, ...]:
    """Patterns for these files, or, if there are others `beyond` them, for all of their kind in the same folders."""
    endings = sorted({PurePosixPath(f).suffix for f in members if PurePosixPath(f).suffix})
    if not endings or (beyond is None and len(members) <= MAX_LISTED):
        return tuple(map(_exactly, members[:MAX_LISTED]))
    ends = "*{" + ",".join(map(_plain, endings[:30])) + "}" if len(endings) > 1 else f"*{_plain(endings[0])}"
    tops = sorted({*(f.split("/")[0] for f in members if "/" in f), *(beyond or ())})
    loose = [f"./{ends}"] if any("/" not in f for f in members) else []
    return (*loose, *(f"{_exactly(top)}/**/{ends}" for top in tops[:25]))


def _exactly(path: str) -> str:
    return "./" + _plain(path)


def _plain(path: str) -> str:
    return _GLOB_SIGNS.sub("?", path)


def brief(question: str, part: Part) -> str:
    """What a scout is told."""
    return "\n".join(
        [
            f"Question: {' '.join(question.split())[:2_000]}",
            f"Kind: {part.kind}",
            f"Part: {part.name}",
            f"Look only at these files ({part.files}), given as glob patterns from the top of the folder:",
            *(f"- {each}" for each in part.globs),
            "Report what bears on the question as `path:line: text`, and say so if there is nothing.",
        ]
    )


def read_brief(text: str) -> tuple[str, Part]:
    """The question and the part that a brief names."""
    lines = text.split("\n")
    fields = dict(line.split(": ", 1) for line in lines[:3] if ": " in line)
    globs = tuple(line[2:] for line in lines if line.startswith("- "))
    return fields.get("Question", ""), Part(fields.get("Part", "part"), fields.get("Kind", "any"), globs, len(globs))
