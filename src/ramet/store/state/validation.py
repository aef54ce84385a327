"""The names of keys, states and branches, and the encoding of directory entries as keys."""

from __future__ import annotations

import re
from typing import TypeGuard

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue

MOST_KEY = 1_024  #: characters of a key, and of an entry's name
_MOST_NAME = 200  #: characters of the name of a state or a branch
_ENTRY = "\0"  #: between the key of a directory and the name of an entry: no key contains it
_KEY = f"text of 1 to {MOST_KEY} characters without NUL, its parts between '/' not empty, '.' or '..'"
_ID = re.compile("[0-9a-f]{64}")


def checked_key(key: object, *, field: str = "key") -> str:
    """Return a key unchanged. Raises InvalidValue if it is invalid."""
    if not _is_text(key, MOST_KEY) or any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidValue(field, key, _KEY)
    return key


def checked_prefix(prefix: object) -> str:
    """Return a key prefix unchanged. Raises InvalidValue if it is invalid."""
    if prefix == "":
        return ""
    if not _is_text(prefix, MOST_KEY):
        raise InvalidValue("prefix", prefix, "the beginning of a key")
    return prefix


def checked_name(field: str, name: object) -> str:
    """Return the name of a state or a branch unchanged. Raises InvalidValue if it is invalid."""
    if not _is_text(name, _MOST_NAME) or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidValue(field, name, f"text of 1 to {_MOST_NAME} characters without NUL, or parts joined by '/'")
    if field == "state" and "/" in name:
        raise InvalidValue(field, name, "a name without '/'; the part after a '/' is a namespace, or a branch")
    if is_commit(name):
        raise InvalidValue(field, name, "a name that does not look like the id of a commit")
    return name


def is_commit(text: str) -> bool:
    """Return whether a text has the form of a commit's id."""
    return _ID.fullmatch(text) is not None


def is_directory(key: str) -> bool:
    """Return whether a key is a directory of separately stored entries: its last part looks like `__name__`."""
    last = key.rpartition("/")[2]
    return len(last) > 4 and last.startswith("__") and last.endswith("__")


def checked_directory(key: object) -> str:
    """Return the key of a directory unchanged. Raises InvalidValue if it is invalid."""
    key = checked_key(key)
    if not is_directory(key):
        raise InvalidValue("key", key, "the key of a directory, such as '__local_agent_registry__'")
    return key


def entry_key(key: str, name: object) -> str:
    """Return the stored key of a directory entry. Raises InvalidValue if the name is invalid."""
    if not _is_text(name, MOST_KEY):
        raise InvalidValue(f"{key}: entry", name, f"text of 1 to {MOST_KEY} characters without NUL")
    return f"{key}{_ENTRY}{name}"


def split_cell_key(cell_key: str) -> tuple[str, str | None]:
    """Return the key, and the entry's name or None, of a stored key."""
    key, mark, name = cell_key.partition(_ENTRY)
    return key, name if mark else None


def display_key(cell_key: str) -> str:
    """Return a stored key for display: `key`, or `key[entry]`."""
    key, name = split_cell_key(cell_key)
    return key if name is None else f"{key}[{name}]"


def _is_text(value: object, limit: int) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= limit and "\0" not in value and is_unicode(value)
