"""The program of an external agent: what it needs of its sandbox, and what it gets.

The files of a program belong to its definition, which only code of the host writes. So they are mounted whatever the
runs above may read. Every other right of the program is one of its policy, and narrowed as any.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from ramet.agent.external.external import External
from ramet.core.errors import SpawnRefused
from ramet.core.policy.policy import Grant, Policy
from ramet.wire.external_program import ProgramStart

#: Of a program whose policy does not say: for its temporary files, and for its work and its sessions.
TMPFS_MB: Final = 256
WORKSPACE_MB: Final = 1024


class Needs(NamedTuple):
    """The resources without which a program does not run."""

    memory_mb: int
    pids: int


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program of a definition, found and configured."""

    start: ProgramStart
    mounts: tuple[str, ...]
    models: tuple[str, ...]
    needs: Needs
    #: In place of `start.files` for a program that may start agents and finds the tools for that in its configuration.
    tree_files: dict[str, str] | None = None

    def start_under(self, grant: Grant | None) -> ProgramStart:
        """Return the start of the program under a grant: with the tools of the tree if the grant lets it spawn."""
        if grant is None or not grant.allow_sub_agents:
            return self.start
        files = self.start.files if self.tree_files is None else self.tree_files
        return msgspec.structs.replace(self.start, files=files, tree_tools=True)

    def policy(self, requested: Policy | None) -> Policy:
        """Return the policy of a run: what is requested, and for the rest what the program needs."""
        policy = requested or Policy()
        defaults: dict[str, Any] = {
            "memory_mb": self.needs.memory_mb,
            "pids": self.needs.pids,
            "tmpfs_size_mb": TMPFS_MB,
            "workspace_size_mb": WORKSPACE_MB,
            "models": self.models,
        }
        return msgspec.structs.replace(
            policy, **{name: value for name, value in defaults.items() if getattr(policy, name) is None}
        )

    def check(self, grant: Grant) -> None:
        """Raise SpawnRefused if a grant has less than the program needs."""
        for name, needed in self.needs._asdict().items():
            if getattr(grant, name) < needed:
                raise SpawnRefused(
                    f"policy.{name}",
                    f"the program needs {needed}, and does not run with less",
                    free=getattr(grant, name),
                )

    def with_mounts(self, grant: Grant) -> Grant:
        """Return the grant with the files of the program."""
        mounts = tuple(dict.fromkeys((*grant.readonly_mounts, *self.mounts)))
        return msgspec.structs.replace(grant, readonly_mounts=mounts)


class Programs(Protocol):
    """The programs of this machine."""

    @property
    def run(self) -> Callable[[ProgramStart, str, bool], Coroutine[Any, Any, str]]:
        """The function that drives a program in a sandbox, and returns its reply to a prompt.

        The last argument says whether an earlier process was cut off in this turn.
        """

    def find(self, external: External, model: str | None) -> Program:
        """Return the program of a definition. Raises InvalidValue if it is not found, or cannot ask the model."""
