"""The backend for trusted code and tests: each agent a process behind Landlock and seccomp, in the host's own root."""

from __future__ import annotations

from pathlib import Path

from ramet.isolation.forking import Forking, OnThreshold


class LocalBackend(Forking):
    """Level L1: rlimits, no_new_privs, Landlock, seccomp; namespaces besides, where the machine lets us have them."""

    name = "local"

    def __init__(
        self, runs: Path, *, parked: int = 4, on_threshold: OnThreshold | None = None, namespaces: bool = True
    ) -> None:
        """Without `namespaces` it does as on a machine that has none: no /tmp, no secrets, no endpoints."""
        super().__init__(runs, parked=parked, on_threshold=on_threshold)
        self.wants_namespaces = namespaces
