"""Sockets that lead to the ports of active agents, for the kernel's operator."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramet.core.errors import Gone

if TYPE_CHECKING:  # The command line reads journals without importing the modules that run agents.
    from ramet.spawn.run import Run


def sockets_of(run: Run) -> Mapping[str, pathlib.Path]:
    """Return the Unix sockets of a run's ports by their names; an empty mapping if its policy names no port.

    Raises Gone if no sandbox of the run is active, InvalidValue if a path is too long to connect to.
    """
    declared = run.grant.ports if run.grant is not None else {}
    if not declared:
        return {}
    if (ports := run.sandbox.served_ports.now) is None:
        state = "has ended" if not run.is_living else "has no active sandbox now"
        raise Gone(f"{run.path} {state}")
    return {name: ports.path(name) for name in declared}
