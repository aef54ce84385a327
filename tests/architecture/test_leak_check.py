"""The leak check of tests/conftest.py catches each kind of leak, and lets tidy tests pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

TESTS = """
import asyncio, os, socket, subprocess, sys, threading
import pytest
from hypothesis import given, strategies as st

kept = []
never = threading.Event()

@pytest.fixture
async def server():
    async def serve(reader, writer):
        writer.write(await reader.readline()); writer.close(); await writer.wait_closed()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        ticking = asyncio.create_task(asyncio.Event().wait())
        yield server.sockets[0].getsockname()
        ticking.cancel()

async def test_tidy_server(server):
    reader, writer = await asyncio.open_connection(*server)
    writer.write(b"x\\n"); await reader.readline(); writer.close(); await writer.wait_closed()

async def test_tidy_thread_and_process():
    await asyncio.to_thread(int)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()

def test_tidy_home(home):
    assert os.environ["HOME"] == str(home) and not os.path.exists(os.environ["RAMET_HOME"])

def test_tidy_hang_up():
    ended = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"
    assert subprocess.run([sys.executable, "-c", ended]).returncode == -1
    os.kill(os.getpid(), 1)

@pytest.mark.leaves("to show that this is possible")
def test_tidy_by_its_own_word():
    kept.append(open(os.devnull)); kept.extend(socket.socketpair())

async def test_leaves_task():
    kept.append(asyncio.create_task(never_ends()))

async def never_ends():
    await asyncio.Event().wait()

@given(st.booleans())
async def test_leaves_task_from_hypothesis(_):
    kept.append(asyncio.create_task(never_ends()))

def test_leaves_socket():
    kept.extend(socket.socketpair())

def test_leaves_file(tmp_path):
    kept.append(open(tmp_path / "left", "w"))

def test_leaves_thread():
    threading.Thread(target=never.wait, name="straggler").start()

def test_leaves_process():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_tidy_end():
    never.set(); kept[-1].kill(); kept[-1].wait()
"""

LEAKS = {
    "test_leaves_task": "tasks left behind: <Task pending",
    "test_leaves_task_from_hypothesis": "never_ends",
    "test_leaves_socket": "(socket:[",
    "test_leaves_file": "left)",
    "test_leaves_thread": "thread straggler",
    "test_leaves_process": "process ",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Report of pytest on tests that leak, started with SIGHUP ignored as by `nohup`."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "conftest.py").write_text(CONFTEST.read_text() + "\nBOUND_S = 0.2\n")
    (folder / "test_leaks.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers = leaves(reason): off\n")
    without = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    own = f"--basetemp={folder / 'temporary'}"  # It would tidy up what others left behind.
    command = [*nohup, sys.executable, "-m", "pytest", "-rA", "--tb=short", own, *without, "test_leaks.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("test", LEAKS)
def test_a_leak_fails_its_test_and_is_named(report: str, test: str) -> None:
    """A pending task, an open file or socket, a thread or a process fails the test that left it, and is named."""
    section = report.split(f" ERROR at teardown of {test} _", 1)[1].split("\n____", 1)[0]

    assert LEAKS[test] in section


def test_tidy_tests_pass(report: str) -> None:
    """Ended servers, threads and processes, a home of one's own, and a leak with a stated reason are accepted.

    A hang-up ends the programs that tests start. The tests themselves survive it, as under `nohup`.
    """
    assert "6 errors" in report, report
    assert [line for line in report.splitlines() if line.startswith(("ERROR", "FAILED")) and "_tidy_" in line] == []
