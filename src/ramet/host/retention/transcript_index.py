"""Folders of transcripts by the root of their tree, as the first line of each file says: read in one pass."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from ramet.core.events import RunSpawned
from ramet.disk.regular_files import open_regular

_FIRST, _MOST = 4096, 256 * 1024  #: bytes that are read of a file, in which its root is named
_KIND = str(RunSpawned.__struct_config__.tag)
_decoder = json.JSONDecoder()


class _Told(NamedTuple):
    root: str
    folder: pathlib.Path


def transcripts_in(folder: pathlib.Path | None) -> dict[str, list[pathlib.Path]]:
    """Return the folders of transcripts below a folder by their roots; what is no transcript is left out.

    Waits for the disk, once for each of them: look into the result for every tree.
    """
    found: dict[str, list[pathlib.Path]] = {}
    for each in _told(folder) if folder is not None else ():
        found.setdefault(each.root, []).append(each.folder)
    return found


def _told(transcripts: pathlib.Path) -> Iterator[_Told]:
    if not transcripts.is_dir() or transcripts.is_symlink():
        return
    for folder in sorted(transcripts.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        try:
            with open(open_regular(folder / "main.jsonl"), "rb") as file:  # noqa: PTH123 - a descriptor
                begin = file.read(_FIRST)
                root = root_in(begin) or root_in(begin + file.read(_MOST - _FIRST))
        except OSError:
            continue  # Not ours to judge.
        if root:
            yield _Told(root, folder)


def root_in(begin: bytes) -> str:
    """Return the root that the beginning of a transcript names; "" if it does not, or is that of another file.

    The first line, a birth, may be as large as what its run was told: it is not read to its end.
    """
    text, at, fields = begin.decode("utf-8", "replace"), 1, dict[str, object]()
    if not text.startswith("{"):
        return ""
    try:
        while "root" not in fields or "type" not in fields:
            name, at = _decoder.raw_decode(text, at)
            if not isinstance(name, str) or text[at] != ":":
                return ""
            fields[name], at = _decoder.raw_decode(text, at + 1)
            if text[at] not in ",}":
                return ""
            at += 1
    except (ValueError, IndexError, RecursionError):  # It is cut off here, or no JSON.
        return ""
    root = fields["root"]
    return root if fields["type"] == _KIND and isinstance(root, str) else ""
