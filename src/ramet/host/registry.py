"""`AGENT_REGISTRY`: every run of the runtimes that live here, to look at, and to push mail to and drain it from.

A view: it keeps nothing. There is one registry per tree underneath, and runs are born and end there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ramet.concurrency.mailbox import Kind, Mail
from ramet.core.errors import Unknown
from ramet.host.runtime import living
from ramet.spawn.run import Run
from ramet.spawn.tree import RunTree
from ramet.tools.context import RunView


class AgentRegistry(Mapping[str, RunView]):
    """Runs by id, read only."""

    def __getitem__(self, run_id: str) -> RunView:
        try:
            return self._find(run_id)[1].view()
        except Unknown:
            raise KeyError(run_id) from None

    def __iter__(self) -> Iterator[str]:
        for tree in self._trees():
            yield from tree.register.runs

    def __len__(self) -> int:
        return sum(len(tree.register.runs) for tree in self._trees())

    def push(self, run_id: str, text: str, *, sender: str = "user", dedupe_s: float | None = None) -> str:
        """Put mail into a run's mailbox, and say what becomes of it; `dedupe_s` as of `Session.send`.

        Raises Unknown, MailRefused.
        """
        tree, run = self._find(run_id)
        kind: Kind = "user" if sender == "user" else "agent"
        return tree.post.deliver(run, text, sender=sender, kind=kind, dedupe_s=dedupe_s)

    def drain(self, run_id: str) -> list[Mail]:
        """Take a run's unread mail out of its mailbox, oldest first. Raises Unknown."""
        return self._find(run_id)[1].context.mailbox.drain()

    def _trees(self) -> Iterator[RunTree]:
        for each in living():
            for opened in each.trees.values():
                yield opened.tree

    def _find(self, run_id: str) -> tuple[RunTree, Run]:
        for tree in self._trees():
            for key, run in tree.register.runs.items():
                if key == run_id:
                    return tree, run
        raise Unknown("run", run_id)


AGENT_REGISTRY = AgentRegistry()
