"""Which source a command line means."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ramet.cli.sources.contract import Source


def source_of(options: Namespace) -> Source:
    """The working directory."""
    from ramet.cli.sources.folder import Folder

    return Folder(options.dir or Path.cwd())
