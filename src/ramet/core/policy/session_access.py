"""Messages between the sessions of one user: the addresses that a session may use, and what it does with what comes.

A session writes only to sessions that its owner gave it a name for. Whoever owns the receiving session decides what
happens with messages from outside. By default both are closed.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue

#: What a session does with a message of another session.
Inbound: TypeAlias = Literal["refuse", "hold", "accept"]
INBOUND: Final[tuple[Inbound, ...]] = ("refuse", "hold", "accept")

#: The beginning of an address of another session. No name, path or id of a run contains a colon.
SESSION_PREFIX: Final = "session:"
#: The subject of a question about a held message, in the place of a tool. No call of a tool asks such a question.
INBOUND_MESSAGE: Final = "an inbound message"
MAX_TEXT_BYTES: Final = 16 * 1024
MAX_SENDER: Final = 200  #: characters
MAX_SESSIONS: Final = 64  #: addresses of one session

_ID = re.compile(r"[0-9a-f]{16}\Z")


class SessionAddress(Struct, frozen=True, kw_only=True):
    """The place of another session of the same user: its working folder, and its id if several are open there."""

    folder: str
    session: str = ""


class SessionMessage(Struct, frozen=True, kw_only=True, tag="session_message", forbid_unknown_fields=True):
    """A message of one session to another. Messages of one sender with the same `id` are delivered once."""

    session: str  #: id of the recipient, or of its root; empty for the only session that is open there
    sender: str  #: id of the session that sends it, as this states it: any process of the user could state another
    id: str
    text: str

    def check(self) -> None:
        """Raise InvalidValue for a field that cannot be accepted."""
        for field in ("session", "sender"):
            value = getattr(self, field)
            if len(value) > MAX_SENDER or not value.isprintable() or (field == "sender" and not value):
                raise InvalidValue(field, value, f"1 to {MAX_SENDER} printable characters")
        if not _ID.match(self.id):
            raise InvalidValue("id", self.id, "16 hexadecimal digits")
        check_message_text(self.text)


def check_message_text(text: str) -> None:
    """Raise InvalidValue for a message that is empty, too long, or no Unicode."""
    if not text.strip() or not is_unicode(text) or len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidValue("message", text, f"text of 1 to {MAX_TEXT_BYTES} bytes")


def checked_inbound(inbound: object) -> Inbound:
    """Return the mode unchanged. Raises InvalidValue."""
    if inbound not in INBOUND:
        raise InvalidValue("inbound", inbound, "'refuse', 'hold' or 'accept'")
    return inbound
