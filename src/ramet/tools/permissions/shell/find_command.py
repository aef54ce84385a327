"""Determine the programs that `find` starts, with patterns in place of the found names."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from typing import NamedTuple

from ramet.tools.permissions.shell.programs import FIND_ACTIONS
from ramet.tools.permissions.shell.words import Word

MAX_ACTIONS = 20
_NAME = "{}"
_ALTERNATIVES, _GROUPS = frozenset({"-o", "-or", ","}), frozenset({"(", ")", "!", "-not"})
_OPTIONS = frozenset({"-H", "-L", "-P", "--"})


class _Names(NamedTuple):
    """The known part of names: their prefix, and a pattern of their last parts."""

    start: str = ""
    last: str = "*"


class TooManyActions(Exception):
    """The error for a find command that starts more programs than are examined."""


def started_by_find(operands: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """Yield the words of each program that find starts. A word with a name in it counts as an expanded one.

    Raises TooManyActions after the first `MAX_ACTIONS` programs.
    """
    actions = [at for at, word in enumerate(operands) if word.text in FIND_ACTIONS]
    for at in actions[:MAX_ACTIONS]:
        end = next((index for index in range(at, len(operands)) if operands[index].text == ";"), len(operands))
        names = _names(operands[:at], in_folder=operands[at].text.endswith("dir"))
        yield tuple(_with_names(names, each) for each in operands[at + 1 : end])
    if len(actions) > MAX_ACTIONS:
        raise TooManyActions


def _names(before: tuple[Word, ...], *, in_folder: bool) -> _Names:
    """Return what the words before an action determine about the names.

    `in_folder`: each is relative to its own folder.
    """
    if any(each.is_expanded or each.text in ("-D", "-files0-from") for each in before):
        return _Names("./" if in_folder else "")
    texts = [each.text for each in before]
    while texts and (texts[0] in _OPTIONS or texts[0].startswith("-O")):
        del texts[0]
    points = texts[: next((at for at, each in enumerate(texts) if each[:1] in ("-", "(", "!", ",")), len(texts))]
    start = "./" if in_folder else os.path.commonprefix(points or ["."])  # noqa: RUF071 - of characters
    last = max((at for at, each in enumerate(texts) if each in _ALTERNATIVES), default=-1)
    return _Names(start, _last_part(texts[max(last + 1, len(points)) :]))


def _last_part(tests: list[str]) -> str:
    """Return the pattern of `-name` if all tests must hold together."""
    patterns = [after for at, after in enumerate(tests[1:]) if tests[at] == "-name"]
    # If a test takes `-name` as its own word, find accepts no following pattern, unless it begins with a dash.
    if not patterns or patterns[0][:1] == "-" or "\\" in patterns[0] or not _GROUPS.isdisjoint(tests):
        return "*"
    return patterns[0]


def _with_names(names: _Names, word: Word) -> Word:
    """Return a word with a pattern of names in place of `{}`."""
    prefix, placeholder, _ = word.text.partition(_NAME)
    if not placeholder:
        return word
    text = word.text.replace(_NAME, f"{names.start}/{names.last}")
    return Word(
        text, True, word.literal if word.is_expanded else prefix + names.start, "" if word.is_expanded else text
    )
