"""The packages of MCP servers that `ramet mcp install` put into the user's cache, as a tree uses them.

The lock file of the tree's folder says which packages a command means. A folder of the cache has them, by the hash of
that lock. Before a process first mounts such a folder, all of its files are hashed, and compared with the hash of the
moment in which they were installed: from then on every sandbox only reads them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.mcp_lock import LockFile, read_lock_file
from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import PackageCommand, package_command
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.package_tree import RECORD, TREE, Program, folder_name, is_unchanged, program_of

#: The folder of all installed packages, in the user's folder of caches.
PACKAGES: Final = "ramet/mcp"


class _Installed(NamedTuple):
    """An installed package of a server."""

    server: McpServer
    command: PackageCommand
    folder: Path

    @property
    def program(self) -> Program:
        return program_of(self.command, self.folder / TREE)


class InstalledPackages:
    """The installed packages (`ramet.tools.mcp.package_port.McpPackages`) of the servers of one folder."""

    #: Folders whose files this process has compared.
    _checked: Final[set[Path]] = set()

    def __init__(self, project: Path) -> None:
        self._project = project

    def mounts(self, servers: Sequence[McpServer]) -> tuple[str, ...]:
        """Return the folders that a sandbox needs for these servers. Raises InvalidValue."""
        paths = [path for each in self._installed(servers) for path in each.program.mounts]
        return tuple(dict.fromkeys(paths))

    async def programs(self, servers: Sequence[McpServer]) -> Mapping[str, McpServer]:
        """Return entries that start the installed programs, by name, once their files are compared.

        Raises InvalidValue for a package that is not installed, or whose files have changed.
        """
        programs: dict[str, McpServer] = {}
        for each in self._installed(servers):
            if each.folder not in self._checked:
                if not await asyncio.to_thread(is_unchanged, each.folder):
                    raise _refusal(each.server, "whose installed files have changed")
                self._checked.add(each.folder)
            first, *rest = each.program.command
            programs[each.server.name] = dataclasses.replace(
                each.server, command=first, args=(*rest, *each.command.args)
            )
        return programs

    def _installed(self, servers: Sequence[McpServer]) -> list[_Installed]:
        installed = []
        lock_file: LockFile | None = None
        for server in servers:
            command = package_command(server)
            if command is None:
                continue
            if lock_file is None:
                lock_file = _lock_file(self._project)
            lock = lock_file.find(command)
            folder = None if lock is None else packages_folder() / folder_name(command, lock)
            if folder is None or not (folder / RECORD).is_file():
                raise _refusal(server, "which is not installed")
            installed.append(_Installed(server, command, folder))
        return installed


def packages_folder() -> Path:
    """Return the folder of all installed packages, without a link in its path; it may not exist yet."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return ((chosen if chosen.is_absolute() else Path.home() / ".cache") / PACKAGES).resolve()


def _lock_file(project: Path) -> LockFile:
    try:
        return read_lock_file(project)
    except Unreadable as error:
        raise InvalidValue("mcp", str(error.path), f"a lock file that can be read: {error.reason}") from None


def _refusal(server: McpServer, reason: str) -> InvalidValue:
    shown = " ".join((server.command, *server.args))[:200]
    accepted = f"an installed package, and none {reason}: ramet mcp install {server.name}"
    return InvalidValue(f"mcp.{server.name}.command", shown, accepted)
