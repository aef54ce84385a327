"""The objects that this kernel owns, as an interface for the router."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class LocalOwnership(Protocol):
    """The objects that this kernel owns."""

    @property
    def is_draining(self) -> bool:
        """Return whether this kernel is about to end, and takes no new work."""

    def has_agent(self, agent: str) -> bool:
        """Return whether this kernel has an open agent of that id."""

    def has_team(self, team: str) -> bool:
        """Return whether this kernel has a team of that id or name, with all its agents."""

    @property
    def teams(self) -> Collection[str]:
        """Return the ids of all teams that this kernel owns."""

    def has_tree(self, tree: str) -> bool:
        """Return whether a tree is active in this kernel."""

    def is_taking_over(self, team: str) -> bool:
        """Return whether this kernel owns the team (any team for "") and is still opening its agents."""

    def knows_key(self, key: str) -> bool:
        """Return whether a key opens anything in this kernel."""

    def is_agent_key(self, key: str) -> bool:
        """Return whether this is a key of an agent of this kernel."""
