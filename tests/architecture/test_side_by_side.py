"""Tests in several processes: those that share something stay in one process, and those marked `alone` run alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.worker_scheduler import share_of

TESTS_FOLDER = Path(__file__).parents[1]
OWN_FILES = ("conftest.py", "support/worker_scheduler.py")

#: Two that meet, which they can only side by side; then one that must be alone, and what an ordinary one sees.
TESTS = """
import fcntl, os, pathlib, threading
import pytest

HERE = pathlib.Path(__file__).parent

def may_begin(kind):
    room = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(room, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(room)
    return True

def test_meets():
    (HERE / f"{__name__.rpartition('.')[2]}-is-here").touch()
    for _ in range(3000):
        if len(list(HERE.glob("*-is-here"))) == 2:
            return
        threading.Event().wait(0.01)
    pytest.fail("nobody came")

def test_ordinary():
    assert may_begin(fcntl.LOCK_SH) or not may_begin(fcntl.LOCK_EX)

@pytest.mark.alone("to show that it is")
def test_alone():
    assert not may_begin(fcntl.LOCK_SH)
"""


#: A worker dies that has run whole files before.
DEADLY = """
import os, signal

def test_first(): pass

def test_middle():
    if "five" in __name__:
        os.kill(os.getpid(), signal.SIGSEGV)

def test_last(): pass
"""


def run(folder: Path, text: str, *options: str, names: Sequence[str] = ("one", "two")) -> str:
    """Return what pytest prints for files with the same tests, with the conftest of this project."""
    (folder / "tests" / "support").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nasyncio_mode = 'auto'\npythonpath = ['.']\n"
        "markers = ['alone(reason): nobody beside it', 'leaves(reason): off']\n"
    )
    for name in OWN_FILES:
        (folder / "tests" / name).write_text((TESTS_FOLDER / name).read_text())
    for name in names:
        (folder / "tests" / f"test_{name}.py").write_text(text)
    without = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    own = ["--import-mode=importlib", f"--basetemp={folder / 'temporary'}"]  # It would tidy up what others left behind.
    command = [sys.executable, "-m", "pytest", "-rA", *own, *without, *options, "tests"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def test_tests_run_concurrently_except_those_marked_alone(tmp_path: Path) -> None:
    """Tests of two files run concurrently. While one that is marked `alone` runs, no other may begin."""
    output = run(tmp_path, TESTS, "-n", "2")

    assert "6 passed" in output, output


def test_a_worker_that_dies_fails_one_test_and_holds_up_no_other(tmp_path: Path) -> None:
    """The test that it was running fails, with the signal; what it had not begun is run by the others, once each."""
    output = run(tmp_path, DEADLY, "-n", "2", names=["one", "two", "three", "four", "five", "six"])

    assert "1 failed, 17 passed" in output, output
    assert "crashed while running 'tests/test_five.py::test_middle'; it ended by SIGSEGV" in output


def test_alone_needs_its_reason(tmp_path: Path) -> None:
    """An `alone` mark without a reason is an error, since it makes every other test wait."""
    output = run(tmp_path, "import pytest\n@pytest.mark.alone\ndef test_it(): pass\n", "-n", "2")

    assert "alone needs its reason" in output, output


def test_a_lone_surrogate_in_a_log_or_error_is_reported(tmp_path: Path) -> None:
    """Half a character in a log or an error of a test does not break its report."""
    output = run(
        tmp_path, "import logging\ndef test_it(): logging.warning('\\ud800'); assert not '\\ud801'\n", "-n", "2"
    )

    assert "2 failed" in output, output
    assert "ud800" in output
    assert "INTERNALERROR" not in output


@pytest.mark.parametrize(
    ("test", "share"),
    [
        ("tests/unit/core/test_ids.py::test_one[a-b]", "tests/unit/core/test_ids.py"),
        ("tests/security/test_attacks_files.py::test_1[me-bwrap-home]", "attacks by me"),
        ("tests/security/test_attacks_answers.py::test_1[bomb-bare-local]", "attacks by bare"),
        ("tests/security/test_ports.py::test_1[bwrap]", "tests/security/test_ports.py"),
        ("tests/unit/isolation/linux/test_rlimits.py::test_1", "tests/unit/isolation/"),
        ("tests/unit/isolated/test_it.py::test_1", "tests/unit/isolated/test_it.py"),
        ("tests/chaos/test_rounds.py::test_it[round-1-local]", "tests/chaos/test_rounds.py::test_it[round-1-local]"),
        ("tests/kubernetes/test_pods.py::test_it[env-run]", "tests/kubernetes/test_pods.py::test_it[env-run]"),
        ("tests/kubernetes/test_served.py::test_it", "tests/kubernetes/test_served.py"),
    ],
)
def test_tests_that_share_something_stay_in_one_process(test: str, share: str) -> None:
    """Tests of one file share a process, and so do attacks. A long test that shares nothing may run in any."""
    assert share_of(test) == share
