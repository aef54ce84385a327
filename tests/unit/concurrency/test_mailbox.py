"""concurrency/mailbox.py: every accepted mail is read once, in order; every other sender is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from ramet.concurrency.mailbox import MAX_BYTES, MAX_MAILS, MAX_UNREAD_BYTES, Kind, Mail, Mailbox
from ramet.core.errors import MailRefused


def mail(number: int, text: str = "hi", *, sender: str = "main/a", kind: Kind = "agent") -> Mail:
    return Mail(id=f"mail-{number}", sender=sender, text=text, kind=kind)


def refused(push: Callable[[Mail], bool], what: Mail) -> str:
    with pytest.raises(MailRefused) as refusal:
        push(what)
    return refusal.value.reason


# --- once, and in order ---------------------------------------------------------------------------------------------


def test_mail_is_drained_in_the_order_of_arrival_and_once() -> None:
    """FIFO; a second drain finds nothing."""
    box = Mailbox("main")
    sent = [mail(number, sender=f"main/{number % 3}") for number in range(10)]
    for each in sent:
        box.push(each)

    first, second = box.drain(), box.drain()

    assert (first, second, len(box)) == (sent, [], 0)


async def test_mail_may_come_from_any_task() -> None:
    """Many senders at once: nothing is lost, nothing doubled, and each one's own order is kept."""
    box, numbers = Mailbox("main"), count()
    read: list[Mail] = []

    async def send(sender: str) -> None:
        for _ in range(50):
            box.push(mail(next(numbers), sender=sender))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        senders = [group.create_task(send(f"main/{number}")) for number in range(10)]
        while not all(sender.done() for sender in senders):
            read += box.drain()
            await asyncio.sleep(0)
    read += box.drain()

    of = {sender: [int(each.id[5:]) for each in read if each.sender == sender] for sender in {m.sender for m in read}}
    assert sorted(each for numbers in of.values() for each in numbers) == list(range(500))
    assert all(numbers == sorted(numbers) for numbers in of.values())


def test_a_repeated_id_is_accepted_once() -> None:
    """A sender that is not sure may send again: unread or read, it is not delivered twice."""
    box = Mailbox("main")
    first = box.push(mail(1))

    unread = box.push(mail(1))
    box.drain()
    read = box.push(mail(1))

    assert (first, unread, read, len(box)) == (True, False, False, 0)


def test_a_repeated_id_is_known_however_much_is_unread() -> None:
    """A full mailbox answers a repetition with "you have sent it", not with a refusal."""
    box = Mailbox("main")
    for number in range(MAX_MAILS):
        box.push(mail(number))

    assert box.push(mail(0)) is False


def test_what_is_remembered_of_old_mail_is_bounded() -> None:
    """A mailbox of a long life does not remember every id it ever saw."""
    box = Mailbox("main")
    for number in range(10_000):
        box.push(mail(number))
        box.drain()

    assert len(box._seen_ids) <= 4_096
    assert box.push(mail(9_999)) is False
    assert box.push(mail(0)) is True


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_a_flood_is_refused_at_the_bound() -> None:
    """The thousand-and-first unread mail is its sender's problem; what was accepted is all there."""
    box = Mailbox("main")
    for number in range(MAX_MAILS):
        box.push(mail(number))

    reason = refused(box.push, mail(MAX_MAILS))

    assert str(MAX_MAILS) in reason
    assert len(box.drain()) == MAX_MAILS


def test_a_refused_mail_can_be_sent_again() -> None:
    """Refused is not the same as seen: when there is room, the same id is accepted."""
    box = Mailbox("main")
    for number in range(MAX_MAILS):
        box.push(mail(number))
    refused(box.push, mail(MAX_MAILS))
    box.drain()

    assert box.push(mail(MAX_MAILS)) is True


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
    """Any text can be measured, one that is no Unicode included."""
    box = Mailbox("main")

    if fits:
        assert box.push(mail(1, text))
    else:
        assert str(MAX_BYTES) in refused(box.push, mail(1, text))


def test_few_large_mails_are_a_flood_too() -> None:
    """A mailbox of a thousand mails is no licence for a thousand times the largest."""
    box, numbers = Mailbox("main"), count()
    text = "x" * MAX_BYTES
    for _ in range(MAX_UNREAD_BYTES // MAX_BYTES):
        box.push(mail(next(numbers), text))

    refused(box.push, mail(next(numbers)))
    box.drain()

    assert box.push(mail(next(numbers), text))


def test_a_notice_of_an_end_gets_through_a_flood() -> None:
    """No sibling can fill the mailbox so that a child's completion is lost."""
    box = Mailbox("main")
    for number in range(MAX_MAILS):
        box.push(mail(number))
    notice = mail(MAX_MAILS, "x" * (MAX_BYTES + 1), kind="notice")

    accepted = box.push(notice)

    assert accepted
    assert box.drain()[-1] is notice


def test_restored_mail_counts_like_mail_that_was_pushed() -> None:
    """Unread mail of another process fills the mailbox with its bytes until it is taken; a notice does not."""
    box, numbers, text = Mailbox("main"), count(), "x" * MAX_BYTES
    letters = [mail(next(numbers), text) for _ in range(MAX_UNREAD_BYTES // MAX_BYTES)]
    notice = mail(next(numbers), text, kind="notice")

    box.restore([notice, *letters], seen_ids=[each.id for each in letters])

    refused(box.push, mail(next(numbers)))
    assert box.push(letters[0]) is False
    assert box.remove(notice.id) is notice
    refused(box.push, mail(next(numbers)))
    assert box.remove(letters[0].id) is letters[0]
    assert box.push(mail(next(numbers), text))


# --- closed ---------------------------------------------------------------------------------------------------------


def test_a_closed_mailbox_tells_senders_why() -> None:
    """A dead recipient is an error to the sender, who may act on it."""
    box = Mailbox("main/a")
    box.close("it has finished")

    with pytest.raises(MailRefused) as refusal:
        box.push(mail(1))

    assert (refusal.value.to, refusal.value.reason) == ("main/a", "it has finished")


def test_a_closed_mailbox_refuses_notices_too() -> None:
    """Nobody is there to read them."""
    box = Mailbox("main")
    box.close("")

    assert refused(box.push, mail(1, kind="notice")) == ""


def test_unread_mail_survives_into_the_next_turn() -> None:
    """Closing loses nothing that was accepted, and reopening repeats nothing."""
    box = Mailbox("main")
    box.push(mail(1))
    box.close("it has finished")
    box.reopen()
    box.push(mail(2))

    again = box.push(mail(1))

    assert again is False
    assert [each.id for each in box.drain()] == ["mail-1", "mail-2"]


# --- who is told ----------------------------------------------------------------------------------------------------


def test_the_host_hears_of_each_accepted_mail_once() -> None:
    """Not of repetitions, and not of what was refused; and the mail is there when it hears."""
    heard: list[tuple[str, int]] = []
    box = Mailbox("main", on_push=lambda each: heard.append((each.id, len(box))))
    box.push(mail(1))
    box.push(mail(1))
    refused(box.push, mail(2, "x" * (MAX_BYTES + 1)))

    box.push(mail(3))

    assert heard == [("mail-1", 1), ("mail-3", 2)]


def test_mail_cannot_be_changed_under_way() -> None:
    """What was accepted is what is read."""
    with pytest.raises(AttributeError):
        mail(1).text = "other"  # type: ignore[misc]  # the point of the test


def test_one_mail_can_be_taken_by_its_id() -> None:
    """Looking takes nothing; what was taken is gone, its room is free again, and the others stay in order."""
    box = Mailbox("main")
    large = "x" * MAX_BYTES
    fits = MAX_UNREAD_BYTES // MAX_BYTES
    for number in range(fits):
        box.push(mail(number, large))
    assert refused(box.push, mail(fits, large))

    assert [each.id for each in box.unread] == [f"mail-{number}" for number in range(fits)]
    assert box.remove("mail-1") == mail(1, large)
    assert box.remove("mail-1") is None
    box.push(mail(fits, large))

    assert [each.id for each in box.drain()] == ["mail-0", *(f"mail-{number}" for number in range(2, fits + 1))]
