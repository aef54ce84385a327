"""The lock file of a project's MCP servers: the exact packages that `ramet mcp install` found for `npx` and `uvx`.

It has versions and hashes, and no address: a package comes from the registry that the user's own clients use. It is
part of what a person trusts. Whoever wrote it, nothing in it makes a client of a registry look anywhere else.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ramet.agent.files.bounded_read import read_text
from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import NPM_NAME, PYPI_NAME, PackageCommand, Registry

LOCK_FILE: Final = ".mcp.lock.json"
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_PACKAGES: Final = 3_000  #: of one server
_VERSION: Final = r"^[0-9A-Za-z][0-9A-Za-z.!+_-]{0,127}\Z"
#: Versions that a package of npm accepts of another, perhaps under another name: no address and no folder.
_RANGE: Final = rf"^(npm:{NPM_NAME}@)?(?![.])[0-9A-Za-z .^~<>=|*+-]{{0,1000}}\Z"
_NPM_PATH: Final = re.compile(rf"node_modules/{NPM_NAME}(?:/node_modules/{NPM_NAME})*\Z")
_PYPI_PATH: Final = re.compile(rf"{PYPI_NAME}\Z")

_Version = Annotated[str, Meta(pattern=_VERSION)]
_Ranges = dict[str, Annotated[str, Meta(pattern=_RANGE)]]
_Texts = Annotated[list[str], Meta(max_length=100)]


class PypiPackage(Struct, frozen=True, forbid_unknown_fields=True):
    """A package of PyPI: a version, and the hash of its wheel."""

    version: _Version
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class NpmPackage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A package of npm as its own lock file has it, without its address."""

    version: _Version
    integrity: Annotated[str, Meta(pattern=r"^sha512-[A-Za-z0-9+/]{86}==\Z")]
    name: Annotated[str, Meta(pattern=rf"^({NPM_NAME})?\Z")] = ""  #: if its folder has another name
    dependencies: _Ranges = {}
    optional_dependencies: _Ranges = {}
    peer_dependencies: _Ranges = {}
    peer_dependencies_meta: dict[str, dict[str, bool]] = {}
    engines: dict[str, str] = {}
    os: _Texts = []
    cpu: _Texts = []
    libc: _Texts = []
    optional: bool = False
    dev_optional: bool = False
    peer: bool = False


class PackageLock(Struct, frozen=True, forbid_unknown_fields=True):
    """The packages that a server's package needs, itself included: of npm by folder, of PyPI by name."""

    npm: dict[str, NpmPackage] = {}
    pypi: dict[str, PypiPackage] = {}
    python: Annotated[str, Meta(pattern=r"^(3\.[0-9]{1,3})?\Z")] = ""  #: of packages of PyPI: others may need others

    @property
    def digest(self) -> str:
        """Return a hash of the whole: an installation belongs to one lock."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def check(self, registry: Registry) -> None:
        """Raise InvalidValue for packages of another registry, too many, or with names that are none."""
        packages: Mapping[str, Any] = self.npm if registry == "npm" else self.pypi
        others: Mapping[str, Any] = self.pypi if registry == "npm" else self.npm
        pattern = _NPM_PATH if registry == "npm" else _PYPI_PATH
        if others or not packages or len(packages) > MAX_PACKAGES:
            accepted = f"1 to {MAX_PACKAGES} packages of {registry}"
            raise InvalidValue(LOCK_FILE, f"{len(packages)} packages, and {len(others)} others", accepted)
        for each in packages:
            if len(each) > 1_000 or not pattern.match(each):
                raise InvalidValue(LOCK_FILE, each[:200], f"the names of packages of {registry}")


class LockFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a lock file: for each package command, what it runs."""

    version: Literal[1] = 1
    commands: dict[str, PackageLock] = {}  #: by `PackageCommand.key`

    def find(self, command: PackageCommand) -> PackageLock | None:
        """Return the lock of a command's package, or None. Raises InvalidValue."""
        lock = self.commands.get(command.key)
        if lock is not None:
            lock.check(command.registry)
        return lock


def read_lock_file(folder: Path) -> LockFile:
    """Return the lock file of a project; an empty one without a file. Raises Unreadable, InvalidValue."""
    path = folder / LOCK_FILE
    if not os.path.lexists(path):
        return LockFile()
    text = read_text(path, limit=MAX_BYTES, fence=folder.resolve()).text
    try:
        return msgspec.json.decode(text, type=LockFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidValue(LOCK_FILE, "its content", f"what `ramet mcp install` writes ({str(error)[:200]})") from None


def write_lock_file(folder: Path, content: LockFile) -> None:
    """Replace the lock file of a project; a reader sees the old one or the new one."""
    data = msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=2) + b"\n"
    handle, draft = tempfile.mkstemp(prefix=f"{LOCK_FILE}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(data)
        Path(draft).replace(folder / LOCK_FILE)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
