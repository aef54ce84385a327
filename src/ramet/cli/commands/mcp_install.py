"""`ramet mcp install`: put the packages of MCP servers into the user's cache, as the lock file of the project says."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.text import Text

from ramet.agent.files import trust
from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.mcp_lock import LOCK_FILE, LockFile, PackageLock, read_lock_file, write_lock_file
from ramet.cli.paths import user_dir
from ramet.cli.render.console import console
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.core.mcp.package_command import PackageCommand, package_command
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.installed_packages import packages_folder
from ramet.host.mcp.package_installer import install, resolve
from ramet.host.mcp.package_tree import normal_name


def install_packages(options: Namespace, servers: Sequence[McpServer]) -> int:
    """Install the packages of these servers. Raises McpPackageFailed for the first one that cannot be, Unreadable."""
    folder, home = options.dir, user_dir()
    try:
        reviewed = trust.trusted_items(folder, home)
    except Unreadable as error:
        raise Unreadable(folder, f"nothing is installed: {error.reason}") from None
    wanted = {each.name: command for each in servers if (command := package_command(each)) is not None}
    lock_file = read_lock_file(folder)
    if trust.find_runnables(folder) != reviewed:
        raise Unreadable(folder, "it changed meanwhile; review it again: ramet trust DIR")
    resolved: dict[str, PackageLock] = {}
    for name, command in wanted.items():
        lock = resolved.get(command.key) or (None if options.update else lock_file.find(command))
        if lock is None:
            _say(f"{name}: looking for {command.requirement} and what it needs, in {command.registry}")
            lock = resolve(command)
        is_new = lock != lock_file.commands.get(command.key)
        _say(f"{name}: {_summary(command, lock)}")
        installed = install(command, lock, packages_folder())
        if is_new:
            resolved[command.key] = lock
            lock_file = msgspec.structs.replace(lock_file, commands={**lock_file.commands, command.key: lock})
            reviewed = _write_lock(folder, home, lock_file, reviewed)
        if options.json:
            print_json(json.dumps({"name": name, "requirement": command.requirement, "folder": str(installed)}))
    if not wanted:
        _say("no server starts with npx or uvx: there is nothing to install")
    return 0


def _write_lock(
    folder: Path, home: Path, content: LockFile, reviewed: tuple[trust.Runnable, ...]
) -> tuple[trust.Runnable, ...]:
    """Write the lock file, and trust the folder with it if nothing else has changed. Raises Unreadable."""
    write_lock_file(folder, content)
    current = trust.find_runnables(folder)
    if _without_lock(current) != _without_lock(reviewed) or read_lock_file(folder) != content:
        raise Unreadable(folder, "it changed during the installation; review it again: ramet trust DIR")
    trust.trust(folder, home, reviewed_items=current)
    return current


def _without_lock(items: tuple[trust.Runnable, ...]) -> list[trust.Runnable]:
    return [each for each in items if each.path != LOCK_FILE]


def _summary(command: PackageCommand, lock: PackageLock) -> str:
    if command.registry == "npm":
        own, count = lock.npm.get(f"node_modules/{command.package}"), len(lock.npm)
        version = own.version if own is not None else ""
    else:
        count = len(lock.pypi)
        names = {normal_name(name): each.version for name, each in lock.pypi.items()}
        version = names.get(normal_name(command.package), "")
    return f"{command.package} {version}, {count} {'package' if count == 1 else 'packages'}"


def _say(text: str) -> None:
    console(sys.stderr).print(Text(one_line(text, 500)), soft_wrap=True)
