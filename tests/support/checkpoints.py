"""A whole checkpoint in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ramet.isolation.workspace import checkpoint


class Checkpoint(NamedTuple):
    """A saved value, in the order of the arguments of `checkpoint.save`."""

    body: bytes
    json_size: int
    version: int


def load(file: Path) -> Checkpoint | None:
    """Return the checkpoint in a file, None if there is none. Raises as `checkpoint.open_whole` does."""
    opened = checkpoint.open_whole(file)
    if opened is None:
        return None
    try:
        return Checkpoint(os.pread(opened.fd, opened.size, opened.offset), opened.json_size, opened.version)
    finally:
        os.close(opened.fd)
