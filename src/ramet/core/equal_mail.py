"""Detection of repeated mail: same sender, same text, within a time window."""

from __future__ import annotations

import hashlib
import sys
from datetime import datetime
from typing import NamedTuple

from ramet.core.errors import InvalidValue

#: The first words of the answer to a sender whose message was left out.
NOT_DELIVERED = "Not delivered again"
MAX_REMEMBERED = 1_024  #: number of the newest messages of a run that are compared


class ReceivedMessage(NamedTuple):
    """A message that was accepted."""

    id: str
    at: datetime


class RecentMail:
    """The newest messages of one run, by sender and text."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: dict[bytes, ReceivedMessage] = {}  #: in the order of arrival

    def add(self, id: str, sender: str, text: str, at: datetime) -> None:
        """Remember a message that was accepted."""
        key = _content(sender, text)
        self._messages.pop(key, None)
        self._messages[key] = ReceivedMessage(id, at)
        if len(self._messages) > MAX_REMEMBERED:
            del self._messages[next(iter(self._messages))]

    def find(self, sender: str, text: str, now: datetime, window_s: float) -> ReceivedMessage | None:
        """Return the newest message of this sender and text, if it came less than `window_s` ago."""
        message = self._messages.get(_content(sender, text))
        if message is None or abs((now - message.at).total_seconds()) >= window_s:
            return None
        return message


def checked_window(dedupe_s: float | None) -> float | None:
    """Return the window unchanged.

    Raises InvalidValue if `dedupe_s` is not a valid time.
    """
    if dedupe_s is None:
        return None
    if isinstance(dedupe_s, bool) or not isinstance(dedupe_s, int | float):
        raise InvalidValue("dedupe_s", dedupe_s, "seconds above 0, or None")
    if not 0 < dedupe_s <= sys.float_info.max:  # A whole number may be larger than any float.
        raise InvalidValue("dedupe_s", dedupe_s, "seconds above 0, or None")
    return dedupe_s


def with_asker(awaiting: dict[str, str], mail_id: str, asker_id: str) -> dict[str, str]:
    """Return the runs that are notified when a run becomes idle, by the id of their newest mail.

    Each asker is notified once, however often it asked.
    """
    return {mail: asker for mail, asker in awaiting.items() if asker != asker_id} | {mail_id: asker_id}


def _content(sender: str, text: str) -> bytes:
    return hashlib.sha256(f"{sender}\0{text}".encode("utf-8", "surrogatepass")).digest()[:16]
