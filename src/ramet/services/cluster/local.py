"""The objects that this kernel owns, for the router."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ramet.host.journal.journal import Journal
from ramet.services.teams.service import AgentSpawnerService


class LocalOwnership(NamedTuple):
    """The objects that this kernel owns: the teams and agents of `spawner`, and the trees of `journal`."""

    spawner: AgentSpawnerService
    journal: Journal
    is_draining: Callable[[], bool]  #: whether this kernel is about to end, and takes no new work
