"""Mail is pushed, repeated, refused and drained: none is lost, none comes twice, each sender's mail stays in order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.concurrency.mailbox import MAX_BYTES, MAX_MAILS, MAX_UNREAD_BYTES, Kind, Mail, Mailbox
from ramet.core.errors import MailRefused

senders = st.sampled_from(["main", "main/a", "main/b"])
kinds: st.SearchStrategy[Kind] = st.sampled_from(["user", "agent", "notice"])
texts = st.sampled_from([0, 1, MAX_BYTES // 2, MAX_BYTES, MAX_BYTES + 1]).map("x".__mul__)


class Mails(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Mail] = []
        self.box = Mailbox("main", on_push=self.heard.append)
        self.closed: str | None = None
        self.minted = 0
        self.accepted: list[Mail] = []  # since the beginning
        self.refused: list[Mail] = []
        self.read: list[Mail] = []

    @property
    def unread(self) -> list[Mail]:
        return self.accepted[len(self.read) :]

    def has_room(self, mail: Mail) -> bool:
        if mail.kind == "notice":
            return True
        held = sum(len(each.text) for each in self.unread if each.kind != "notice")
        size = len(mail.text)
        return size <= MAX_BYTES and len(self.unread) < MAX_MAILS and held + size <= MAX_UNREAD_BYTES

    def send(self, mail: Mail) -> None:
        """Push, and check that the mail is accepted, recognised as known, or refused, as the oracle says."""
        known = mail.id in {each.id for each in self.accepted[-1_000:]}
        if self.closed is not None or (not known and not self.has_room(mail)):
            with pytest.raises(MailRefused) as refusal:
                self.box.push(mail)
            assert refusal.value.to == "main"
            assert self.closed is None or refusal.value.reason == self.closed
            if not known:
                self.refused.append(mail)
        else:
            assert self.box.push(mail) is not known
            if not known:
                self.accepted.append(mail)

    def mint(self, sender: str, text: str, kind: Kind) -> Mail:
        self.minted += 1
        return Mail(id=str(self.minted), sender=sender, text=text, kind=kind)

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(sender=senders, text=texts, kind=kinds)
    def push(self, sender: str, text: str, kind: Kind) -> None:
        self.send(self.mint(sender, text, kind))

    @precondition(lambda self: self.closed is None)
    @rule(sender=senders, many=st.sampled_from([MAX_MAILS // 2, MAX_MAILS]))
    def flood(self, sender: str, many: int) -> None:
        for _ in range(min(many, MAX_MAILS - len(self.unread))):
            mail = self.mint(sender, "", "agent")
            assert self.box.push(mail)
            self.accepted.append(mail)
        self.send(self.mint(sender, "", "agent"))

    @rule(sender=senders)
    def flood_with_large_ones(self, sender: str) -> None:
        for _ in range(MAX_UNREAD_BYTES // MAX_BYTES):
            self.send(self.mint(sender, "x" * MAX_BYTES, "agent"))

    @precondition(lambda self: self.accepted)
    @rule(which=st.integers(0, 500))
    def repeat(self, which: int) -> None:
        """Send known mail again with another text: its id decides."""
        known = self.accepted[-1 - which % len(self.accepted)]
        self.send(Mail(id=known.id, sender=known.sender, text="again"))

    @precondition(lambda self: self.refused)
    @rule(which=st.integers(0, 500))
    def try_again(self, which: int) -> None:
        self.send(self.refused.pop(which % len(self.refused)))

    @rule()
    def drain(self) -> None:
        due = self.unread
        assert self.box.drain() == due
        self.read += due

    @rule(why=st.sampled_from(["it has finished", "it was stopped"]))
    def close(self, why: str) -> None:
        self.box.close(why)
        self.closed = why

    @rule()
    def reopen(self) -> None:
        self.box.reopen()
        self.closed = None

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def unread_mail_is_counted(self) -> None:
        assert len(self.box) == len(self.unread)

    @invariant()
    def a_flood_stays_bounded(self) -> None:
        mail = [each for each in self.unread if each.kind != "notice"]
        assert len(mail) <= MAX_MAILS
        assert sum(len(each.text) for each in mail) <= MAX_UNREAD_BYTES

    @invariant()
    def the_listener_gets_each_accepted_mail_once(self) -> None:
        assert self.heard == self.accepted

    def teardown(self) -> None:
        """Check that every accepted mail was read once and in order, and so the mail of each sender, too."""
        self.read += self.box.drain()
        assert self.read == self.accepted
        assert len({each.id for each in self.read}) == len(self.read)


TestMailbox = Mails.TestCase
TestMailbox.settings = settings(max_examples=80, stateful_step_count=30)
