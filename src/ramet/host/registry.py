"""`AGENT_REGISTRY`: every run of the runtimes of this process, for inspection, and for pushing and draining mail.

The registry is a view and stores nothing. Each tree has a registry of its own, in which runs start and end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ramet.concurrency.mailbox import Kind, Mail
from ramet.core.errors import Unknown
from ramet.host.runtime import running_runtimes
from ramet.spawn.run import Run
from ramet.spawn.tree import RunTree
from ramet.spawn.watches.run_waits import view_of
from ramet.tools.run_info import RunView


class AgentRegistry(Mapping[str, RunView]):
    """A read-only mapping of run ids to runs."""

    def __getitem__(self, run_id: str) -> RunView:
        try:
            return view_of(self._find(run_id)[1])
        except Unknown:
            raise KeyError(run_id) from None

    def __iter__(self) -> Iterator[str]:
        for tree in self._trees():
            yield from tree.register.runs

    def __len__(self) -> int:
        return sum(len(tree.register.runs) for tree in self._trees())

    def push(self, run_id: str, text: str, *, sender: str = "user", dedupe_s: float | None = None) -> str:
        """Put mail into a run's mailbox, and return what happens to it. `dedupe_s` is that of `Session.send`.

        Raises Unknown, MailRefused.
        """
        tree, run = self._find(run_id)
        kind: Kind = "user" if sender == "user" else "agent"
        return tree.post.deliver(run, text, sender=sender, kind=kind, dedupe_s=dedupe_s)

    def drain(self, run_id: str) -> list[Mail]:
        """Take a run's unread mail out of the run's mailbox, oldest first. Raises Unknown."""
        return self._find(run_id)[1].context.mailbox.drain()

    def _trees(self) -> Iterator[RunTree]:
        for each in running_runtimes():
            for opened in each.trees.values():
                yield opened.tree

    def _find(self, run_id: str) -> tuple[RunTree, Run]:
        for tree in self._trees():
            for key, run in tree.register.runs.items():
                if key == run_id:
                    return tree, run
        raise Unknown("run", run_id)


AGENT_REGISTRY = AgentRegistry()
