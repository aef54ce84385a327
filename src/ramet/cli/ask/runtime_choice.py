"""The runtime of `ramet ask`: with the journal of the folder, so that other commands see and steer the question."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from ramet.cli.paths import display_path, temp_dir, user_dir, writable_dir
from ramet.cli.project import home_folder
from ramet.cli.render.sanitize import one_line
from ramet.concurrency.clock import Clock
from ramet.core.errors import Damaged, InvalidValue, StoreFailed, StoreInUse
from ramet.disk.state_folder import checked_state_folder
from ramet.host.runtime import AgentRuntime


class OpenedRuntime(NamedTuple):
    """A runtime, and remarks for a person."""

    runtime: AgentRuntime
    remarks: tuple[str, ...]


async def open_runtime(options: Namespace, clock: Clock, *, asks_at_limit: bool) -> OpenedRuntime:
    """Return the requested runtime; its journal is open.

    If the journal cannot be used, the question is not recorded, and a remark says so. With limits that pause, a pause
    then ends with the process: where nobody is asked at it, raises StoreInUse, StoreFailed or OSError.
    """
    remarks = list[str]()
    common: dict[str, Any] = {
        "transcripts": _transcripts_dir(options, remarks),
        "clock": clock,
        "user_dir": user_dir(),
        "home": home_folder(),
        "backend": None if options.backend == "inline" else options.backend,
    }
    runtime = AgentRuntime(options.dir, **common)
    try:
        await runtime.open_store()
        return OpenedRuntime(runtime, tuple(remarks))
    except (Damaged, StoreInUse, StoreFailed, OSError) as problem:
        await runtime.stop()
        if options.at_limit == "pause" and not asks_at_limit:
            raise
        loss = "a pause ends with this process" if asks_at_limit else "this question is not recorded"
        remarks.append(f"{one_line(str(problem))}: {loss}")
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
