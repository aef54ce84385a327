"""Programs that import everything themselves, as those of users do; most tests start theirs with the imports done."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys

import pytest

from tests.support.providers import provider
from tests.support.serve_process import serve
from tests.support.warm import starts_warm
from tests.trips.kits.terminal import ramet

pytestmark = pytest.mark.cold


async def test_a_question_is_answered_by_a_program_that_starts_cold(tmp_path: pathlib.Path) -> None:
    """`ramet ask` answers, and `ramet ps` finds the question in the journal."""
    assert not starts_warm()
    async with provider(["It is short."]) as server:
        asked = await ramet("ask", "Why?", "--dir", str(tmp_path), server=server)
    listed = await ramet("ps", "--all", "--dir", str(tmp_path))

    assert (asked.status, asked.out) == (0, "It is short.\n")
    assert (listed.status, listed.err) == (0, "")
    assert [line.split()[1:4] for line in listed.out.splitlines()[1:]] == [["main", "main", "completed"]]


async def test_a_server_that_starts_cold_listens_and_ends(folder: pathlib.Path) -> None:
    """`ramet serve` names its address, and ends at SIGTERM."""
    async with serve(folder, "--backend", "local") as server:
        assert "serve.sock" in server.line
        status, _ = await server.end(signal.SIGTERM)

    assert status == 0


@pytest.mark.parametrize("example", ["simple_agent", "team_scenario"])
async def test_an_example_starts_cold(tmp_path: pathlib.Path, example: str) -> None:
    """An example of the package runs from its module."""
    line = (sys.executable, "-m", f"ramet.examples.{example}", "--backend", "local")
    process = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()

    assert process.returncode == 0
    assert out
