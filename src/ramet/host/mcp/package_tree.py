"""The folder of an installed package of an MCP server: its name, its content as one hash, and how it is started."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.mcp_lock import PackageLock
from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import PackageCommand
from ramet.host.external.locate import locate

TREE: Final = "tree"  #: the mounted folder
RECORD: Final = "installed.json"  #: beside it; it comes last, so a folder without it is no installation
MAX_FILES: Final = 200_000
_MAX_METADATA: Final = 1024 * 1024
_OBJECT: Final = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[.*\])?\Z", re.ASCII)


class Program(NamedTuple):
    """A program of an installed package: how it is started, and what must be mounted for it."""

    command: tuple[str, ...]
    mounts: tuple[str, ...]


def folder_name(command: PackageCommand, lock: PackageLock) -> str:
    """Return the name of the folder of a package: another lock, or another Python, has another folder."""
    parts = [lock.digest]
    if command.registry == "pypi":
        parts += [str(sys.implementation.cache_tag), sysconfig.get_platform(), os.path.realpath(sys.base_prefix)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", command.package).strip("-.")[:60]
    return f"{command.registry}-{name}-{digest[:24]}"


def tree_hash(tree: Path) -> str:
    """Return a hash over each name, kind, right to execute, and content below a folder.

    Raises OSError, InvalidValue.
    """
    total = hashlib.sha256()
    for number, path in enumerate(_walk(tree)):
        if number >= MAX_FILES:
            raise InvalidValue("its files", str(tree), f"at most {MAX_FILES}")
        status = path.lstat()
        name = os.fsencode(path.relative_to(tree))
        if stat.S_ISLNK(status.st_mode):
            content = b"link " + os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = b"program " if status.st_mode & 0o100 else b"file "
            with path.open("rb") as file:
                content += hashlib.file_digest(file, "sha256").digest()
        elif stat.S_ISDIR(status.st_mode):
            content = b"folder"
        else:
            raise InvalidValue("its files", str(path), "files, folders and links")
        total.update(b"%d:%b%d:%b" % (len(name), name, len(content), content))
    return total.hexdigest()


def is_unchanged(folder: Path) -> bool:
    """Return whether an installation is complete, and its files are still those that were installed."""
    try:
        recorded = json.loads(read_text(folder / RECORD, limit=_MAX_METADATA).text)["tree"]
        return bool(recorded == tree_hash(folder / TREE))
    except (OSError, Unreadable, InvalidValue, ValueError, KeyError, TypeError):
        return False


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def program_of(command: PackageCommand, tree: Path) -> Program:
    """Return the program of an installed package that a command starts. Raises InvalidValue."""
    try:
        return _node_program(command, tree) if command.registry == "npm" else _python_program(command, tree)
    except Unreadable as error:
        raise InvalidValue("package", command.package, f"a package with a program ({error.reason})") from None


# ---- npm


def _node_program(command: PackageCommand, tree: Path) -> Program:
    package = tree / "node_modules" / command.package
    content = _json(package / "package.json", fence=tree)
    own_name = command.package.rpartition("/")[2]
    listed = content.get("bin")
    programs = {own_name: listed} if isinstance(listed, str) else listed if isinstance(listed, dict) else {}
    chosen = command.executable or (next(iter(programs)) if len(programs) == 1 else own_name)
    relative = programs.get(chosen)
    if not isinstance(relative, str):
        raise InvalidValue("package", command.package, f"one with the program {chosen!r}; it has {_names(programs)}")
    file = Path(os.path.realpath(package / relative))
    if not file.is_file() or not file.is_relative_to(os.path.realpath(tree)):
        raise InvalidValue("package", command.package, f"one whose program {chosen!r} is one of its files")
    located = locate((str(file),))
    mounts = [each for each in located.mounts if not _is_below(each, tree)]
    node = shutil.which("node")
    # Its first line is the package's own: it may name any file of this machine, which the sandbox would see then.
    if any(node is None or each != os.path.realpath(node) for each in mounts):
        accepted = f"one whose program {chosen!r} is started by node, or by a program that every sandbox sees"
        raise InvalidValue("package", command.package, accepted)
    return Program(located.command, (str(tree), *mounts))


def _json(path: Path, *, fence: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path, limit=_MAX_METADATA, fence=Path(os.path.realpath(fence))).text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Unreadable(path, "it is no object of JSON")
    return content


def _is_below(path: str, tree: Path) -> bool:
    return Path(path).is_relative_to(tree)


# ---- PyPI


def site_packages(tree: Path) -> Path:
    """Return the folder of the modules of an environment."""
    return tree / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _python_program(command: PackageCommand, tree: Path) -> Program:
    programs: dict[str, str] = {}
    own = normal_name(command.package)
    for folder in sorted(site_packages(tree).glob("*.dist-info")):
        scripts = _console_scripts(folder / "entry_points.txt", fence=tree)
        is_own = normal_name(folder.name.rpartition(".")[0].partition("-")[0]) == own
        # A package may leave its program to one that it needs.
        programs = programs | scripts if is_own else scripts | programs
    target = _OBJECT.match(programs.get(command.executable, ""))
    if target is None:
        accepted = f"one with the program {command.executable!r}; it has {_names(programs)}"
        raise InvalidValue("package", command.package, accepted)
    module, function = target.groups()
    code = f"import sys; sys.argv[0] = {command.executable!r}; import {module} as module; sys.exit(module.{function}())"
    # -P: the agent's own folder, in which it may have written modules, is not searched.
    return Program((str(tree / "bin" / "python"), "-P", "-c", code), (str(tree),))


def _console_scripts(path: Path, *, fence: Path) -> dict[str, str]:
    if not os.path.lexists(path):
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(read_text(path, limit=_MAX_METADATA, fence=Path(os.path.realpath(fence))).text)
    except configparser.Error:
        raise Unreadable(path, "it is no list of programs") from None
    return dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}


def normal_name(name: str) -> str:
    """Return the name of a package of PyPI as all of its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(programs: dict[str, Any]) -> str:
    return ", ".join(sorted(str(each)[:60] for each in programs)[:20]) or "none"
