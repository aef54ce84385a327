"""The removal of variables' values from the files of older versions, which recorded grants with these values."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ramet.core.errors import DamagedTree
from ramet.disk.regular_files import has_hole, open_regular
from ramet.disk.state_folder import open_folder
from ramet.host.journal.journal import TREES
from ramet.host.journal.stored_events import PAGE, stored_events
from ramet.isolation import safe_walk as trees
from ramet.isolation.masking.secret_forms import LEAST, forms_of, mask_text
from ramet.store.contract import Rewritable

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_TRANSCRIPT = 1 << 28  #: bytes of one transcript that is read
_MOST_VALUES, _LEAST_COST = 1 << 20, 1 << 10  #: characters of all values of a tree; the least that each value counts
_DRAFT = ".scrubbed"
_DONE = "scrubbed"  #: the document that records that all trees were scrubbed
_MARK = b'"env_vars":{"'  #: the bytes that every grant with values contains, as events are written
#: Texts of events that people read, by the event's type: each is a path of keys.
_TEXTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "run_ended": (
        ("result", "error", "type"),
        ("result", "error", "message"),
        ("result", "stdout"),
        ("result", "stderr"),
    ),
    "run_retried": (("reason",),),
    "state_changed": (("why",),),
    "tool_ended": (("preview",),),
    "notice": (("text",), ("error", "type"), ("error", "message")),
}

Data = dict[str, Any]


class ScrubReport(NamedTuple):
    """The number of trees whose events had values, and the skipped transcripts, with the reason."""

    trees: int
    skipped_transcripts: list[str]


async def scrub(store: Rewritable, transcripts: pathlib.Path) -> ScrubReport:
    """Replace values of variables by names in the events and transcripts of all trees.

    Texts about a run lose values of at least 8 characters. The caller holds the store. The scrubbing is not repeated,
    unless a transcript was skipped. A tree that cannot be read is skipped, too.
    """
    if await store.get(_DONE, _DONE) is not None:
        return ScrubReport(0, [])  # Data that is written later has no values.
    changed, passed_over = 0, list[str]()
    for root in {each.key for each in await store.list(TREES)} | await _roots(store):
        try:
            changed += await _scrub_tree(store, root)
        except DamagedTree as problem:
            passed_over.append(str(problem))
    passed_over += await asyncio.to_thread(_scrub_transcripts, transcripts)
    if not passed_over:
        await store.put(_DONE, _DONE, b"")
    return ScrubReport(changed, passed_over)


async def _roots(store: Rewritable) -> set[str]:
    """Return the trees that have events; the documents of some older trees are missing."""
    roots, cursor = set[str](), 0
    while stored := await store.read(cursor, limit=PAGE):
        roots |= {each.tree for each in stored}
        cursor = stored[-1].cursor
    return roots


async def _scrub_tree(store: Rewritable, root: str) -> bool:
    forms = forms_of([value async for each in stored_events(store, root) for value in _values_in(each.data)])
    changed = False
    async for event in stored_events(store, root):
        line = _scrub_event(event.data, forms)
        if line is not None:
            changed = True
            await store.rewrite(event.cursor, line)
    return changed


def _scrub_transcripts(transcripts: pathlib.Path) -> list[str]:
    """Replace values in the transcripts of all trees; return the skipped files, with the reasons."""
    passed_over: list[str] = []
    if transcripts.is_symlink() or not transcripts.is_dir():
        return passed_over
    with open_folder(transcripts) as top:
        for name in sorted(os.listdir(top)):  # noqa: PTH208 - of a descriptor
            if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                continue
            try:
                with trees.open_root(pathlib.Path(name), top) as folder:
                    passed_over += [f"{name}/{problem}" for problem in _scrub_folder(folder)]
            except OSError as problem:
                passed_over.append(f"{name}: {problem.strerror or problem}")
    return passed_over


def _scrub_folder(folder: int) -> list[str]:
    """Replace values in the transcripts of one tree; return the skipped files, with the reasons."""
    values, size, problems = set[str](), 0, dict[str, str]()
    for transcript in _transcripts(folder, problems):
        for value in (each for line in transcript.lines for each in _values_in(line)):
            size += max(len(value), _LEAST_COST)
            if size > _MOST_VALUES:
                return [f"{transcript.path}: it has too many values, so none of this tree was replaced"]
            values.add(value)
    forms = forms_of(values)
    for transcript in _transcripts(folder, problems):
        try:
            _scrub_file(transcript, forms)
        except OSError as problem:
            problems[transcript.path] = problem.strerror or str(problem)
    return [f"{path}: {why}" for path, why in problems.items()]


class _Transcript(NamedTuple):
    """A transcript that is open until the next one is requested."""

    folder: int
    name: str
    path: str
    lines: BinaryIO


def _transcripts(folder: int, problems: dict[str, str]) -> Iterator[_Transcript]:
    """Yield all transcripts below a folder with arbitrary content; put the reason for each skip into `problems`."""
    with contextlib.closing(trees.walk(folder)) as entries:
        for entry in entries:
            if entry.problem:
                problems[entry.path] = entry.problem
            if entry.stat is None or stat.S_ISDIR(entry.stat.st_mode) or not entry.name.endswith(".jsonl"):
                continue
            try:
                with open(open_regular(entry.name, folder=entry.folder), "rb") as lines:  # noqa: PTH123 - a descriptor
                    if entry.stat.st_size > _MOST_TRANSCRIPT or has_hole(lines.fileno()):
                        problems[entry.path] = "it is too large, or parts of it were never written"
                    else:
                        yield _Transcript(entry.folder, entry.name, entry.path, lines)
            except OSError as problem:
                problems[entry.path] = problem.strerror or str(problem)


def _scrub_file(transcript: _Transcript, forms: frozenset[str]) -> None:
    if all(_scrub_event(line, forms) is None for line in transcript.lines):
        return
    transcript.lines.seek(0)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_DRAFT, dir_fd=transcript.folder)
    with open(os.open(_DRAFT, _NEW, 0o600, dir_fd=transcript.folder), "wb") as draft:  # noqa: PTH123 - a descriptor
        draft.writelines((_scrub_event(line, forms) or line.removesuffix(b"\n")) + b"\n" for line in transcript.lines)
    os.rename(_DRAFT, transcript.name, src_dir_fd=transcript.folder, dst_dir_fd=transcript.folder)


def _values_in(line: bytes) -> Iterator[str]:
    """Yield the values of variables in a spawn event that are too long to occur elsewhere by chance."""
    if _MARK not in line:
        return
    for grant in _grants(_decode_event(line)):
        yield from (value for value in grant["env_vars"].values() if isinstance(value, str) and len(value) >= LEAST)


def _grants(data: Data) -> list[Data]:
    """Return the grants of a spawn event in which variables have values."""
    birth = data.get("birth")
    grants = [birth.get("grant"), birth.get("bound")] if isinstance(birth, dict) else []
    return [each for each in grants if isinstance(each, dict) and isinstance(each.get("env_vars"), dict)]


def _scrub_event(line: bytes, forms: Iterable[str]) -> bytes | None:
    """Return an event without values; None if the event contains none."""
    forms = frozenset(forms)
    if _MARK not in line and not forms:
        return None
    data = _decode_event(line)
    changed = False
    for grant in _grants(data):
        if grant["env_vars"]:
            grant["env_vars"], changed = sorted(grant["env_vars"]), True
    for path in _TEXTS.get(str(data.get("type")), ()):
        changed = _mask_at(data, path, forms) or changed
    return msgspec.json.encode(data) if changed else None


def _mask_at(data: Data, path: tuple[str, ...], forms: frozenset[str]) -> bool:
    for key in path[:-1]:
        child = data.get(key)
        if not isinstance(child, dict):
            return False
        data = child
    text = data.get(path[-1])
    if not isinstance(text, str) or (masked_text := mask_text(text, forms)) == text:
        return False
    data[path[-1]] = masked_text
    return True


def _decode_event(line: bytes) -> Data:
    """Return an event as data; an unreadable event is empty: nothing in it is replaced."""
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
