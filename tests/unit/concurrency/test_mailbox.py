"""Tests of `concurrency/mailbox.py`: accepted mail is read once, in order; a refused sender gets the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from ramet.concurrency.mailbox import MAX_BYTES, MAX_MAILS, MAX_UNREAD_BYTES, Kind, Mail, Mailbox
from ramet.core.errors import MailRefused


def mail(number: int, text: str = "hi", *, sender: str = "main/a", kind: Kind = "agent") -> Mail:
    return Mail(id=f"mail-{number}", sender=sender, text=text, kind=kind)


def refusal_reason(push: Callable[[Mail], bool], letter: Mail) -> str:
    with pytest.raises(MailRefused) as refusal:
        push(letter)
    return refusal.value.reason


# --- once, and in order ---------------------------------------------------------------------------------------------


def test_mail_is_drained_in_the_order_of_arrival_and_once() -> None:
    """`drain` returns mail first in, first out; a second drain is empty."""
    mailbox = Mailbox("main")
    sent_mail = [mail(number, sender=f"main/{number % 3}") for number in range(10)]
    for each in sent_mail:
        mailbox.push(each)

    first, second = mailbox.drain(), mailbox.drain()

    assert (first, second, len(mailbox)) == (sent_mail, [], 0)


async def test_concurrent_senders_lose_and_double_no_mail() -> None:
    """Mail of ten concurrent senders arrives once, each sender's in order."""
    mailbox, numbers = Mailbox("main"), count()
    mails_read: list[Mail] = []

    async def send(sender: str) -> None:
        for _ in range(50):
            mailbox.push(mail(next(numbers), sender=sender))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        senders = [group.create_task(send(f"main/{number}")) for number in range(10)]
        while not all(sender.done() for sender in senders):
            mails_read += mailbox.drain()
            await asyncio.sleep(0)
    mails_read += mailbox.drain()

    of = {
        sender: [int(each.id[5:]) for each in mails_read if each.sender == sender]
        for sender in {m.sender for m in mails_read}
    }
    assert sorted(each for numbers in of.values() for each in numbers) == list(range(500))
    assert all(numbers == sorted(numbers) for numbers in of.values())


def test_a_repeated_id_is_accepted_once() -> None:
    """A repeated id is accepted once, whether the first mail is unread or read."""
    mailbox = Mailbox("main")
    first = mailbox.push(mail(1))

    unread = mailbox.push(mail(1))
    mailbox.drain()
    is_read = mailbox.push(mail(1))

    assert (first, unread, is_read, len(mailbox)) == (True, False, False, 0)


def test_a_full_mailbox_recognizes_a_repeated_id() -> None:
    """A full mailbox returns False for a repetition instead of a refusal."""
    mailbox = Mailbox("main")
    for number in range(MAX_MAILS):
        mailbox.push(mail(number))

    assert mailbox.push(mail(0)) is False


def test_the_number_of_remembered_ids_is_bounded() -> None:
    """A mailbox remembers at most 4,096 ids of old mail."""
    mailbox = Mailbox("main")
    for number in range(10_000):
        mailbox.push(mail(number))
        mailbox.drain()

    assert len(mailbox._seen_ids) <= 4_096
    assert mailbox.push(mail(9_999)) is False
    assert mailbox.push(mail(0)) is True


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_a_flood_is_refused_at_the_bound() -> None:
    """Mail above MAX_MAILS is refused; accepted mail is all there."""
    mailbox = Mailbox("main")
    for number in range(MAX_MAILS):
        mailbox.push(mail(number))

    reason = refusal_reason(mailbox.push, mail(MAX_MAILS))

    assert str(MAX_MAILS) in reason
    assert len(mailbox.drain()) == MAX_MAILS


def test_a_refused_mail_can_be_sent_again() -> None:
    """A refused id is accepted once the mailbox has room."""
    mailbox = Mailbox("main")
    for number in range(MAX_MAILS):
        mailbox.push(mail(number))
    refusal_reason(mailbox.push, mail(MAX_MAILS))
    mailbox.drain()

    assert mailbox.push(mail(MAX_MAILS)) is True


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x" * MAX_BYTES, True),
        ("x" * (MAX_BYTES + 1), False),
        ("é" * (MAX_BYTES // 2), True),
        ("é" * (MAX_BYTES // 2 + 1), False),
        ("\ud800" * (MAX_BYTES // 3), True),
        ("\ud800" * (MAX_BYTES // 3 + 1), False),
    ],
    ids=["ascii", "ascii+1", "wide", "wide+1", "surrogates", "surrogates+1"],
)
def test_the_size_of_a_mail_is_bounded_in_bytes(text: str, fits: bool) -> None:
    """Any text can be measured, also one that is no valid Unicode."""
    mailbox = Mailbox("main")

    if fits:
        assert mailbox.push(mail(1, text))
    else:
        assert str(MAX_BYTES) in refusal_reason(mailbox.push, mail(1, text))


def test_the_total_size_of_unread_mail_is_bounded() -> None:
    """Mail is refused at MAX_UNREAD_BYTES, and accepted again after a drain."""
    mailbox, numbers = Mailbox("main"), count()
    text = "x" * MAX_BYTES
    for _ in range(MAX_UNREAD_BYTES // MAX_BYTES):
        mailbox.push(mail(next(numbers), text))

    refusal_reason(mailbox.push, mail(next(numbers)))
    mailbox.drain()

    assert mailbox.push(mail(next(numbers), text))


def test_a_notice_is_accepted_by_a_full_mailbox() -> None:
    """No sibling can fill the mailbox so that the notice of a child's end is lost."""
    mailbox = Mailbox("main")
    for number in range(MAX_MAILS):
        mailbox.push(mail(number))
    notice = mail(MAX_MAILS, "x" * (MAX_BYTES + 1), kind="notice")

    is_accepted = mailbox.push(notice)

    assert is_accepted
    assert mailbox.drain()[-1] is notice


def test_restored_mail_counts_like_pushed_mail() -> None:
    """Restored mail takes room until it is taken; a notice takes none."""
    mailbox, numbers, text = Mailbox("main"), count(), "x" * MAX_BYTES
    letters = [mail(next(numbers), text) for _ in range(MAX_UNREAD_BYTES // MAX_BYTES)]
    notice = mail(next(numbers), text, kind="notice")

    mailbox.restore([notice, *letters], seen_ids=[each.id for each in letters])

    refusal_reason(mailbox.push, mail(next(numbers)))
    assert mailbox.push(letters[0]) is False
    assert mailbox.remove(notice.id) is notice
    refusal_reason(mailbox.push, mail(next(numbers)))
    assert mailbox.remove(letters[0].id) is letters[0]
    assert mailbox.push(mail(next(numbers), text))


# --- closed ---------------------------------------------------------------------------------------------------------


def test_a_closed_mailbox_gives_senders_the_reason() -> None:
    """MailRefused names the recipient and the reason."""
    mailbox = Mailbox("main/a")
    mailbox.close("it has finished")

    with pytest.raises(MailRefused) as refusal:
        mailbox.push(mail(1))

    assert (refusal.value.to, refusal.value.reason) == ("main/a", "it has finished")


def test_a_closed_mailbox_refuses_notices_too() -> None:
    """A closed mailbox has no reader for notices."""
    mailbox = Mailbox("main")
    mailbox.close("")

    assert refusal_reason(mailbox.push, mail(1, kind="notice")) == ""


def test_unread_mail_survives_into_the_next_turn() -> None:
    """Closing loses no accepted mail, and reopening repeats none."""
    mailbox = Mailbox("main")
    mailbox.push(mail(1))
    mailbox.close("it has finished")
    mailbox.reopen()
    mailbox.push(mail(2))

    is_repeated = mailbox.push(mail(1))

    assert is_repeated is False
    assert [each.id for each in mailbox.drain()] == ["mail-1", "mail-2"]


# --- who is told ----------------------------------------------------------------------------------------------------


def test_on_push_is_called_once_for_each_accepted_mail() -> None:
    """`on_push` is not called for repetitions or refused mail, and the mail is there when it is called."""
    deliveries: list[tuple[str, int]] = []
    mailbox = Mailbox("main", on_push=lambda each: deliveries.append((each.id, len(mailbox))))
    mailbox.push(mail(1))
    mailbox.push(mail(1))
    refusal_reason(mailbox.push, mail(2, "x" * (MAX_BYTES + 1)))

    mailbox.push(mail(3))

    assert deliveries == [("mail-1", 1), ("mail-3", 2)]


def test_mail_is_immutable() -> None:
    """The reader gets exactly the accepted mail."""
    with pytest.raises(AttributeError):
        mail(1).text = "other"  # type: ignore[misc]  # the point of the test


def test_one_mail_can_be_taken_by_its_id() -> None:
    """`unread` removes nothing; `take` frees the room of one mail and keeps the order of the others."""
    mailbox = Mailbox("main")
    large = "x" * MAX_BYTES
    fits = MAX_UNREAD_BYTES // MAX_BYTES
    for number in range(fits):
        mailbox.push(mail(number, large))
    assert refusal_reason(mailbox.push, mail(fits, large))

    assert [each.id for each in mailbox.unread] == [f"mail-{number}" for number in range(fits)]
    assert mailbox.remove("mail-1") == mail(1, large)
    assert mailbox.remove("mail-1") is None
    mailbox.push(mail(fits, large))

    assert [each.id for each in mailbox.drain()] == ["mail-0", *(f"mail-{number}" for number in range(2, fits + 1))]
