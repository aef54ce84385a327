"""Glob patterns over relative paths: `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of directories.

As in ignore files, a pattern without a slash matches names at any depth; a pattern that starts with `./`, or contains a
slash, is anchored at the top. A pattern that ends in a slash matches directories. Only the standard library is imported
here: the search without ripgrep runs this in a small separate process.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator

MAX_PATTERN = 1_000
MAX_ALTERNATIVES = 100
MAX_BRACES = 100  #: opening braces in one pattern
_MAGIC = frozenset("*?[{")


class BadPattern(ValueError):
    """The error for an invalid pattern, with the reason."""


class Pattern:
    """A pattern that can be matched against paths. A leading `!` inverts the result."""

    __slots__ = ("_alternatives", "directories", "globs", "is_negated", "text")

    def __init__(self, text: str) -> None:
        if not text.strip() or len(text) > MAX_PATTERN or "\0" in text:
            raise BadPattern(f"a pattern has 1 to {MAX_PATTERN} characters, none of them NUL")
        self.text = text
        self.is_negated = text.startswith("!")
        text = text.removeprefix("!")
        self.directories = text.endswith("/")
        self.globs = tuple(_anchor(each) for each in brace_alternatives(text.rstrip("/")))
        self._alternatives = tuple(tuple(map(_segment, each.split("/"))) for each in self.globs)

    def split(self) -> tuple[str, str]:
        """Return the literal leading directories, and the pattern below them: the place to begin a search."""
        if self.is_negated or len(self.globs) != 1:
            return "", self.text
        parts = self.globs[0].split("/")
        fixed = next((at for at, part in enumerate(parts[:-1]) if _MAGIC & set(part)), len(parts) - 1)
        return "/".join(parts[:fixed]), "./" + "/".join(parts[fixed:]) + ("/" if self.directories else "")

    def fits(self, path: str) -> bool:
        """Return whether a relative path, with `/` between its parts, matches."""
        parts = path.split("/")
        return any(_fits(each, parts) for each in self._alternatives) is not self.is_negated

    def covers(self, path: str) -> bool:
        """Return whether a relative path, or a directory above it, matches, as in ignore files."""
        parts = path.split("/")
        return any(_fits(each, parts, whole=False) for each in self._alternatives) is not self.is_negated


def _anchor(text: str) -> str:
    is_anchored = text.startswith(("./", "/"))
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadPattern("'..' is not accepted in a pattern")
    if not parts:
        raise BadPattern("a pattern must contain a name")
    if parts[-1] == "**":
        parts.append("*")  # everything below, not the directory itself
    return "/".join(parts if is_anchored or len(parts) > 1 else ["**", *parts])


def _segment(text: str) -> re.Pattern[str] | None:
    """Return one name's pattern; None stands for any number of directories."""
    if text == "**":
        return None
    return re.compile(fnmatch.translate(text.replace("[^", "[!")))


def _fits(pattern: tuple[re.Pattern[str] | None, ...], parts: list[str], *, whole: bool = True) -> bool:
    """Match from the left with all possible positions in the pattern: no backtracking.

    Without `whole` the first parts of the path are enough.
    """
    states = _with_skips({0}, pattern)
    for part in parts:
        following = set()
        for at in states:
            if at < len(pattern):
                segment = pattern[at]
                if segment is None:
                    following.add(at)
                elif segment.match(part):
                    following.add(at + 1)
        if not following:
            return False
        states = _with_skips(following, pattern)
        if not whole and len(pattern) in states:
            return True
    return len(pattern) in states


def _with_skips(states: set[int], pattern: tuple[re.Pattern[str] | None, ...]) -> set[int]:
    """Add the positions after each `**`, which may also match nothing."""
    for at in sorted(states):
        while at < len(pattern) and pattern[at] is None:
            at += 1
            states.add(at)
    return states


def brace_alternatives(text: str) -> list[str]:
    """Return the patterns that the braces of a pattern stand for. Raises BadPattern if they are too many."""
    if text.count("{") > MAX_BRACES:  # Each is examined separately, inside of the others.
        raise BadPattern(f"a pattern has at most {MAX_BRACES} braces")
    alternatives: list[str] = []
    for each in _alternatives(text):
        alternatives.append(each)
        if len(alternatives) > MAX_ALTERNATIVES:
            raise BadPattern(f"the braces stand for more than {MAX_ALTERNATIVES} patterns")
    return alternatives


def _alternatives(text: str) -> Iterator[str]:
    """Yield the patterns that braces stand for; unpaired braces are literal."""
    start = text.find("{")
    if start < 0:
        yield text
        return
    depth, commas = 0, [start]
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "," and depth == 1:
            commas.append(at)
        elif text[at] == "}":
            depth -= 1
            if not depth:
                commas.append(at)
                break
    if depth or len(commas) < 3:
        end = start + 1 if depth else commas[-1] + 1
        yield from (text[:end] + tail for tail in _alternatives(text[end:]))
        return
    for left, right in itertools.pairwise(commas):
        for inner in _alternatives(text[left + 1 : right]):
            yield from (text[:start] + inner + tail for tail in _alternatives(text[commas[-1] + 1 :]))
