"""Find the source, and the run, that a command line names."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from ramet.cli.errors import ambiguous_prefix
from ramet.cli.sources.contract import Source
from ramet.core.errors import InvalidValue, Unknown

SERVER = "RAMET_SERVER"


def source_of(options: Namespace) -> Source:
    """Return the source: `--server`, the folder of `--dir`, the environment's server, or this folder, in this order.

    Raises InvalidValue if a server's location is invalid.
    """
    option, variable = options.server, os.environ.get(SERVER, "").strip()
    if option is None and options.dir is None and variable:
        return _server_source(SERVER, variable)
    return _local_source(options.dir) if option is None else _server_source("--server", option)


async def full_id(source: Source, prefix: str) -> str:
    """Return the id of the only run with this prefix; a complete id, or an unknown prefix, is returned unchanged.

    Raises InvalidValue if several runs match.
    """
    try:
        await source.root_of(prefix)
        return prefix
    except Unknown:
        matches = [row.id for row in await source.runs(ended=True) if row.id.startswith(prefix)]
    if len(matches) < 2:
        return matches[0] if matches else prefix
    raise InvalidValue("ID", prefix, ambiguous_prefix(matches))


def _local_source(dir: Path | None) -> Source:
    from ramet.cli.sources.local import LocalSource

    try:
        return LocalSource(dir or Path.cwd())
    except FileNotFoundError:
        raise InvalidValue("--dir", ".", "a folder that can be read: the current one no longer exists") from None


def _server_source(origin: str, address: str) -> Source:
    from ramet.cli.sources.server import ServerSource

    try:
        return ServerSource(address if "://" in address else str(Path(address).expanduser()), os.environ)
    except RuntimeError:  # no such user
        raise InvalidValue(origin, address, "the path of a socket, or a URL of http or https") from None
    except InvalidValue as problem:
        if problem.field != "address":
            raise
        raise InvalidValue(origin, address, problem.accepted) from None
