"""Files of SQLite beside a journal, as a stranger may write them into a `.ramet`."""

from __future__ import annotations

import os
import pathlib
import socket
import struct
from collections.abc import Callable

from ramet.store.sqlite.store import SqliteStore

PAGE, SECTOR = 4096, 512
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_LOCK_PAGE = 0x4000_0000 // PAGE + 1  #: which no database uses; here a journal names a super-journal

Plant = Callable[[pathlib.Path, pathlib.Path], None]  #: is told of the state folder, and of a folder outside


def header(pages: int) -> bytes:
    """Return the header of a rollback journal that undoes each write to a database of `pages` pages."""
    return (_MAGIC + struct.pack(">5I", 0, 1, pages, SECTOR, PAGE)).ljust(SECTOR, b"\0")


def super_journal(file: pathlib.Path) -> bytes:
    """Return the end of a rollback journal that names a super-journal, which SQLite removes after the rollback."""
    name = os.fsencode(file)
    return struct.pack(">I", _LOCK_PAGE) + name + struct.pack(">II", len(name), sum(name)) + _MAGIC


async def make_journal(state: pathlib.Path) -> None:
    """Make an empty journal of ramet, private as ramet makes it."""
    store = await SqliteStore(state / "journal.db").open()
    await store.close()


def plant_file(name: str, content: Callable[[pathlib.Path], bytes]) -> Plant:
    """Return a plant of a file beside the journal. The content of the file may name a file outside."""

    def plant(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / f"journal.db{name}").write_bytes(content(outside / "file"))

    return plant


def plant_rollback(content: Callable[[pathlib.Path], bytes]) -> Plant:
    """Return a plant of a rollback journal beside an empty journal, as at a real start."""

    def plant(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / "journal.db").write_bytes(b"")
        (state / "journal.db-journal").write_bytes(content(outside / "file"))

    return plant


def endless(state: pathlib.Path, outside: pathlib.Path) -> None:
    """Make a rollback journal of 1 TB that takes no space on the disk."""
    (state / "journal.db-journal").write_bytes(header(0))
    os.truncate(state / "journal.db-journal", 1 << 40)


def special_files(name: str) -> dict[str, Plant]:
    """Return plants of a link, hard link, pipe, socket and folder in place of a file beside the journal."""

    def link(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / name).symlink_to(outside / "file")

    def second_name(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / name).hardlink_to(outside / "file")

    def pipe(state: pathlib.Path, outside: pathlib.Path) -> None:
        os.mkfifo(state / name, 0o600)

    def bound(state: pathlib.Path, outside: pathlib.Path) -> None:
        make_socket(state / name)

    def folder(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / name).mkdir()

    kinds: dict[str, Plant] = {"link": link, "second name": second_name, "pipe": pipe, "socket": bound}
    return {f"{kind} as {name}": with_replacement(name, plant) for kind, plant in (kinds | {"folder": folder}).items()}


def with_replacement(name: str, plant: Plant) -> Plant:
    """Return a plant that first removes the file that is there."""

    def replace(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / name).unlink(missing_ok=True)
        plant(state, outside)

    return replace


def make_socket(path: pathlib.Path) -> None:
    """Make the file of a socket that has no listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as each:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            each.bind(f"/proc/self/fd/{folder}/{path.name}")  # The whole path may be too long for a socket.
        finally:
            os.close(folder)


#: Rollback journals that no kernel leaves behind.
ROLLBACKS: dict[str, Plant] = {
    "a rollback journal that names a file": plant_file("-journal", lambda file: header(1) + super_journal(file)),
    "a beginning that names a file": plant_file("-journal", lambda file: header(0) + super_journal(file)),
    "a beginning that names a file, in one sector": plant_file(
        "-journal", lambda file: header(0)[: -len(super_journal(file))] + super_journal(file)
    ),
    "a beginning of an empty journal that names a file": plant_rollback(lambda file: header(0) + super_journal(file)),
    "zeros that name a file": plant_file("-journal", lambda file: bytes(SECTOR) + super_journal(file)),
    "a rollback journal of a database": plant_file("-journal", lambda file: header(5)),
    "a rollback journal that empties a journal": plant_file("-journal", lambda file: header(0)),
    "an endless rollback journal": endless,
}
SIDECARS = {
    name: plant
    for suffix in ("-wal", "-shm", "-journal", ".lock")
    for name, plant in special_files(f"journal.db{suffix}").items()
}
