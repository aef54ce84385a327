"""The operations of a kernel's operator on its active runs: the runs of all runtimes that share its journal.

The operator is already authenticated: by the kernel's own control socket, or by the operator's key of a server.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ramet.core.errors import InvalidValue, MailRefused, OwnedElsewhere, StoreFailed, Unknown
from ramet.core.limits import Limits
from ramet.core.policy.session_access import SessionMessage

PAUSES_PAGE = 200  #: entries in one answer, which has a limit of bytes

if TYPE_CHECKING:
    from ramet.host.approvals import Inbox, Pending
    from ramet.host.trees.manager import Trees
    from ramet.isolation.contract import Sandbox
    from ramet.spawn.handle import Handle
    from ramet.store.contract import Store
    from ramet.tools.run_info import PauseReceipt, StopReceipt


class OperatorControl:
    """The operator's access to every run of some runtimes. Each refusal is typed, and then nothing was done."""

    def __init__(self, runtimes: Collection[object], store: Store) -> None:
        """Set the `Trees` of the runtimes, which may change meanwhile, and the store, open while this is used."""
        self._runtimes, self._store = cast("Collection[Trees]", runtimes), store

    def trees(self) -> list[str]:
        """Return the ids of the roots of all open trees."""
        return [root for runtime in list(self._runtimes) for root in runtime.open_trees()]

    def count_living(self) -> int:
        """Return the number of the runs of all open trees that have not ended."""
        opened = [each for runtime in list(self._runtimes) for each in runtime.open_trees().values()]
        return sum(1 for each in opened for _ in each.tree.register.living())

    def sandboxes(self) -> dict[str, Sandbox]:
        """Return the current processes of the living runs of all open trees, by run, except frozen ones."""
        opened = [each for runtime in list(self._runtimes) for each in runtime.open_trees().values()]
        living = [run for each in opened for run in each.tree.register.living()]
        return {
            run.info.id: run.sandbox.current
            for run in living
            if run.sandbox.current is not None and not run.sandbox.is_frozen
        }

    def find(self, run: str) -> Handle:
        """Return a handle on a run. Raises Unknown for a run that is not active here, and has not just ended."""
        for runtime in list(self._runtimes):
            with suppress(Unknown):
                return runtime.handle(run)
        raise Unknown("run", run)

    def streaming(self, root: str | None = None) -> dict[str, datetime]:
        """Return when the newest part of a reply came, by run, of one tree or of all.

        Only runs without an event since then are included.
        """
        opened = [each for runtime in list(self._runtimes) for each in runtime.open_trees().items()]
        runs = [run for id, each in opened if root in (None, id) for run in each.tree.register.living()]
        return {run.info.id: run.activity.streamed_at for run in runs if run.activity.streamed_at is not None}

    async def reach(self, run: str) -> Handle:
        """Return a handle on a run. Raises Unknown like `find`; OwnedElsewhere if a living kernel has its tree."""
        try:
            return self.find(run)
        except Unknown:
            await self._check_ownership(run)
            raise

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> str:
        """Send a user's message to a run; record it, and return what happens to it.

        `dedupe_s` is that of `Handle.send`.

        Raises InvalidValue, MailRefused, StoreFailed, and like `reach`.
        """
        if not text.strip():
            raise InvalidValue("text", text, "text that is not empty")
        handle = await self.reach(run)
        mail = handle.send(text, dedupe_s=dedupe_s)
        await handle.run.context.wait_persisted()
        return mail

    async def receive(self, message: SessionMessage) -> str:
        """Pass a message of another session to the open session that it is for, and return what happened to it.

        Raises MailRefused if there is none, or if several could be meant, and like `InboundMessages.receive`.
        """
        trees = [opened for runtime in list(self._runtimes) for opened in runtime.open_trees().values()]
        sessions = [each.inbound for each in trees if each.inbound.is_addressed(message.session)]
        if not message.session:  # Then only a session that takes messages can be meant, if there is one.
            sessions = [each for each in sessions if each.is_open] or sessions
        if not sessions:
            raise MailRefused(message.session or "the session", "no such session is open there")
        if len(sessions) > 1:
            raise MailRefused("the session", "several are open there, and the address does not name one")
        return await sessions[0].receive(message)

    async def stop(self, run: str, reason: str) -> StopReceipt:
        """End a run and all below it, and wait until all have ended. Raises like `reach`.

        Raises StoreFailed, caused by OwnedElsewhere, if another kernel owned the tree by then: the tree continues
        there.
        """
        handle = await self.reach(run)
        receipt = await handle.cancel(reason)
        try:
            await handle.run.context.wait_persisted()
        except StoreFailed as error:
            if isinstance(error.__cause__, OwnedElsewhere):
                raise
        return receipt

    async def raise_limits(self, run: str, add: Limits, key: str) -> Limits:
        """Add to the limits of a run, and return the new ones. Raises like `reach` and `Handle.raise_limits`."""
        return await (await self.reach(run)).raise_limits(add, key=key)

    async def pause(self, run: str, reason: str = "", *, now: bool = False) -> PauseReceipt:
        """Pause a run and all below it. Raises like `reach` and `Handle.pause`."""
        return await (await self.reach(run)).pause(reason, now=now)

    async def resume(self, run: str) -> None:
        """End the pause of a run. Raises like `reach` and `Handle.resume`."""
        await (await self.reach(run)).resume()

    def approvals(self) -> list[Pending]:
        """Return the pending questions, and the runs that wait at limits, the oldest first."""
        return sorted((each for inbox in self._inboxes() for each in inbox.pending), key=lambda each: each.asked_at)

    def pauses(self, after: str = "") -> dict[str, Any]:
        """Return a page of the entries that are no questions, as `pauses`; `more` is the id to go on after, or ""."""
        entries = [each for each in self.approvals() if each.kind != "question"]
        start = next((at + 1 for at, each in enumerate(entries) if each.id == after), 0)
        page = entries[start : start + PAUSES_PAGE]
        return {"pauses": page, "more": page[-1].id if entries[start + PAUSES_PAGE :] else ""}

    async def answer(self, approval: str, allowed: bool, reason: str, *, for_run: bool = False) -> None:
        """Answer a question for a person, or raise a limit by what its entry says, and record that.

        Raises Unknown for a question that is not (or no longer) pending, StoreFailed, and like `Inbox.answer`.
        """
        inboxes = [(inbox, run) for inbox in self._inboxes() if (run := inbox.find_run(approval)) is not None]
        if not inboxes:
            raise Unknown("approval", approval, tuple(each.id for each in self.approvals()))
        inbox, run = inboxes[0]
        handle = self.find(run)
        inbox.answer(approval, allowed, reason, for_run=for_run)
        await handle.run.context.wait_persisted()

    async def _check_ownership(self, run: str) -> None:
        with suppress(InvalidValue):  # An id that cannot be recorded.
            events = await self._store.read(run=run, limit=1)
            owner = await self._store.owner_of(events[0].tree) if events else None
            if owner is not None and owner.alive and owner.name != self._store.kernel:
                raise OwnedElsewhere(events[0].tree, owner.name, owner.address)

    def _inboxes(self) -> list[Inbox]:
        return [opened.inbox for runtime in list(self._runtimes) for opened in runtime.open_trees().values()]
