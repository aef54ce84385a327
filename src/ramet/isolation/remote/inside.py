"""The program of a machine: it keeps sandboxes there by the backend `local`, and does what a line says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.isolation.remote.line import Line


async def serve(line: Line, runs: Path, places: Sequence[Path] = ()) -> None:
    """Say hello and do what is said, until the line ends for good or says so; nothing is left then.

    `runs` is the same path as on the kernel's host. `places` are other folders that mounts may be written to: a mount
    at one of them or below it comes from the host, any other is what this machine has there.
    """


def main(runs: str, *places: str) -> None:
    """Serve the line that standard input and output are, and end with it. What is printed goes to standard error."""
