"""Tests in several processes: those that share something stay in one process, and those marked `alone` run alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import share_of

CONFTEST = Path(__file__).parents[1] / "conftest.py"

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


def run(folder: Path, text: str, *options: str) -> str:
    """Return what pytest prints for two files with the same tests, with the conftest of this project."""
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nasyncio_mode = 'auto'\n"
        "markers = ['alone(reason): nobody beside it', 'leaves(reason): off']\n"
    )
    (folder / "tests" / "conftest.py").write_text(CONFTEST.read_text())
    for name in ("test_one", "test_two"):
        (folder / "tests" / f"{name}.py").write_text(text)
    without = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    own = ["--import-mode=importlib", f"--basetemp={folder / 'temporary'}"]  # It would tidy up what others left behind.
    command = [sys.executable, "-m", "pytest", "-rA", *own, *without, *options, "tests"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def test_tests_run_concurrently_except_those_marked_alone(tmp_path: Path) -> None:
    """Tests of two files run concurrently. While one that is marked `alone` runs, no other may begin."""
    output = run(tmp_path, TESTS, "-n", "2")

    assert "6 passed" in output, output


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
