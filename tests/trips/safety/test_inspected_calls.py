"""156: operators inspect what passed the safety gates: filtered, in pages by cursor, and followed live."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import sys
from typing import Any

import pytest
from langchain_core.tools import tool

from ramet import AgentRuntime, ScriptedModel, Session
from ramet.cli.main import main
from ramet.host.safety import Rule, SafetyGate, SafetyPolicy
from ramet.models.scripted.dialogue import Call
from tests.support.serving import EchoServer
from tests.support.waiting import eventually
from tests.trips.kits.sessions import specialist_call


@tool
def look(path: str) -> str:
    """Look at a file."""
    return f"seen {path}"


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


POLICY = SafetyPolicy(
    rules=(Rule(tool="delete", verdict="deny", reason="nothing is deleted\x1b[2J"),), otherwise="allow"
)


async def run_tree_with_gate(runtime: AgentRuntime, name: str) -> str:
    """Run a root with two calls, one of them denied, and a child with one call. Return the id of the tree."""
    model = ScriptedModel(
        {
            "Child": [Call("look", {"path": "of the child"}), "done"],
            "": [[Call("look", {"path": "a"}), Call("delete", {"path": "b"})], specialist_call("Child", "scout"), "ok"],
        }
    )
    async with Session(
        model, [look, delete], runtime=runtime, gate=SafetyGate(POLICY), session_id=name, cwd=runtime.working_dir
    ) as session:
        await session.ask("Go.")
        return session.id


def rows_of(lines: str) -> list[tuple[str, str, str]]:
    """Return kind, path and tool of each JSON line."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines.splitlines()]
    return [(each["kind"], each["event"]["path"], each["event"]["tool"]) for each in rows]


@pytest.fixture(params=["folder", "server"])
def place_options(request: pytest.FixtureRequest, echo_server: EchoServer) -> list[str]:
    """The command line options of a working directory, or of the server that works there."""
    return (
        ["--dir", str(echo_server.server.dir)]
        if request.param == "folder"
        else ["--server", echo_server.server.listen_address]
    )


async def test_156_passages_can_be_filtered(
    echo_server: EchoServer, place_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Filters are tree, run, path, tool, kind, and the decision. A passage must match each of them."""
    first, second = [await run_tree_with_gate(echo_server.server.runtime, name) for name in ("one", "two")]

    async def passages(*words: str) -> list[tuple[str, str, str]]:
        status = await asyncio.to_thread(main, ["passages", *words, "--json", *place_options])
        out, err = capsys.readouterr()
        assert status == 0, err
        return rows_of(out)

    every = await passages()
    assert len(every) == 24  # Four calls in each tree: an intention, a decision and an output.
    assert await passages("--tree", first) == await passages("--tree", first[:-2]) == every[:12]
    assert await passages("--run", second, "--kind", "decision", "--aborted") == [("decision", "main", "delete")]
    assert await passages("--tree", first, "--path", "main/*") == [
        (kind, "main/scout", "look") for kind in ("intention", "decision", "output")
    ]
    assert (
        await passages("--tool", "lo*", "--kind", "intention")
        == [("intention", path, "look") for path in ("main", "main/scout")] * 2
    )
    assert {kind for kind, *_ in await passages("--kind", "intention", "--kind", "output")} == {"intention", "output"}
    assert all(kind == "decision" for kind, *_ in await passages("--committed"))
    assert await passages("--tool", "nothing") == []


async def test_156_passages_are_read_page_by_page(
    echo_server: EchoServer, place_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each page says where the next one begins. Together, the pages hold every passage once and in order."""
    await run_tree_with_gate(echo_server.server.runtime, "one")

    async def page(*words: str) -> tuple[list[dict[str, Any]], str]:
        status = await asyncio.to_thread(main, ["passages", *words, "--json", *place_options])
        out, err = capsys.readouterr()
        assert status == 0, err
        return [json.loads(line) for line in out.splitlines()], err

    every, note = await page()
    assert note == ""
    rows_read, cursor = list[dict[str, Any]](), "0"
    while True:
        rows, note = await page("--limit", "5", "--after", cursor)
        rows_read += rows
        if not note:
            break
        cursor = str(rows[-1]["cursor"])
        assert note == f"there are more: --after {cursor}\n"
    assert rows_read == every
    assert len(every) == 12


async def test_156_passages_are_shown_to_a_person(
    echo_server: EchoServer, place_options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each passage is a line with its place, its tool and its votes, without control characters for the terminal."""
    await run_tree_with_gate(echo_server.server.runtime, "one")

    assert await asyncio.to_thread(main, ["passages", "--tool", "delete", *place_options]) == 0
    out, err = capsys.readouterr()
    intention, decision, output = out.splitlines()
    assert intention.split(maxsplit=1)[1] == 'main  intends  delete {"path": "b"}  (policy fixed, version 0)'
    assert "aborts   delete: rules: nothing is deleted" in decision
    assert "(rules deny)" in decision
    assert "output   delete denied" in output
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "vote"], "--kind: invalid choice: 'vote'"),
        (["--limit", "0"], "--limit: '0' is not accepted; expected a whole number from 1"),
        (["--after", "-1"], "--after: '-1' is not accepted; expected a whole number from 0"),
        (["--committed", "--aborted"], "--aborted: not allowed with argument --committed"),
        (["--limit", "100000"], "--limit: 100000 is not accepted; expected a whole number from 1 to 1000"),
    ],
    ids=["kind", "limit", "after", "both", "too many"],
)
async def test_156_wrong_usage_is_one_line(
    echo_server: EchoServer,
    place_options: list[str],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await run_tree_with_gate(echo_server.server.runtime, "one")

    assert await asyncio.to_thread(main, ["passages", *words, *place_options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


async def test_156_passages_can_be_followed(
    echo_server: EchoServer, place_options: list[str], tmp_path: pathlib.Path
) -> None:
    """`-f` shows old passages, then new ones as they come. Ctrl-C ends it."""
    out = tmp_path / "out"
    await run_tree_with_gate(echo_server.server.runtime, "one")
    root = pathlib.Path(__file__).parents[3]
    command = [sys.executable, "-m", "ramet", "passages", "-f", "--json", "--kind", "decision", *place_options]
    with out.open("wb") as file:
        reader = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=asyncio.subprocess.PIPE, cwd=root)
    try:
        await eventually(lambda: len(out.read_text().splitlines()) == 4 or reader.returncode is not None)
        await run_tree_with_gate(echo_server.server.runtime, "two")
        await eventually(lambda: len(out.read_text().splitlines()) == 8)
        os.kill(reader.pid, signal.SIGINT)
        _, err = await reader.communicate()
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()
    assert rows_of(out.read_text())[4:] == rows_of(out.read_text())[:4]
    assert (reader.returncode, b"Traceback" in err) == (130, False), err
