"""Folders of transcripts by the root of their tree, which the first line of each file names: read in one pass."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from ramet.core.events import RunSpawned
from ramet.disk.regular_files import open_regular

_FIRST, _MOST = 4096, 256 * 1024  #: bytes of a file that are read for its root
_KIND = str(RunSpawned.__struct_config__.tag)
_decoder = json.JSONDecoder()


class _TranscriptRoot(NamedTuple):
    root: str
    folder: pathlib.Path


def transcripts_in(folder: pathlib.Path | None) -> dict[str, list[pathlib.Path]]:
    """Return the folders of transcripts below a folder by their roots; other folders are left out.

    Reads the disk once for each folder: use one result for all trees.
    """
    folders: dict[str, list[pathlib.Path]] = {}
    for each in _transcript_roots(folder) if folder is not None else ():
        folders.setdefault(each.root, []).append(each.folder)
    return folders


def _transcript_roots(transcripts: pathlib.Path) -> Iterator[_TranscriptRoot]:
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
            continue  # Not a readable transcript.
        if root:
            yield _TranscriptRoot(root, folder)


def root_in(begin: bytes) -> str:
    """Return the root that the beginning of a transcript names; "" if there is none, or for another kind of file.

    The first line, a spawn event, may be as large as the prompt of its run: it is not read to its end.
    """
    text, position, fields = begin.decode("utf-8", "replace"), 1, dict[str, object]()
    if not text.startswith("{"):
        return ""
    try:
        while "root" not in fields or "type" not in fields:
            name, position = _decoder.raw_decode(text, position)
            if not isinstance(name, str) or text[position] != ":":
                return ""
            fields[name], position = _decoder.raw_decode(text, position + 1)
            if text[position] not in ",}":
                return ""
            position += 1
    except (ValueError, IndexError, RecursionError):  # It is cut off here, or is not JSON.
        return ""
    root = fields["root"]
    return root if fields["type"] == _KIND and isinstance(root, str) else ""
