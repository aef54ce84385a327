"""The replayed requests between leads and peers: who asked whom for what, and the answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.core.events import MailPushed, RequestAnswered


@dataclass(kw_only=True, slots=True)
class RequestReplay:
    """A request, identified by the mail that brought it."""

    id: str
    kind: str  #: plan or shutdown
    sender: str  #: id of the run that asks
    recipient: str  #: id of the run that answers
    call: str = ""  #: the call of the sender that waits for the answer
    answer: RequestAnswered | None = None


@dataclass(slots=True)
class PeerRequestsReplay:
    """The newest request of each kind from each run to each other: a newer one replaces it."""

    newest: dict[tuple[str, str, str], RequestReplay] = field(default_factory=dict)

    def push(self, event: MailPushed, sender: str) -> None:
        """Note a request that a mail brought."""
        request = RequestReplay(
            id=event.mail_id, kind=event.request, sender=sender, recipient=event.run, call=event.waits or ""
        )
        self.newest[sender, event.run, event.request] = request

    def answer(self, event: RequestAnswered) -> None:
        """Note the answer to a request."""
        for request in self.newest.values():
            if request.id == event.request_id and request.recipient == event.run:
                request.answer = event

    def accepts_shutdown(self, run: str) -> bool:
        """Return whether a run accepted the newest request to shut down."""
        return any(
            each.recipient == run and each.kind == "shutdown" and each.answer is not None and each.answer.approved
            for each in self.newest.values()
        )
