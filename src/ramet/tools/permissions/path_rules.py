"""Patterns of files, in the notation of ignore files: `secrets/**`, `*.pem`, `/build`, `~/.ssh/**`, `//etc/**`.

`//x` is relative to the root of the file system, `~/x` to the home, `/x` to the folder of the settings. `./x` and `x`
are relative to the tool's working directory; a bare name matches at any depth there. A pattern that matches a directory
matches everything in it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Effect, PermissionRule
from ramet.tools.glob_patterns import BadPattern, Pattern
from ramet.tools.permissions.worktree_copies import Checkouts, originals

MAX_PARTS = 256  #: maximum parts of a path that is matched
#: A name that stands for any file of a folder: a pattern that matches it covers the whole folder.
ANY_CHILD = "\x01"
_ACCEPTED = "a path pattern as in an ignore file, such as ./secrets/**, *.pem, ~/.ssh/** or //etc/**"

Base = Literal["file system", "home", "settings", "directory"]


class PathPattern(NamedTuple):
    """A pattern, and the base of its path."""

    base: Base
    pattern: Pattern


@lru_cache(maxsize=4096)
def path_pattern(specifier: str) -> PathPattern:
    """Parse a pattern. Raises InvalidValue if it is invalid."""
    base: Base = "directory"
    text = specifier.strip()
    if text.startswith("//"):
        base, text = "file system", f"./{text[2:]}"
    elif text.startswith("~/"):
        base, text = "home", f".{text[1:]}"
    elif text.startswith("/"):
        base, text = "settings", f".{text}"
    elif text.startswith(("~", "!")):
        raise InvalidValue("path", specifier, _ACCEPTED)
    try:
        pattern = Pattern(text)
    except BadPattern as error:
        raise InvalidValue("path", specifier, f"{_ACCEPTED}; {error}") from None
    return PathPattern(base, pattern)


def cost(specifier: str) -> int:
    """Return the cost of a pattern: its alternatives plus the number of `**` in them."""
    globs = path_pattern(specifier).pattern.globs
    return sum(1 + each.count("**") for each in globs)


class Bound(NamedTuple):
    """A rule of `deny` or `ask`, bound to the base folders of its path for one tool call."""

    effect: Effect
    pattern: Pattern
    bases: tuple[str, ...]

    def fits(self, names: Iterable[str]) -> bool:
        """Return whether any of a file's names matches, or a name that it is a copy of."""
        all_names = (original for name in names for original in originals(name))
        return any(_fits(self.pattern, name, base, unclear=True) for name in all_names for base in self.bases)


def bind(rule: PermissionRule, cwd: str, checkouts: Checkouts | None = None) -> Bound:
    """Bind a narrowing rule. A path also means the same path in every copy that ramet made of the repository."""
    assert rule.specifier is not None
    checkouts = checkouts or Checkouts()
    parsed = path_pattern(rule.specifier)
    bases = _bases(rule, parsed.base, cwd)
    if parsed.base == "settings":
        bases = (*bases, cwd)
    if parsed.base in ("settings", "directory"):
        bases = (*bases, *(folder for each in bases for folder in checkouts.counterparts(each, rule.root)))
    folders = dict.fromkeys(folder for each in _real(bases) for folder in originals(each))
    return Bound(rule.effect, parsed.pattern, tuple(folders))


def widens(rule: PermissionRule, names: Sequence[str], cwd: str) -> bool:
    """Return whether all names of a file match a rule of `allow`: a link that leads elsewhere is not allowed."""
    assert rule.specifier is not None
    parsed = path_pattern(rule.specifier)
    bases = _real(_bases(rule, parsed.base, cwd))
    return all(any(_fits(parsed.pattern, name, base, unclear=False) for base in bases) for name in names)


def _bases(rule: PermissionRule, base: Base, cwd: str) -> tuple[str, ...]:
    if base == "file system":
        return ("/",)
    if base == "home":
        return (rule.home,) if rule.home else ()
    if base == "settings":
        return (rule.root,) if rule.root else ()
    return (cwd,)


def _real(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders by their given names, and by the targets of links."""
    return tuple(dict.fromkeys(name for each in folders for name in (posixpath.normpath(each), os.path.realpath(each))))


def _fits(pattern: Pattern, name: str, base: str, *, unclear: bool) -> bool:
    prefix = base.rstrip("/") + "/"
    if not name.startswith(prefix):
        return False
    relative = name[len(prefix) :]
    if relative.count("/") >= MAX_PARTS:
        return unclear
    return bool(relative) and pattern.covers(relative)
