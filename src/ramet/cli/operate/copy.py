"""`ramet cp`: copy a file of a running run out of its sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from argparse import Namespace
from pathlib import Path

from ramet.cli.render.json_output import print_json
from ramet.cli.sources.choose import full_id, source_of
from ramet.core.errors import InvalidValue

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def copy(options: Namespace) -> int:
    """Write the file to a new one, or to stdout."""
    is_stdout = options.to == "-"  # A file of that name in the sandbox is allowed.
    to = options.to or options.path.rpartition("/")[2]
    if is_stdout and options.json:
        raise InvalidValue("--json", "with -", "a file as TO: stdout holds either the file or the JSON")
    if not is_stdout and os.path.lexists(to):
        raise InvalidValue("TO", to, "a file that does not exist yet, or - for stdout")
    content = asyncio.run(_content(options))
    if is_stdout:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return 0
    try:
        out = os.open(to, _NEW, 0o644)
    except FileExistsError:
        raise InvalidValue("TO", to, "a file that does not exist yet, or - for stdout") from None
    try:
        with open(out, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(content)
    except BaseException:
        with contextlib.suppress(OSError):  # A partial copy is useless.
            Path(to).unlink()
        raise
    if options.json:
        print_json(json.dumps({"file": to, "bytes": len(content)}))
    return 0


async def _content(options: Namespace) -> bytes:
    async with source_of(options) as source:
        return await source.read_file(await full_id(source, options.id), options.path)
