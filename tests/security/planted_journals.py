"""SQLite's files beside a journal, as a stranger may write them into a `.ramet`."""

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
    """The header of a rollback journal that undoes all that was written to a database of so many pages."""
    return (_MAGIC + struct.pack(">5I", 0, 1, pages, SECTOR, PAGE)).ljust(SECTOR, b"\0")


def naming(file: pathlib.Path) -> bytes:
    """The end of a rollback journal that names a super-journal, which SQLite removes after it rolled back."""
    name = os.fsencode(file)
    return struct.pack(">I", _LOCK_PAGE) + name + struct.pack(">II", len(name), sum(name)) + _MAGIC


async def make_journal(state: pathlib.Path) -> None:
    """Make an empty journal of ramet, private as ramet makes it."""
    store = await SqliteStore(state / "journal.db").open()
    await store.close()


def beside(name: str, content: Callable[[pathlib.Path], bytes]) -> Plant:
    """A file beside the journal; its content may name a file outside."""

    def plant(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / f"journal.db{name}").write_bytes(content(outside / "file"))

    return plant


def beside_empty(content: Callable[[pathlib.Path], bytes]) -> Plant:
    """A rollback journal beside a journal without content, as at a real beginning."""

    def plant(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / "journal.db").write_bytes(b"")
        (state / "journal.db-journal").write_bytes(content(outside / "file"))

    return plant


def endless(state: pathlib.Path, outside: pathlib.Path) -> None:
    """A rollback journal of 1 TB that takes no room."""
    (state / "journal.db-journal").write_bytes(header(0))
    os.truncate(state / "journal.db-journal", 1 << 40)


def special(name: str) -> dict[str, Plant]:
    """A link, a second name, a pipe, a socket and a folder in place of a file beside the journal."""

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
    return {f"{kind} as {name}": replacing(name, plant) for kind, plant in (kinds | {"folder": folder}).items()}


def replacing(name: str, plant: Plant) -> Plant:
    """The same in place of a file that is there."""

    def replace(state: pathlib.Path, outside: pathlib.Path) -> None:
        (state / name).unlink(missing_ok=True)
        plant(state, outside)

    return replace


def make_socket(path: pathlib.Path) -> None:
    """The file of a socket at which nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as each:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            each.bind(f"/proc/self/fd/{folder}/{path.name}")  # The whole path may be too long for a socket.
        finally:
            os.close(folder)


#: Rollback journals that no kernel leaves behind.
ROLLBACKS: dict[str, Plant] = {
    "a rollback journal that names a file": beside("-journal", lambda file: header(1) + naming(file)),
    "a beginning that names a file": beside("-journal", lambda file: header(0) + naming(file)),
    "a beginning that names a file, in one sector": beside(
        "-journal", lambda file: header(0)[: -len(naming(file))] + naming(file)
    ),
    "a beginning of an empty journal that names a file": beside_empty(lambda file: header(0) + naming(file)),
    "zeros that name a file": beside("-journal", lambda file: bytes(SECTOR) + naming(file)),
    "a rollback journal of a database": beside("-journal", lambda file: header(5)),
    "a rollback journal that empties a journal": beside("-journal", lambda file: header(0)),
    "an endless rollback journal": endless,
}
SIDECARS = {
    name: plant
    for suffix in ("-wal", "-shm", "-journal", ".lock")
    for name, plant in special(f"journal.db{suffix}").items()
}
