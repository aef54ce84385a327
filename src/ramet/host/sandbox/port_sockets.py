"""Sockets that lead to the ports of agents at work, for whoever steers the kernel."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramet.core.errors import Gone

if TYPE_CHECKING:  # The command line looks at journals without all that runs agents.
    from ramet.spawn.run import Run


def sockets_of(run: Run) -> Mapping[str, pathlib.Path]:
    """Return the Unix sockets of a run's ports by their names; none where its policy names none.

    Raises Gone where no sandbox of it is at work, InvalidValue where a path is too long to connect to.
    """
    declared = run.grant.ports if run.grant is not None else {}
    if not declared:
        return {}
    if (ports := run.serving.now) is None:
        state = "has ended" if not run.is_living else "has no sandbox at work now"
        raise Gone(f"{run.path} {state}")
    return {name: ports.path(name) for name in declared}
