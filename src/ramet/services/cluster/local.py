"""What a kernel has, as the way to the others asks for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class LocalOwnership(Protocol):
    """What this kernel has."""

    @property
    def leaves(self) -> bool:
        """Whether it takes no new work, since it is about to end."""

    def has_agent(self, agent: str) -> bool:
        """Whether it has an agent of that id, open."""

    def has_team(self, team: str) -> bool:
        """Whether it has a team of that id or name, with all its agents."""

    @property
    def teams(self) -> Collection[str]:
        """The ids of all teams that it has."""

    def has_tree(self, tree: str) -> bool:
        """Whether a tree is at work here."""

    def is_taking_up(self, team: str) -> bool:
        """Whether a team, or any for "", is this kernel's, and its agents are being opened."""

    def knows_key(self, key: str) -> bool:
        """Whether a key opens anything here."""

    def opens_an_agent(self, key: str) -> bool:
        """Whether this is a key of one of its agents."""
