"""Tells the rollback journal of a killed kernel from one that a stranger planted, before SQLite reads either.

A database of ramet has a write-ahead log from its first page on. So only the very first write uses a rollback journal:
one that restores an empty file. Any other is a stranger's. At its end it may name a file (a super-journal), which
SQLite reads and removes once it has rolled back.
"""

from __future__ import annotations

from pathlib import Path

from ramet.disk.regular_files import read_regular

_MAGIC = bytes.fromhex("d9d505f920a163d7")  #: at the beginning of a header, and behind the name of a super-journal
_PAGES, _PAGE_SIZE = (
    slice(16, 20),
    slice(24, 28),
)  #: of a header: how many pages the database had before, and their size
_MOST = 65_536  #: bytes of the largest sector, which is a header's size


def is_of_a_beginning(journal: Path, database_size: int) -> bool:
    """Return whether a rollback journal is of the first write to an empty database, and names no file.

    Look at the size before this reads: then the database had at most one page while the journal was there. Raises
    OSError for a journal that cannot be read, or is no regular file.
    """
    if journal.lstat().st_size > _MOST:
        return False
    content = read_regular(journal, limit=_MOST)
    has_one_page = database_size <= int.from_bytes(content[_PAGE_SIZE])
    return has_one_page and not any(content[_PAGES]) and not content.endswith(_MAGIC)
