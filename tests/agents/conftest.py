"""Fixtures for tests with programs of other makers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.agent_programs import Program, installed

BOUND_S = 120.0  # passed in full only by a test that fails


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it said."""

    code: int
    stdout: str
    stderr: str


Run = Callable[[list[str], dict[str, str]], Awaitable[Ended]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the empty folder that a program works in."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def agent_home(tmp_path: Path) -> Path:
    """Return the empty home of a program."""
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    """Return the installed program of the test's parameter."""
    found = installed(request.param)
    assert found is not None, "the mark `agents` has the name of each program of a test"
    return found


@pytest.fixture
def run(folder: Path) -> Run:
    """Return a function that runs a program to its end, in a process group that is gone then."""

    async def run(argv: list[str], env: dict[str, str]) -> Ended:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(BOUND_S):
                stdout, stderr = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return Ended(process.returncode or 0, stdout.decode(), stderr.decode())

    return run
