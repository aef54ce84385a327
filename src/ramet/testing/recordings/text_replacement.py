"""Replacement of texts in JSON values, also where a stream of values cuts a text into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[object, ...]


class TextReplacement:
    """A replacement of each of some texts by another one; of two that begin at one place, the longer one counts."""

    def __init__(self, replacements: Mapping[str, str]) -> None:
        self._replacements = {text: other for text, other in replacements.items() if text}
        texts = sorted(self._replacements, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def apply(self, values: list[Any]) -> list[Any]:
        """Return copies of JSON values with the other texts, also where a text runs on at one place of the next value.

        So the values may be the chunks of a reply. A text stays in the value in which it begins.
        """
        if self._pattern is None:
            return values
        texts: dict[Path, list[str]] = {}
        for value in values:
            _collect(value, (), texts)
        pieces = {path: iter(self._replace_in(parts)) for path, parts in texts.items()}
        return [self._rebuild(value, (), pieces) for value in values]

    def is_in(self, text: str) -> bool:
        """Return whether a text has one of the texts that are replaced."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def _replace(self, match: re.Match[str]) -> str:
        return self._replacements[match[0]]

    def _replace_in(self, pieces: list[str]) -> list[str]:
        """Replace in the joined text, and cut it where it was cut before."""
        assert self._pattern is not None
        matches = list(self._pattern.finditer("".join(pieces)))
        if not matches:
            return pieces
        replaced, at = [], 0
        for piece in pieces:
            end, rest, text = at + len(piece), at, ""
            for match in matches:
                if match.end() <= at or match.start() >= end:
                    continue
                text += piece[rest - at : max(match.start() - at, 0)]
                text += self._replace(match) if match.start() >= at else ""
                rest = min(match.end(), end)
            replaced.append(text + piece[rest - at :])
            at = end
        return replaced

    def _rebuild(self, value: Any, path: Path, pieces: Mapping[Path, Iterator[str]]) -> Any:
        if isinstance(value, str):
            return next(pieces[path])
        if isinstance(value, dict):
            assert self._pattern is not None
            return {
                self._pattern.sub(self._replace, key): self._rebuild(item, (*path, key), pieces)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._rebuild(item, (*path, _place(item, at)), pieces) for at, item in enumerate(value)]
        return value


def _collect(value: Any, path: Path, texts: dict[Path, list[str]]) -> None:
    if isinstance(value, str):
        texts.setdefault(path, []).append(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, (*path, key), texts)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _collect(item, (*path, _place(item, at)), texts)


def _place(item: Any, at: int) -> object:
    """Return the place of an item of a list in a stream: providers number the blocks that a chunk adds to."""
    return item.get("index", at) if isinstance(item, dict) else at
