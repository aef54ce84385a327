"""Attacks on writable mounts: entries that programs of the host obey, modes that give rights, and links."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import subprocess
from collections.abc import Callable
from typing import Any

from tests.security.attacks.spawning import _told
from tests.security.attacks.trying import Tried, attempt


def _write(path: str) -> None:
    pathlib.Path(path).write_text("planted")


def _create(path: str, mode: int) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


def _create_without_name(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TMPFILE, 0o4700))


def _bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


def _execute(path: str) -> str:
    file = pathlib.Path(path)
    file.write_text("#!/bin/sh\necho it ran\n")
    file.chmod(0o755)
    return subprocess.run([path], capture_output=True, text=True, check=True).stdout


def _move_parent(path: str) -> None:
    """Move the folder around a path away, and put another one with the same content in its place."""
    folder, name = os.path.split(path)
    pathlib.Path(folder).rename(f"{folder} (moved)")
    pathlib.Path(folder).mkdir()
    _write(f"{folder}/{name}")


_ACTIONS: dict[str, Callable[..., Any]] = {
    "bind": _bind,
    "chmod": lambda path: pathlib.Path(path).chmod(0o755),
    "create setuid": lambda path: _create(path, 0o4755),
    "create setgid": lambda path: _create(path, 0o2755),
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "execute": _execute,
    "fifo": os.mkfifo,
    "hard link": os.link,
    "link": os.symlink,
    "make folders": os.makedirs,
    "move parent": _move_parent,
    "nameless setuid": _create_without_name,
    "node setuid": lambda path: os.mknod(path, stat.S_IFREG | 0o4755),
    "remove": os.unlink,
    "remove folder": os.rmdir,
    "rename": lambda path: pathlib.Path(path).rename(f"{path} (renamed)"),
    "replace": os.replace,
    "setgid": lambda path: pathlib.Path(path).chmod(0o2755),
    "setuid": lambda path: pathlib.Path(path).chmod(0o4755),
    "write": _write,
}


def change(cases: dict[str, list[str]]) -> Tried:
    """Try each case: the name of an action, and its paths."""
    return {name: attempt(_ACTIONS[action], *paths) for name, (action, *paths) in cases.items()}


def below(policies: dict[str, dict[str, Any]], cases: dict[str, list[str]]) -> dict[str, Any]:
    """Spawn a child under each policy that tries the cases. Return the outcomes of each, or the refusal."""
    import ramet
    from ramet.sub_agent_client import spawn_sub_agent

    outcomes: dict[str, Any] = {}
    for name, fields in policies.items():
        try:
            result = spawn_sub_agent(agent=change, args=(cases,), policy=ramet.Policy(**fields))
        except Exception as problem:
            outcomes[name] = _told(problem)
        else:
            outcomes[name] = result.output if result.error is None else {"error": result.error.message}
    return outcomes


def below_then_change(
    policies: dict[str, dict[str, Any]], cases: dict[str, list[str]], own_cases: dict[str, list[str]]
) -> Tried:
    """Try cases in children, and then other cases here."""
    below(policies, cases)
    return change(own_cases)
