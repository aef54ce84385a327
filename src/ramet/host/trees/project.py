"""The project files of a folder: definitions, permission rules, and hooks once the folder is trusted."""

from __future__ import annotations

import pathlib
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.agent.definition import Agent
from ramet.agent.files.definitions import Definitions, load_definitions
from ramet.agent.files.permissions import USER_SETTINGS, find_permissions
from ramet.agent.files.search_paths import Problem
from ramet.agent.files.settings import hooks_in, project_settings
from ramet.agent.files.trust import is_trusted, may_run_git
from ramet.core.policy.permissions import Permissions
from ramet.isolation.git.git import Git

UNTRUSTED = "hooks in this folder's settings are off until you trust it: ramet trust DIR"


def git_of(user_dir: pathlib.Path | None) -> Git:
    """Return Git that runs unconfined only in repositories that the user trusts in their present state."""
    return Git() if user_dir is None else Git(trusts=lambda folder: may_run_git(folder, user_dir))


class Project(Mapping[str, Agent]):
    """The definitions that a tree sees, as they were when the tree opened or at the last `reload`.

    Files that a run writes do not change which definitions its own tree may spawn: only the owner can reload them.
    """

    def __init__(
        self,
        definitions: Definitions,
        hooks: Sequence[Mapping[str, Any]],
        notes: Sequence[str],
        permissions: Permissions | None = None,
    ) -> None:
        self._definitions = definitions
        self._view = definitions.snapshot()
        self.hooks = tuple(hooks)  #: configurations, in the order in which they are called
        self.notes = tuple(notes)  #: for a person: what is disabled, and why
        self.permissions = permissions  #: rules that apply in the folder; None without a folder

    @classmethod
    def open(
        cls,
        folder: pathlib.Path | None,
        *,
        user_dir: pathlib.Path | None,
        user_texts: bool = True,
        home: pathlib.Path | None = None,
        managed_dir: pathlib.Path | None = None,
        plugin_dirs: Sequence[pathlib.Path] = (),
        call: Sequence[Agent] = (),
    ) -> Project:
        """Read a folder and the user's own files; without either, only `call` and the built-in definitions.

        Without `user_texts` no definitions of the user are read; the user's settings and trust still apply. Raises
        Unreadable or InvalidValue for settings that cannot be understood.
        """
        trusted = folder is not None and user_dir is not None and is_trusted(folder, user_dir)
        loaded = load_definitions(
            folder,
            user_dir=user_dir if user_texts else None,
            home=home,
            managed_dir=managed_dir,
            plugin_dirs=plugin_dirs,
            call=call,
            trusted=trusted,
        )
        hooks = [hooks_in(user_dir / USER_SETTINGS, fence=None)] if user_dir is not None else []
        notes = []
        settings = project_settings(folder) if folder is not None else ()
        if trusted:
            hooks += [hooks_in(path, fence=folder) for path in settings]
        elif settings:
            notes.append(UNTRUSTED)
        permissions = None
        if folder is not None:
            settings_permissions = find_permissions(folder, user_dir=user_dir, home=home)
            permissions = settings_permissions.active
            notes += settings_permissions.notes
        notes += [str(note) for note in loaded.notes]
        return cls(loaded, [each for each in hooks if each], notes, permissions)

    def with_call(self, call: Sequence[Agent]) -> Mapping[str, Agent]:
        """Return these definitions and those of a session, which take precedence over all but an administrator's."""
        of_session = {each.name: each for each in call if each.name not in self or self[each.name].scope != "managed"}
        return ChainMap(of_session, self) if of_session else self  # type: ignore[arg-type]  # only read

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Files that could not be read as definitions, each with one sentence."""
        return self._view.problems

    def reload(self) -> bool:
        """Read changed files again; return True if any has changed.

        A file that is invalid now keeps its last valid version.
        """
        changed = self._definitions.refresh()
        self._view = self._definitions.snapshot()
        return changed

    def __getitem__(self, name: str) -> Agent:
        return self._view[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)
