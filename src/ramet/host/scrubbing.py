"""Values of variables are taken out of what older versions wrote: they recorded grants with them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ramet.disk.state_folder import opened_folder
from ramet.host.journal import PAGE, TREES
from ramet.isolation.forms import LEAST, forms_of, masked
from ramet.store.contract import Rewritable

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DRAFT = ".scrubbed"
_DONE = "scrubbed"  #: the document that says that all was looked at
_MARK = b'"env_vars":{"'  #: what a grant with values has in it, as events are written
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


async def scrub(store: Rewritable, transcripts: pathlib.Path) -> int:
    """Replace values of variables by names in the events and transcripts of all trees; says in how many trees.

    Texts about a run lose values of at least 8 characters. Whoever calls holds the store.
    """
    if await store.get(_DONE, _DONE) is not None:
        return 0  # What is written since has none.
    trees = 0
    for root in {each.key for each in await store.list(TREES)} | await _roots(store):
        trees += await _scrub_tree(store, root)
    _scrub_transcripts(transcripts)
    await store.put(_DONE, _DONE, b"")
    return trees


async def _roots(store: Rewritable) -> set[str]:
    """The trees that have events; documents of some older ones are gone."""
    found, cursor = set[str](), 0
    while stored := await store.read(cursor, limit=PAGE):
        found |= {each.tree for each in stored}
        cursor = stored[-1].cursor
    return found


async def _scrub_tree(store: Rewritable, root: str) -> bool:
    forms = forms_of([value async for data in _events(store, root) for value in _values_in(data.line)])
    changed = False
    async for event in _events(store, root):
        line = _scrubbed(event.line, forms)
        if line is not None:
            changed = True
            await store.rewrite(event.cursor, line)
    return changed


class _Line(msgspec.Struct, frozen=True):
    cursor: int
    line: bytes


async def _events(store: Rewritable, root: str) -> Any:
    cursor = 0
    while stored := await store.read(cursor, tree=root, limit=PAGE):
        for each in stored:
            yield _Line(each.cursor, each.data)
        cursor = stored[-1].cursor


def _scrub_transcripts(transcripts: pathlib.Path) -> None:
    if not transcripts.is_dir():
        return
    for folder in transcripts.iterdir():
        if folder.is_symlink() or not folder.is_dir():
            continue
        files = [each for each in folder.rglob("*.jsonl") if not each.is_symlink()]
        forms = forms_of(value for file in files for line in _lines(file) for value in _values_in(line))
        for file in files:
            _scrub_file(file, forms)


def _lines(file: pathlib.Path) -> list[bytes]:
    with opened_folder(file.parent) as folder:
        found = os.open(file.name, _READ, dir_fd=folder)
    with open(found, "rb") as lines:  # noqa: PTH123 - a descriptor
        return lines.read().splitlines()


def _scrub_file(file: pathlib.Path, forms: frozenset[str]) -> None:
    lines = _lines(file)
    scrubbed = [_scrubbed(line, forms) for line in lines]
    if all(line is None for line in scrubbed):
        return
    whole = b"".join((new or old) + b"\n" for new, old in zip(scrubbed, lines, strict=True))
    with opened_folder(file.parent) as folder:
        draft = os.open(_DRAFT, _NEW, 0o600, dir_fd=folder)
        with open(draft, "wb") as new_file:  # noqa: PTH123 - a descriptor
            new_file.write(whole)
        os.rename(_DRAFT, file.name, src_dir_fd=folder, dst_dir_fd=folder)


def _values_in(line: bytes) -> Iterator[str]:
    """The values of variables in a birth that are too long to occur elsewhere by chance."""
    if _MARK not in line:
        return
    for grant in _grants(_decoded(line)):
        yield from (value for value in grant["env_vars"].values() if isinstance(value, str) and len(value) >= LEAST)


def _grants(data: Data) -> list[Data]:
    """The grants of a birth in which variables have values."""
    birth = data.get("birth")
    found = [birth.get("grant"), birth.get("bound")] if isinstance(birth, dict) else []
    return [each for each in found if isinstance(each, dict) and isinstance(each.get("env_vars"), dict)]


def _scrubbed(line: bytes, forms: Iterable[str]) -> bytes | None:
    """An event without values; None if there are none in it."""
    forms = frozenset(forms)
    if _MARK not in line and not forms:
        return None
    data = _decoded(line)
    changed = False
    for grant in _grants(data):
        if grant["env_vars"]:
            grant["env_vars"], changed = sorted(grant["env_vars"]), True
    for path in _TEXTS.get(str(data.get("type")), ()):
        changed = _mask_at(data, path, forms) or changed
    return msgspec.json.encode(data) if changed else None


def _mask_at(data: Data, path: tuple[str, ...], forms: frozenset[str]) -> bool:
    for key in path[:-1]:
        below = data.get(key)
        if not isinstance(below, dict):
            return False
        data = below
    text = data.get(path[-1])
    if not isinstance(text, str) or (shown := masked(text, forms)) == text:
        return False
    data[path[-1]] = shown
    return True


def _decoded(line: bytes) -> Data:
    """An event as data; one that cannot be read holds nothing to be replaced."""
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
