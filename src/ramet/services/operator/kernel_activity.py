"""The activity of the trees of a kernel, as far as no event reports it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import SandboxUsage
from ramet.host.journal.journal import Journal
from ramet.services.operator.sandbox_samples import SandboxSamples


class KernelActivity:
    """The activity of the trees of a running kernel, as `ramet.services.operator.live_rows.Activity`."""

    def __init__(
        self,
        journal: Journal,
        steering: OperatorControl,
        is_elsewhere: Callable[[str], Awaitable[bool]],
        agent_paths: Callable[[], Mapping[str, str]],
    ) -> None:
        """`is_elsewhere` returns whether another kernel runs a tree, `agent_paths` the agents' paths by roots."""
        self._journal, self._steering = journal, steering
        self._samples = SandboxSamples(steering)
        self.measure, self.clear_samples = self._samples.measure, self._samples.clear
        self.is_elsewhere, self.agent_paths = is_elsewhere, agent_paths

    def is_here(self, root: str) -> bool:
        """Return whether a tree is active in this kernel."""
        return root in self._journal.living

    def samples(self) -> Mapping[str, SandboxUsage]:
        """Return the newest measurements of processes, while the feed of changes is read."""
        return self._samples.usage

    def streaming(self) -> Mapping[str, datetime]:
        """Return the times of the newest parts of replies that stream here, by run."""
        return self._steering.streaming()
