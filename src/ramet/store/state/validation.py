"""What keys, states and branches may be called, and how the entry of a directory is told from other keys."""

from __future__ import annotations

import re
from typing import TypeGuard

from ramet.core.errors import InvalidValue

MOST_KEY = 1_024  #: characters of a key, and of the name of an entry
_MOST_NAME = 200  #: characters of the name of a state or a branch
_ENTRY = "\0"  #: between the key of a directory and the name of an entry: no key holds it
_KEY = f"text of 1 to {MOST_KEY} characters without NUL, its parts between '/' not empty, '.' or '..'"
_ID = re.compile("[0-9a-f]{64}")


def checked_key(key: object, *, field: str = "key") -> str:
    """Take a key as it is. Raises InvalidValue."""
    if not _is_text(key, MOST_KEY) or any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidValue(field, key, _KEY)
    return key


def checked_prefix(prefix: object) -> str:
    """Take the beginning of a key. Raises InvalidValue."""
    if prefix == "":
        return ""
    if not _is_text(prefix, MOST_KEY):
        raise InvalidValue("prefix", prefix, "the beginning of a key")
    return prefix


def checked_name(field: str, name: object) -> str:
    """Take the name of a state or a branch. Raises InvalidValue."""
    if not _is_text(name, _MOST_NAME) or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidValue(field, name, f"text of 1 to {_MOST_NAME} characters without NUL, or parts joined by '/'")
    if field == "state" and "/" in name:
        raise InvalidValue(field, name, "a name without '/'; what comes behind one is a namespace, or a branch")
    if is_commit(name):
        raise InvalidValue(field, name, "a name that is not taken for the id of a commit")
    return name


def is_commit(text: str) -> bool:
    """Whether a text has the form of a commit's id."""
    return _ID.fullmatch(text) is not None


def is_directory(key: str) -> bool:
    """Whether a key holds entries by name, each kept by itself: its last part begins and ends with two underscores."""
    last = key.rpartition("/")[2]
    return len(last) > 4 and last.startswith("__") and last.endswith("__")


def checked_directory(key: object) -> str:
    """Take the key of a directory. Raises InvalidValue."""
    key = checked_key(key)
    if not is_directory(key):
        raise InvalidValue("key", key, "the key of a directory, such as '__local_agent_registry__'")
    return key


def entry_key(key: str, name: object) -> str:
    """What an entry of a directory is kept under. Raises InvalidValue for what cannot be its name."""
    if not _is_text(name, MOST_KEY):
        raise InvalidValue(f"{key}: entry", name, f"text of 1 to {MOST_KEY} characters without NUL")
    return f"{key}{_ENTRY}{name}"


def parted(kept: str) -> tuple[str, str | None]:
    """The key, and the name of the entry if it is one, of what is kept."""
    key, mark, name = kept.partition(_ENTRY)
    return key, name if mark else None


def shown(kept: str) -> str:
    """The same for people: `key`, or `key[entry]`."""
    key, name = parted(kept)
    return key if name is None else f"{key}[{name}]"


def _is_text(value: object, most: int) -> TypeGuard[str]:
    if not isinstance(value, str) or not 0 < len(value) <= most or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
