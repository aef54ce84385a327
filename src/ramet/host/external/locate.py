"""Find the files of a program on this machine: the executable, what starts it, and the folders that it reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePath
from typing import NamedTuple

from ramet.core.errors import InvalidValue

#: Folders that every sandbox sees.
_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_PACKAGES = "node_modules"
_MAX_SHEBANG = 256


class Location(NamedTuple):
    """A program: how it is started, and what must be mounted for that."""

    command: tuple[str, ...]
    mounts: tuple[str, ...]


def find(executable: str, search_path: str | None = None) -> Location | None:
    """Return where an executable is, or None if it is not in PATH.

    Raises InvalidValue if what starts it, such as node, is not found.
    """
    found = shutil.which(executable, path=search_path)
    return None if found is None else _location(Path(found).resolve(), search_path)


def locate(command: tuple[str, ...], search_path: str | None = None) -> Location:
    """Return a command with the whole path of its program, and what must be mounted for it.

    Raises InvalidValue if the program is not found.
    """
    found = find(command[0], search_path)
    if found is None:
        raise InvalidValue("external.command", command[0], "a program that is in PATH, or an absolute path")
    return Location((*found.command, *command[1:]), found.mounts)


def _location(program: Path, search_path: str | None) -> Location:
    interpreter = _interpreter(program)
    mounts = [_root_of(program)]
    started_by = [each for each in interpreter if not each.startswith("-")]
    if not started_by:
        return Location((str(program),), _hidden(mounts))
    if PurePath(started_by[0]).name == "env" and len(started_by) > 1:
        started_by = started_by[1:]
    found = shutil.which(started_by[0], path=search_path)
    if found is None:
        raise InvalidValue("external", str(program), f"a program whose {started_by[0]} is in PATH")
    starter = Path(found).resolve()
    return Location((str(starter), *started_by[1:], str(program)), _hidden([*mounts, str(starter)]))


def _interpreter(program: Path) -> list[str]:
    """Return the words of a script's first line; none for a program in machine code."""
    try:
        with program.open("rb") as file:
            line = file.read(_MAX_SHEBANG).split(b"\n", 1)[0]
    except OSError as problem:
        raise InvalidValue("external", str(program), f"a program that can be read ({problem.strerror})") from None
    return line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []


def _root_of(program: Path) -> str:
    """Return what a program needs of its files: the outermost folder of packages around it, or itself."""
    parts = program.parts
    if _PACKAGES in parts:
        return str(Path(*parts[: parts.index(_PACKAGES) + 1]))
    return str(program)


def _hidden(mounts: list[str]) -> tuple[str, ...]:
    """Return the mounts that a sandbox does not see anyway."""
    return tuple(dict.fromkeys(each for each in mounts if not _is_visible(each)))


def _is_visible(path: str) -> bool:
    return any(os.path.commonpath((path, each)) == each for each in _VISIBLE)
