"""`ramet wrap`: a program at a real terminal, or between pipes, in a real sandbox, with a model server that counts."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.cli.test_cli_journal import rows, run_on, wait_for_rows
from tests.trips.kits.isolated import BackendName, backend, marked_processes
from tests.trips.kits.terminal import Terminal, ramet, running_ramet, shell_terminal, terminal

__all__ = ["backend"]

Words = tuple[str, ...]
KEY = "sk-of-the-host-1234567890"
CLIENT = """
import json, os, pathlib, sys, urllib.error, urllib.request

def ask():
    body = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code

statuses = [ask() for _ in range(int(sys.argv[1]))]
environ = pathlib.Path("/proc/self/environ").read_text()
print(statuses, sys.argv[2] in environ, pathlib.Path(os.environ["HOME"]).is_dir())
sys.exit(any(each != 200 for each in statuses))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for programs."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def wrap(folder: Path, backend: BackendName) -> Words:
    """Return the beginning of a command line."""
    return ("wrap", "--dir", str(folder), "--backend", backend)


@asynccontextmanager
async def window(wrap: Words, *command: str) -> AsyncIterator[Terminal]:
    """Yield a terminal in which a program has just been started."""
    async with provider([]) as server, terminal(*wrap, "--", *command, server=server) as opened:
        yield opened


def names_in(folder: Path) -> set[str]:
    """Return the names of the entries of a folder."""
    return {each.name for each in folder.iterdir()}


def is_cooked(terminal: Terminal) -> bool:
    """Return whether a terminal edits lines, echoes, and makes signals, as for a shell."""
    flags = termios.ICANON | termios.ECHO | termios.ISIG
    return bool(terminal.modes[3] & flags == flags)


async def test_a_shell_at_the_terminal_sees_its_size_and_each_change(wrap: Words) -> None:
    """/dev/tty is the terminal of the program, and the exit status is that of the program."""
    async with window(wrap, "sh") as shell:
        await shell.shows("$ ")
        assert not is_cooked(shell)
        shell.type("stty size </dev/tty; echo is-$((1))\r")
        await shell.shows("24 80")
        await shell.shows("is-1")
        shell.resize(50, 132)
        prompts = 2
        while "50 132" not in shell.text:  # The size arrives a moment later.
            shell.type("stty size\r")
            prompts += 1
            await shell.shows("$ ", prompts)
        shell.type("exit 3\r")
        assert await shell.end() == 3
        assert is_cooked(shell)

    assert "ramet: sh ended with status 3 · 0 model calls" in shell.text


async def test_ctrl_c_interrupts_the_program_and_not_ramet(wrap: Words) -> None:
    async with window(
        wrap, "sh", "-c", "trap 'echo interrupted; exit 9' INT; echo ready; while :; do :; done"
    ) as shell:
        await shell.shows("ready")
        shell.type("\x03")
        await shell.shows("interrupted")
        assert await shell.end() == 9


async def test_a_program_that_is_suspended_or_stops_itself_goes_on(wrap: Words) -> None:
    """No shell inside would continue it."""
    async with window(wrap, "sh", "-c", "echo ready; read line; kill -STOP $$; echo got-$line") as shell:
        await shell.shows("ready")
        shell.type("\x1ahello\r")
        await shell.shows("got-hello")
        assert await shell.end() == 0


async def test_a_program_that_is_killed_has_the_status_of_a_shell(wrap: Words) -> None:
    async with window(wrap, "sh", "-c", "kill -KILL $$") as shell:
        assert await shell.end() == 128 + signal.SIGKILL
        assert is_cooked(shell)


async def test_ramet_stop_ends_the_program_and_resets_the_screen(wrap: Words, folder: Path) -> None:
    """A program that was in the alternate screen, with the mouse, is stopped from elsewhere."""
    script = r"printf '\033[?1049h\033[?1000h\033[?25l'; echo ready; trap '' TERM HUP; cat"
    async with window((*wrap, "--name", "editor"), "sh", "-c", script) as shell:
        await shell.shows("ready")
        (row,) = await wait_for_rows(folder, len)
        stopped = await run_on(folder, "stop", row["id"])
        assert await shell.end() == 130
        assert is_cooked(shell)

    assert (row["path"], row["agent"], row["state"]) == ("main", "editor", "running")
    assert stopped.status == 0
    end = shell.text.rpartition("ready")[2]
    assert all(f"\x1b[?{each}" in end for each in ("1049l", "1000l", "25h"))
    assert "editor: cancelled" in end
    assert await rows(folder) == []


async def test_a_signal_for_ramet_ends_the_program_and_restores_the_terminal(wrap: Words) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        async with window(wrap, "sh", "-c", "echo ready; exec cat # wrapped-and-signalled") as shell:
            await shell.shows("ready")
            shell.process.send_signal(number)
            assert await shell.end() == 130
            assert is_cooked(shell)


async def test_a_ramet_that_no_shell_would_continue_is_not_suspended(wrap: Words) -> None:
    """The kernel ignores the signal there, and the terminal must not stay as it was before."""
    async with window(wrap, "sh", "-c", "echo ready; read line; echo got-$line") as shell:
        await shell.shows("ready")
        shell.process.send_signal(signal.SIGTSTP)

        def reads_input() -> bool:
            if "got-hello" not in shell.text:  # What comes at the moment of the signal is discarded.
                shell.type("hello\r")
            return "got-hello" in shell.text

        await eventually(reads_input)


async def test_a_flood_of_output_arrives_whole_and_can_be_interrupted(wrap: Words) -> None:
    async with window(wrap, "sh", "-c", "trap 'echo enough; exit 5' INT; seq 50000; echo all; yes") as shell:
        await shell.shows("\r\n50000\r\nall\r\ny\r\n")  # A signal before the last program would wait for its end.
        shell.type("\x03")
        await shell.shows("enough")
        assert await shell.end() == 5
    assert shell.text.startswith("1\r\n2\r\n3\r\n")


async def test_modes_that_a_program_leaves_are_those_of_its_own_terminal(wrap: Words) -> None:
    async with window(wrap, "sh", "-c", "stty raw -echo -opost intr x; stty -a </dev/tty; exit 6") as shell:
        await shell.shows("-opost")
        assert await shell.end() == 6
        assert is_cooked(shell)
        assert shell.modes[6][termios.VINTR] == b"\x03"


async def test_an_error_before_the_start_restores_the_terminal(wrap: Words) -> None:
    async with window((*wrap, "--policy", '{"secrets": ["token"]}'), "true") as shell:
        assert await shell.end() == 2
        assert is_cooked(shell)
    assert "policy.secrets" in shell.text
    assert len(shell.text.splitlines()) == 1


async def test_a_sandbox_that_cannot_start_is_named_in_the_last_line(wrap: Words) -> None:
    result = await ramet(*wrap, "--policy", '{"readonly_mounts": ["/no/such/folder"]}', "--", "true")

    assert result.status == 1
    assert "ramet: true: failed: readonly_mounts: '/no/such/folder' is not accepted" in result.err
    assert len(result.err.splitlines()) == 1


async def test_a_killed_ramet_leaves_no_process_and_a_usable_terminal(wrap: Words, folder: Path) -> None:
    """The guard restores what no handler could, before the shell reads its next line."""
    inside = r"printf '\033[?1000h'; echo ready; cat # killed-one"
    script = f"""\
{shlex.join(("sh", "-c", 'echo $$ >pid; exec $RAMET "$@"', "sh", *wrap, "--", "sh", "-c", inside))}
echo its-status-$?; read line; echo typed-$line
"""
    async with shell_terminal(f"cd {shlex.quote(str(folder))}\n{script}") as shell:
        await shell.shows("ready")
        assert marked_processes("killed-one")
        assert not is_cooked(shell)
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        await shell.shows("its-status-137")
        await eventually(lambda: is_cooked(shell))
        await shell.shows("\x1b[?1000l")
        shell.type("hello\r")
        await shell.shows("typed-hello")
        await shell.end()
    await eventually(lambda: not marked_processes("killed-one"))
    resumed = await ramet("resume", "--dir", str(folder))
    assert resumed.status == 6, resumed.err  # lost: there is no terminal to go on with
    assert not marked_processes("killed-one")


async def test_a_limit_of_n_calls_lets_n_requests_of_a_program_through(wrap: Words, folder: Path) -> None:
    """The program has the key of its endpoint only; a failure after a refusal is that of a budget."""
    (folder / "client.py").write_text(CLIENT)
    client = (sys.executable, "client.py", "3", KEY)
    async with provider(["one", "two", "three", "four", "five"]) as server:
        keys = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "OTHER": KEY}
        limited = await ramet(*wrap, "--model-calls", "2", "--", *client, env=keys)
        whole = await ramet(*wrap, "--usd", "5", "--", *client, env=keys)

    assert (limited.status, limited.out) == (4, "[200, 200, 402] False True\n"), limited.err
    assert "2 model calls" in limited.err
    assert "refused at the limit of model_calls" in limited.err
    assert len(limited.err.splitlines()) == 1
    assert (whole.status, whole.out) == (0, "[200, 200, 200] False True\n"), whole.err
    assert "at list prices" in whole.err
    assert server.count == 5


async def test_pipes_pass_every_byte_and_keep_errors_apart(wrap: Words) -> None:
    data = os.urandom(3_000_000)
    async with running_ramet(
        *wrap, "--", "sh", "-c", "cat; echo bad >&2", stdin=PIPE, stdout=PIPE, stderr=PIPE
    ) as process:
        out, err = await process.communicate(data)

    assert out == data
    assert err.splitlines()[0] == b"bad"
    assert err.splitlines()[1].startswith(b"ramet: sh ended with status 0")
    assert process.returncode == 0


async def test_a_program_whose_reader_has_left_ends(wrap: Words) -> None:
    async with running_ramet(*wrap, "--", "sh", "-c", "yes; exit $?", stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        await process.stdout.readexactly(10_000)
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # no public way
        async with asyncio.timeout(180):
            status = await process.wait()

    assert status == 128 + signal.SIGPIPE


async def test_a_second_wrap_in_a_folder_works_and_is_not_recorded(wrap: Words, folder: Path) -> None:
    async with window(wrap, "cat") as shell:
        (row,) = await wait_for_rows(folder, len)
        second = await ramet(*wrap, "--", "echo", "second")
        assert (second.status, second.out) == (0, "second\n")
        assert "not recorded" in second.err
        assert [each["id"] for each in await rows(folder)] == [row["id"]]
        shell.type("\x04")
        assert await shell.end() == 0


async def test_a_program_writes_in_its_folder_and_not_in_what_runs_later(wrap: Words, folder: Path) -> None:
    """The files are the user's own."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]\n")
    script = "echo made >made.txt; echo '[alias]' >>.git/config || echo refused; touch ~/own && echo at-home"
    result = await ramet(*wrap, "--", "sh", "-c", script)

    assert (result.status, result.out) == (0, "refused\nat-home\n"), result.err
    assert (folder / "made.txt").read_text() == "made\n"
    assert (folder / "made.txt").stat().st_uid == os.getuid()
    assert (folder / ".git" / "config").read_text() == "[core]\n"
    assert names_in(folder) == {".git", ".ramet", "made.txt"}
