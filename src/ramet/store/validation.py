"""Validation of store input: names and bytes that every store can keep and return unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue
from ramet.store.contract import DocumentWrite, Entry

MOST_NAME = 1_000  #: maximum characters of a name
MOST_NUMBER = 2**63 - 1
MOST_DATA = 2**28  #: maximum bytes of one event, document or blob: every database accepts them in one piece
_REMEMBERED = 20_000


def checked_name(field: str, value: object) -> str:
    """Return a name unchanged.

    Raises InvalidValue if it is no text, is too long, has NUL, or cannot be encoded as UTF-8.
    """
    if not isinstance(value, str) or len(value) > MOST_NAME or "\0" in value:
        raise InvalidValue(field, value, f"text of at most {MOST_NAME} characters, without NUL")
    if not is_unicode(value):
        raise InvalidValue(field, value, "text that UTF-8 can hold (no half of a pair of surrogates)")
    return value


def checked_data(field: str, value: object) -> bytes:
    """Return bytes unchanged. Raises InvalidValue if the value has another type or is too long."""
    if not isinstance(value, bytes):
        raise InvalidValue(field, value, "bytes")
    if len(value) > MOST_DATA:
        raise InvalidValue(field, f"{len(value)} bytes", f"at most {MOST_DATA} bytes")
    return value


def checked_number(field: str, value: object) -> int:
    """Return a whole number from 0 that fits into 63 bits. Raises InvalidValue for any other value."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_NUMBER:
        raise InvalidValue(field, value, "a whole number from 0 to 2^63 - 1")
    return value


def checked_together(blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> None:
    """Check data to write together. Raises InvalidValue if a value is invalid or a document is named twice."""
    for data in blobs:
        checked_data("blob", data)
    document_keys: set[tuple[str, str]] = set()
    for kind, key, data, expected, expected_data in documents:
        checked_name("kind", kind), checked_name("key", key), checked_data("data", data)
        if expected is not None:
            checked_number("expected", expected)
        if expected_data is not None:
            checked_data("over", expected_data)
        if (kind, key) in document_keys:
            raise InvalidValue("documents", (kind, key), "each document once")
        document_keys.add((kind, key))


class EntryValidator:
    """A validator of entries before they are queued: a later refusal, in the writer, would end the whole store."""

    def __init__(self) -> None:
        self._known_names: set[str] = set()

    def check(self, entry: Entry) -> None:
        """Check an entry. Raises InvalidValue, with the field. Names that were checked before cost almost nothing."""
        tree, run, seq, kind, data = entry
        known = self._known_names
        if (
            type(tree) is type(run) is type(kind) is str
            and tree in known
            and run in known
            and kind in known
            and type(seq) is int
            and 0 <= seq <= MOST_NUMBER
            and type(data) is bytes
            and len(data) <= MOST_DATA
        ):
            return
        names = {checked_name(f"entry.{field}", getattr(entry, field)) for field in ("tree", "run", "type")}
        checked_number("entry.seq", seq)
        checked_data("entry.data", data)
        if len(known) > _REMEMBERED:
            known.clear()
        known |= names
