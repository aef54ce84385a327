"""Mail for one run: pushed from anywhere in the event loop, drained in order, each message once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ramet.core.errors import MailRefused

MAX_MAILS = 1_000
MAX_BYTES = 256 * 1024
MAX_UNREAD_BYTES = 4 * 1024 * 1024  #: of all unread mail together, without notices
_MAX_REMEMBERED_IDS = 4_096  #: number of ids kept to recognise duplicates

#: A note is the host's own, like a notice: it is read with the next turn, but does not begin one.
Kind = Literal["user", "agent", "notice", "note"]
_HOST_KINDS = ("notice", "note")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mail:
    """A message. `sender` is set by the host, never by the sender's own text."""

    id: str
    sender: str
    text: str
    kind: Kind = "agent"


class Mailbox:
    """Unread mail: bounded, in order of arrival (so in order per sender), each id accepted once."""

    # Plain containers: most mailboxes stay empty, and an empty deque takes 600 bytes.
    __slots__ = ("_bytes", "_seen_ids", "_unread", "closed_reason", "on_push", "owner")

    def __init__(self, owner: str, on_push: Callable[[Mail], None] | None = None) -> None:
        self.owner = owner
        self.on_push = on_push
        self.closed_reason: str | None = None  #: reason for refusing mail; None while open
        self._unread: list[Mail] = []
        self._bytes = 0
        self._seen_ids: dict[str, None] = {}  #: in the order of arrival

    def __len__(self) -> int:
        return len(self._unread)

    def push(self, mail: Mail) -> bool:
        """Add mail; return False if this id was accepted before. Raises MailRefused if full, too large or closed.

        A notice or a note is never refused for size or number: the host creates few of them, and none may be lost.
        """
        if self.closed_reason is not None:
            raise MailRefused(self.owner, self.closed_reason)
        if mail.id in self._seen_ids:
            return False
        self._bytes += self.check_capacity(mail)
        self._seen_ids[mail.id] = None
        if len(self._seen_ids) > _MAX_REMEMBERED_IDS:
            del self._seen_ids[next(iter(self._seen_ids))]
        self._unread.append(mail)
        if self.on_push is not None:
            self.on_push(mail)
        return True

    def check_capacity(self, mail: Mail) -> int:
        """Return the bytes that the mail would count. Raises MailRefused, and changes nothing, if there is no room."""
        if mail.kind in _HOST_KINDS:
            return 0
        size = len(mail.text.encode("utf-8", "surrogatepass"))
        if size > MAX_BYTES:
            raise MailRefused(self.owner, f"{size} bytes; at most {MAX_BYTES} are accepted")
        if len(self._unread) >= MAX_MAILS:
            raise MailRefused(self.owner, f"its mailbox holds {MAX_MAILS} unread messages; try again later")
        if self._bytes + size > MAX_UNREAD_BYTES:
            raise MailRefused(self.owner, f"its mailbox holds {self._bytes} unread bytes; try again later")
        return size

    def has(self, kind: Kind) -> bool:
        return any(mail.kind == kind for mail in self._unread)

    @property
    def has_waking_mail(self) -> bool:
        """Return whether unread mail should begin a turn: any kind except notes."""
        return any(mail.kind != "note" for mail in self._unread)

    @property
    def unread(self) -> tuple[Mail, ...]:
        """Return the unread mail, oldest first, without marking it as read."""
        return tuple(self._unread)

    def remove(self, mail_id: str) -> Mail | None:
        """Remove and return one unread mail by its id; None if there is none."""
        mail = next((each for each in self._unread if each.id == mail_id), None)
        if mail is not None:
            self._unread.remove(mail)
            self._bytes -= 0 if mail.kind in _HOST_KINDS else len(mail.text.encode("utf-8", "surrogatepass"))
        return mail

    def drain(self, *, notes: bool = True) -> list[Mail]:
        """Remove and return all unread mail, oldest first; without `notes`, notes stay unread."""
        mails = [mail for mail in self._unread if notes or mail.kind != "note"]
        self._unread = [] if notes else [mail for mail in self._unread if mail.kind == "note"]
        self._bytes = 0  # Notes do not count.
        return mails

    def close(self, reason: str) -> None:
        """Refuse mail from now on, with a reason for senders; unread mail can still be drained."""
        self.closed_reason = reason

    def restore(self, unread: Iterable[Mail], *, seen_ids: Iterable[str]) -> None:
        """Add mail that another process had accepted; ids that it saw count as duplicates here too."""
        self._seen_ids |= dict.fromkeys(seen_ids)
        for mail in unread:
            self._unread.append(mail)
            self._bytes += 0 if mail.kind in _HOST_KINDS else len(mail.text.encode("utf-8", "surrogatepass"))

    def reopen(self) -> None:
        """Accept mail again: the run was resumed."""
        self.closed_reason = None
