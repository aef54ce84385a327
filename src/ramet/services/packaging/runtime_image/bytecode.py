"""Bytecode for a layer: compiled once before packing, so that no container compiles, or needs to write anything."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ramet.concurrency import processes
from ramet.concurrency.clock import SystemClock
from ramet.concurrency.pipes import Capture
from ramet.core.errors import RametError
from ramet.services.packaging.runtime_image import bytecode_worker

_PARTS = 4  #: processes that share the work; a fixed number, because bytecode depends on the files compiled before it
_LIMIT_S = 600.0


class NotCompiled(RametError):
    """Sources that could not be compiled; no bytecode of them is used. `output` is the end of the compiler's output."""

    def __init__(self, reason: str, output: str) -> None:
        self.reason, self.output = reason, output
        super().__init__(f"the sources could not be compiled ({reason}): {output}".rstrip(": "))


async def compile_sources(files: Mapping[PurePosixPath, Path], folder: Path) -> dict[PurePosixPath, Path]:
    """Compile sources into `folder`. Return the bytecode, by its path below a `pycache_prefix`. Raises NotCompiled.

    The keys of `files` are the paths in the container. Files that are no Python of this version are skipped.
    """
    outputs: dict[PurePosixPath, Path] = {}
    batches: list[list[tuple[str, str, str]]] = [[] for _ in range(_PARTS)]
    for number, (path, source) in enumerate(files.items()):
        output = folder / f"{number}.pyc"
        outputs[path.with_name(f"{path.stem}.{sys.implementation.cache_tag}.pyc")] = output
        batches[number % _PARTS].append((str(source), str(path), str(output)))
    async with asyncio.TaskGroup() as group:
        for part in batches:
            group.create_task(_compile(part, folder))
    return {path: output for path, output in outputs.items() if output.exists()}


async def _compile(part: list[tuple[str, str, str]], folder: Path) -> None:
    output = Capture(head=0, tail=4096)
    ended = await processes.run(
        [sys.executable, "-I", "-S", "-B", bytecode_worker.__file__],
        clock=SystemClock(),
        timeout_s=_LIMIT_S,
        cwd=folder,
        env=processes.environment(),
        stdout=output,
        stdin=json.dumps(part).encode(),
        forks=False,
    )
    if ended.reason == "timeout" or ended.code:
        reason = f"not done within {_LIMIT_S:g} s" if ended.reason == "timeout" else f"exit code {ended.code}"
        raise NotCompiled(reason, output.data().decode("utf-8", "replace").strip())
