"""The activity of the trees of a kernel, as far as no event reports it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from ramet.host.control.operator import OperatorControl
from ramet.host.journal.journal import Journal


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
        self.is_elsewhere, self.agent_paths = is_elsewhere, agent_paths

    def is_here(self, root: str) -> bool:
        """Return whether a tree is active in this kernel."""
        return root in self._journal.living

    def streaming(self) -> Mapping[str, datetime]:
        """Return the times of the newest parts of replies that stream here, by run."""
        return self._steering.streaming()
