"""What the user of a kernel may do to what is at work in it: the runs of all runtimes that share its journal.

Whoever comes is known already: through the kernel's own door, or with the operator's key of a server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast

from ramet.core.errors import InvalidValue, OwnedElsewhere, StoreFailed, Unknown
from ramet.host.journal.ttl import set_keep
from ramet.host.sandbox.port_sockets import sockets_of
from ramet.host.sandbox.workspace_files import Workspace, file_of, workspace_of

if TYPE_CHECKING:
    import pathlib

    from ramet.core.ids import RunId
    from ramet.host.approvals import Pending
    from ramet.host.trees.factory import OpenTree
    from ramet.spawn.handle import Handle
    from ramet.store.contract import Store
    from ramet.tools.context import StopReceipt


class RuntimeAccess(Protocol):
    """What a runtime lets those who steer it reach."""

    @property
    def trees(self) -> Mapping[RunId, OpenTree]:
        """The open trees by the id of their root."""

    def get(self, run: str) -> Handle:
        """A handle on a run, by id. Raises Unknown."""


class OperatorControl:
    """A hand on every run of some runtimes. Each refusal is typed, and then nothing was done."""

    def __init__(self, houses: Collection[object], store: Store) -> None:
        """`houses` may change meanwhile; each of them is a `RuntimeAccess`. `store` is open as long as this is used."""
        self._given, self._store = houses, store

    def trees(self) -> list[str]:
        """The ids of the roots of all open trees."""
        return [root for house in self._houses() for root in house.trees]

    def find(self, run: str) -> Handle:
        """A handle on a run. Raises Unknown for one that is not at work here, and has not just ended."""
        for house in self._houses():
            with suppress(Unknown):
                return house.get(run)
        raise Unknown("run", run)

    async def reach(self, run: str) -> Handle:
        """A handle on a run. Raises Unknown like `find`; OwnedElsewhere if a living kernel has its tree."""
        try:
            return self.find(run)
        except Unknown:
            await self._see_that_it_is_ours(run)
            raise

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> str:
        """A user's word for a run, which is on record by then; what becomes of it. `dedupe_s` as of `Handle.send`.

        Raises InvalidValue, MailRefused, StoreFailed, and like `reach`.
        """
        if not text.strip():
            raise InvalidValue("text", text, "text that is not empty")
        handle = await self.reach(run)
        mail = handle.send(text, dedupe_s=dedupe_s)
        await handle.run.context.settled()
        return mail

    async def stop(self, run: str, reason: str) -> StopReceipt:
        """End a run and all below it, and wait until they are gone. Raises like `reach`.

        StoreFailed is raised, by an OwnedElsewhere, where its tree was another kernel's by then: there it goes on.
        """
        handle = await self.reach(run)
        receipt = await handle.cancel(reason)
        try:
            await handle.run.context.settled()
        except StoreFailed as failed:
            if isinstance(failed.__cause__, OwnedElsewhere):
                raise
        return receipt

    async def workspace(self, run: str) -> Workspace:
        """The workspace of a run at work, as it is now. Raises like `reach`, and like `workspace_of`."""
        return await workspace_of((await self.reach(run)).run)

    async def read_file(self, run: str, path: str) -> bytes:
        """The content of a file of a run at work. Raises like `reach`, and like `file_of`."""
        return await file_of((await self.reach(run)).run, path)

    async def ports(self, run: str) -> Mapping[str, pathlib.Path]:
        """The sockets that lead to the ports of a run at work. Raises like `reach`, and like `sockets_of`."""
        return sockets_of((await self.reach(run)).run)

    def approvals(self) -> list[Pending]:
        """The questions that wait for a person, the oldest first."""
        waiting = [each for house in self._houses() for opened in house.trees.values() for each in opened.inbox.pending]
        return sorted(waiting, key=lambda each: each.asked_at)

    async def answer(self, approval: str, allowed: bool, reason: str) -> None:
        """A person's word on a question, which is on record by then.

        Raises Unknown for one that does not wait (any more), StoreFailed.
        """
        inboxes = [opened.inbox for house in self._houses() for opened in house.trees.values()]
        waiting = {each.id: (inbox, each.run) for inbox in inboxes for each in inbox.pending}
        if approval not in waiting:
            raise Unknown("approval", approval, tuple(waiting))
        inbox, run = waiting[approval]
        handle = self.find(run)
        inbox.answer(approval, allowed, reason)
        await handle.run.context.settled()

    async def keep(self, run: str, on: bool) -> str:
        """Keep the tree of a run whatever its time is, or no longer; the id of its root. Raises Unknown."""
        return await set_keep(self._store, run, on)

    async def _see_that_it_is_ours(self, run: str) -> None:
        with suppress(InvalidValue):  # No name that could be on record.
            found = await self._store.read(run=run, limit=1)
            owner = await self._store.owner_of(found[0].tree) if found else None
            if owner is not None and owner.alive and owner.name != self._store.kernel:
                raise OwnedElsewhere(found[0].tree, owner.name, owner.address)

    def _houses(self) -> list[RuntimeAccess]:
        return [cast("RuntimeAccess", each) for each in list(self._given)]
