"""Runtimes whose agents run in sandboxes, one for each backend of this machine."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import AsyncIterator
from typing import Literal, get_args

import pytest

import ramet

BackendName = Literal["bwrap", "local"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> BackendName:
    """Return each backend by name, or skip one that this machine lacks."""
    if not pathlib.Path("/proc/self/ns").exists():
        pytest.skip("not Linux: no sandboxes here")
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    name: BackendName = request.param
    return name


@pytest.fixture
def usual_backend() -> BackendName:
    """Return the backend that is used by default: for what the host does in the same way whatever the sandbox is."""
    return "bwrap" if shutil.which("bwrap") is not None else "local"


@pytest.fixture
async def runtime(backend: BackendName, tmp_path: pathlib.Path) -> AsyncIterator[ramet.AgentRuntime]:
    """Yield a running runtime with a folder of its own."""
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        yield runtime


def marked_processes(mark: str) -> list[int]:
    """Return the live processes that have a mark as a comment in their command line.


    Their child processes are left out, such as the fork of a shell before it starts another program.

    A child of one of them is left out: a shell's, that is about to be another program.
    """
    parents: dict[int, int] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if b"# " + mark.encode() in (folder / "cmdline").read_bytes() and state not in "ZX":
                parents[int(folder.name)] = int(parent)
    return [pid for pid, parent in parents.items() if parent not in parents]
