"""Detection of rollback journals that a stranger planted, before SQLite reads them.

A database of ramet has a write-ahead log from its first page on. So only the first write uses a rollback journal: one
that restores an empty file. Any other rollback journal comes from a stranger. At its end a journal may name a file (a
super-journal), which SQLite reads and removes after the rollback.
"""

from __future__ import annotations

from pathlib import Path

from ramet.disk.regular_files import read_regular

_MAGIC = bytes.fromhex("d9d505f920a163d7")  #: at the beginning of a header, and after the name of a super-journal
_PAGES, _PAGE_SIZE = (
    slice(16, 20),
    slice(24, 28),
)  #: of a header: the number of pages that the database had before, and their size
_MAX_SIZE = 65_536  #: bytes of the largest sector, which is a header's size


def is_of_empty_database(journal: Path, database_size: int) -> bool:
    """Return whether a rollback journal belongs to the first write to an empty database, and names no file.

    The caller must read the size of the database before this call: then the database had at most one page while the
    journal existed. Raises OSError if the journal cannot be read, or is not a regular file.
    """
    if journal.lstat().st_size > _MAX_SIZE:
        return False
    content = read_regular(journal, limit=_MAX_SIZE)
    has_one_page = database_size <= int.from_bytes(content[_PAGE_SIZE])
    return has_one_page and not any(content[_PAGES]) and not content.endswith(_MAGIC)
