"""Read the `permissions` of settings files into rules. A rule that is not understood is refused, never ignored.

Rules of `deny` and `ask`, and the modes `plan` and `dontAsk`, apply at once, because they narrow. Rules of `allow`, and
the modes `acceptEdits` and `bypassPermissions`, widen: those of a folder apply only after a person trusts the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.trust import HOOK_SETTINGS, MAX_SETTINGS, is_trusted
from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import (
    EFFECTS,
    MODES,
    NARROWING_MODES,
    WIDENING_MODES,
    Effect,
    Mode,
    ModeRule,
    PermissionRule,
    Permissions,
)
from ramet.core.tool_names import EDITING_TOOLS, READING_TOOLS
from ramet.tools.permissions.parsing import parse_rule
from ramet.tools.permissions.path_rules import cost

MAX_RULES = 1_000  #: of one list
MAX_COST = 3_000  #: maximum cost of all narrowing path patterns of one file
USER_SETTINGS = "settings.json"
KEYS = (*EFFECTS, "defaultMode", "additionalDirectories", "disableBypassPermissionsMode")


class FilePermissions(NamedTuple):
    """The rules of one settings file, whether they apply or not."""

    path: Path
    rules: tuple[PermissionRule, ...] = ()
    mode: ModeRule | None = None
    no_bypass: bool = False
    directories: tuple[str, ...] = ()


class FoundPermissions(NamedTuple):
    """The rules that apply in a folder, and notes for a person."""

    active: Permissions = Permissions()
    pending: Permissions = Permissions()  #: rules that apply once the folder is trusted
    notes: tuple[str, ...] = ()


def find_permissions(folder: Path | None, *, user_dir: Path | None, home: Path | None = None) -> FoundPermissions:
    """Read the user's settings, then those of `folder`.

    Raises Unreadable or InvalidValue, with the file and the rule, for anything that cannot be understood.
    """
    user_files = list(_user_files(user_dir, home))
    project_files = list(_project_files(folder)) if folder is not None else []
    widens = any(each.effect == "allow" for file in project_files for each in file.rules) or any(
        file.mode is not None and file.mode.mode in WIDENING_MODES for file in project_files
    )
    trusted = widens and folder is not None and user_dir is not None and is_trusted(folder, user_dir)
    no_bypass = any(file.no_bypass for file in (*user_files, *project_files))
    active = _combine([*user_files, *(project_files if trusted else [])], no_bypass=no_bypass)
    narrowing = _combine(project_files, no_bypass=no_bypass).narrowing()
    pending = Permissions()
    if widens and not trusted:
        all_permissions = _combine([*user_files, *project_files], no_bypass=no_bypass)
        pending = Permissions(
            rules=tuple(each for each in all_permissions.rules if each.effect == "allow" and each not in active.rules),
            modes=tuple(
                each for each in all_permissions.modes if each.mode in WIDENING_MODES and each not in active.modes
            ),
        )
    active = _sort_rules(active.merge(narrowing))
    return FoundPermissions(active, pending, tuple(_notes([*user_files, *project_files], pending)))


def read_permissions(
    path: Path, *, fence: Path | None, root: Path | None, source: str | None = None
) -> FilePermissions | None:
    """Read the `permissions` of one settings file; return None if there is no file.

    `root` is the base folder of paths with one leading slash. Raises Unreadable or InvalidValue.
    """
    if not os.path.lexists(path):
        return None
    text = read_text(path, limit=MAX_SETTINGS, fence=fence).text
    try:
        settings = json.loads(text, object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        raise Unreadable(path, "it is not JSON") from None
    if not isinstance(settings, dict):
        raise InvalidValue(f"{path}", settings, "a mapping, as in Claude Code's settings")
    if "permissions" in getattr(settings, "repeated_keys", ()):
        raise InvalidValue(f"{path}: permissions", "twice", "the key once")
    if "permissions" not in settings:
        return FilePermissions(path)
    return _Reader(path, settings["permissions"], str(root or path.parent), source or str(path)).file()


class _Object(dict[str, Any]):
    """A JSON object that records its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        known_keys = set[str]()
        self.repeated_keys = set[str]()
        for key, _ in pairs:
            (self.repeated_keys if key in known_keys else known_keys).add(key)


class _Reader:
    """The `permissions` of one file."""

    def __init__(self, path: Path, content: Any, root: str, source: str) -> None:
        self.path, self.content, self.root, self.source = path, content, root, source

    def file(self) -> FilePermissions:
        if not isinstance(self.content, dict):
            raise InvalidValue(f"{self.path}: permissions", self.content, f"a mapping with any of {', '.join(KEYS)}")
        for key in getattr(self.content, "repeated_keys", ()):
            raise InvalidValue(f"{self.path}: permissions.{key}", "twice", "the key once")
        for key in self.content:
            if key not in KEYS:
                raise InvalidValue(f"{self.path}: permissions key", key, f"one of {', '.join(KEYS)}")
        rules = tuple(rule for effect in EFFECTS for rule in self._rules(effect))
        costs = sum(
            cost(rule.specifier)
            for rule in rules
            if rule.specifier is not None and rule.tool in READING_TOOLS | EDITING_TOOLS and rule.effect != "allow"
        )
        if costs > MAX_COST:
            raise InvalidValue(f"{self.path}: permissions", f"{len(rules)} rules", "fewer path patterns with ** or {…}")
        return FilePermissions(
            self.path, rules, self._mode(), self._no_bypass(), tuple(self._list("additionalDirectories"))
        )

    def _rules(self, effect: Effect) -> Iterator[PermissionRule]:
        field = f"{self.path}: permissions.{effect}"
        texts = self._list(effect)
        if len(texts) > MAX_RULES:
            raise InvalidValue(field, f"{len(texts)} rules", f"at most {MAX_RULES} rules")
        home = _home()
        for text in texts:
            yield parse_rule(text, effect, source=self.source, field=field, root=self.root, home=home)

    def _mode(self) -> ModeRule | None:
        mode: Mode | None = self.content.get("defaultMode")
        if mode is None:
            return None
        if mode not in MODES:
            raise InvalidValue(f"{self.path}: permissions.defaultMode", mode, ", ".join(MODES))
        return ModeRule(mode=mode, source=self.source)

    def _no_bypass(self) -> bool:
        value = self.content.get("disableBypassPermissionsMode")
        if value not in (None, "disable"):
            raise InvalidValue(f"{self.path}: permissions.disableBypassPermissionsMode", value, "'disable'")
        return value is not None

    def _list(self, key: str) -> list[str]:
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidValue(f"{self.path}: permissions.{key}", value, "a list of texts")
        return value


def _user_files(user_dir: Path | None, home: Path | None) -> Iterator[FilePermissions]:
    paths = [user_dir / USER_SETTINGS] if user_dir is not None else []
    paths += [home / ".claude" / USER_SETTINGS] if home is not None else []
    for path in dict.fromkeys(paths):
        permissions = read_permissions(path, fence=None, root=None)
        if permissions is not None:
            yield permissions


def _project_files(folder: Path) -> Iterator[FilePermissions]:
    for name in HOOK_SETTINGS:
        if not os.path.lexists(f"{folder}/{name}"):  # Most folders have none; a path object costs more than the look.
            continue
        permissions = read_permissions(folder / name, fence=folder, root=folder, source=name)
        if permissions is not None:
            yield permissions


def _combine(files: list[FilePermissions], *, no_bypass: bool) -> Permissions:
    """Return the combination of all files: every rule, every narrowing mode, and the last of the other modes."""
    modes = [file.mode for file in files if file.mode is not None]
    narrow = [mode for mode in modes if mode.mode in NARROWING_MODES]
    others = [mode for mode in modes if mode.mode not in NARROWING_MODES][-1:]
    if no_bypass:
        others = [mode for mode in others if mode.mode != "bypassPermissions"]
    widening = [mode for mode in others if mode.mode in WIDENING_MODES]
    return Permissions(rules=tuple(rule for file in files for rule in file.rules), modes=(*narrow, *widening))


def _sort_rules(permissions: Permissions) -> Permissions:
    """Return the permissions with rules in the order of evaluation: deny, ask, allow."""
    return Permissions(
        rules=tuple(each for effect in EFFECTS for each in permissions.with_effect(effect)), modes=permissions.modes
    )


def _notes(files: list[FilePermissions], pending: Permissions) -> Iterator[str]:
    if pending:
        names = [each.text for each in pending.rules] + [f"defaultMode {each.mode}" for each in pending.modes]
        text = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        yield f"permissions that allow something have no effect until you trust this folder (ramet trust DIR): {text}"
    for file in files:
        if file.directories:
            yield f"{file.path}: permissions.additionalDirectories is not supported: tools stay in the workspace"


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return ""
