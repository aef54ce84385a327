"""The runtime of `ramet ask`: in memory, or with a journal if a limit may pause, so that another process can go on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from ramet.cli.paths import display_path, temp_dir, user_dir, writable_dir
from ramet.cli.project import home_folder
from ramet.cli.render.sanitize import one_line
from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, StoreFailed, StoreInUse
from ramet.disk.state_folder import checked_state_folder
from ramet.host.runtime import AgentRuntime


class OpenedRuntime(NamedTuple):
    """A runtime, and remarks for a person."""

    runtime: AgentRuntime
    remarks: tuple[str, ...]


async def open_runtime(options: Namespace, clock: Clock, *, asks_at_limit: bool) -> OpenedRuntime:
    """Return the requested runtime.

    With limits that pause its journal is open. If that cannot be used, and a person is asked at each pause, there is
    none: a pause then ends with the process. Raises StoreInUse and StoreFailed if nobody is asked.
    """
    remarks = list[str]()
    common: dict[str, Any] = {
        "transcripts": _transcripts_dir(options, remarks),
        "clock": clock,
        "user_dir": user_dir(),
        "home": home_folder(),
        "backend": None if options.backend == "inline" else options.backend,
    }
    if options.at_limit == "pause":
        runtime = AgentRuntime(options.dir, **common)
        try:
            await runtime.open_store()
            return OpenedRuntime(runtime, tuple(remarks))
        except (StoreInUse, StoreFailed, OSError) as problem:
            await runtime.stop()
            if not asks_at_limit:
                raise
            remarks.append(f"{one_line(str(problem))}: a pause ends with this process")
    return OpenedRuntime(AgentRuntime(**common), tuple(remarks))


def _transcripts_dir(options: Namespace, remarks: list[str]) -> Path:
    """Return the folder for transcripts. Raises InvalidValue if a requested one cannot be written to."""
    if options.transcripts:
        chosen = writable_dir(Path(options.transcripts).expanduser().absolute())
        if chosen is None:
            raise InvalidValue("--transcripts", options.transcripts, "a folder that can be written to")
        return chosen
    default = writable_dir(checked_state_folder(options.dir) / "transcripts")
    if default is None:
        remarks.append(
            f"{one_line(display_path(options.dir))} cannot be written to: transcripts go to a temporary folder"
        )
        return temp_dir()
    return default
