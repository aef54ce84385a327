"""Attacks 93 to 97, 106 and 168 of the list: values, errors, endings and files that try to act on the host."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.security.attacks import answers, resources, spawning
from tests.security.kit import Kernel


@pytest.fixture
def trap(kernel: Kernel) -> pathlib.Path:
    """Return the path of a file that the command of a bomb makes, wherever the command runs."""
    found = kernel.base / "scratch" / "exploded"
    found.unlink(missing_ok=True)
    return found


def test_93_the_bomb_works(trap: pathlib.Path) -> None:
    """93: positive control: unpickling the result of `pickled_bomb` runs its command."""
    import pickle

    pickle.loads(answers.pickled_bomb(f"touch {trap}"))

    assert trap.exists()


@pytest.mark.parametrize("agent", [answers.bomb, answers.nested_bomb])
def test_93_neg_1_the_host_never_runs_a_reducer(
    kernel: Kernel, trap: pathlib.Path, agent: Callable[[str], Any]
) -> None:
    """93, NEG-1: a run that returns an object with a malicious __reduce__ fails with an error that names the type."""
    result = kernel.run(agent, f"touch {trap}")

    assert (result["status"], result["output"]) == ("failed", None)
    assert result["error"]["type"] == "NotShippable"
    assert "Bomb" in result["error"]["message"]
    assert not trap.exists()


def test_93_a_pickle_as_bytes_stays_bytes(kernel: Kernel, trap: pathlib.Path) -> None:
    """93: the host passes on a pickle in a bytes value and does not unpickle it."""
    result = kernel.run(answers.pickled_bomb, f"touch {trap}")

    assert result["output"]["@bytes"] > 10
    assert not trap.exists()


THINGS = [
    "lock",
    "socket",
    "function",
    "lambda",
    "module",
    "generator",
    "weird",
    "file",
    "thread",
    "class",
    "loop",
    "deep",
]


@pytest.mark.parametrize("kind", THINGS)
def test_95_an_unshippable_value_gives_a_clear_error(kernel: Kernel, kind: str) -> None:
    """95: the run fails with a `NotShippable` error whose text is not short, and the host serves the next run."""
    result = kernel.run(answers.return_thing, kind)

    assert (result["status"], result["output"]) == ("failed", None)
    assert result["error"]["type"] == "NotShippable"
    assert len(result["error"]["message"]) > 40
    assert kernel.attack(spawning.one) == 1


@pytest.mark.parametrize("agent", [answers.large, answers.large_text])
def test_95_ac_s0_11_a_result_above_its_cap_is_refused(kernel: Kernel, agent: Callable[[int], Any]) -> None:
    """95, AC-S0-11: a result of ten times the cap gives an error that names the cap.

    A result below the cap is accepted.
    """
    cap = 1 << 20
    before = kernel.play("facts")["peak_mb"]

    beyond = kernel.run(agent, 10 * cap, max_output_bytes=cap)
    within = kernel.run(agent, cap // 8, max_output_bytes=cap)

    assert (beyond["status"], beyond["output"]) == ("failed", None)
    assert str(cap) in beyond["error"]["message"] or "max_output_bytes" in beyond["error"]["message"]
    assert within["status"] == "completed"
    assert kernel.play("facts")["peak_mb"] - before < 64


@pytest.mark.parametrize(
    ("kind", "type_name"),
    [
        ("plain", "ValueError"),
        ("endless", "Endless"),
        ("vicious", "Vicious"),
        ("fatal", "Fatal"),
        ("control", "ValueError"),
        ("group", "ExceptionGroup"),
        ("recursion", "RecursionError"),
        ("generator", "StopIteration"),
        ("interrupt", "KeyboardInterrupt"),
        ("name", None),
        ("exit", None),
        ("exit text", None),
    ],
)
def test_96_an_error_becomes_a_bounded_text(kernel: Kernel, kind: str, type_name: str | None) -> None:
    """96, 99: an error of 100 MB, with methods that raise, or with an odd type name becomes a bounded text."""
    result = kernel.run(answers.raise_error, kind, memory_mb=512)

    assert result["exit_code"] != 0
    assert result["output"] is None
    error = result["error"]
    assert len(error["type"]) <= 300
    assert 0 < len(error["message"]) <= 20_000
    assert "\n" not in error["type"]
    assert "\x1b" not in error["type"] + error["message"]
    if kind != "endless" or result["status"] != "oom":
        assert type_name is None or error["type"].endswith(type_name)


def test_96_the_text_of_an_ordinary_error_arrives(kernel: Kernel) -> None:
    """96: a run that raises an ordinary error fails with exit code 1 and the text of the error."""
    result = kernel.run(answers.raise_error, "plain")

    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["error"]["message"].endswith("the plain reason")


@pytest.mark.parametrize(
    ("ending", "statuses"),
    [
        ("exit 0", {"crashed"}),
        ("exit 3", {"crashed"}),
        ("segv", {"crashed"}),
        ("kill", {"crashed", "oom"}),
        ("sigsys", {"crashed"}),
        ("close", {"crashed", "failed"}),
        ("close and leave", {"crashed", "failed"}),
        ("child answers", {"crashed", "failed"}),
    ],
)
def test_106_an_end_without_a_result_is_no_success(kernel: Kernel, ending: str, statuses: set[str]) -> None:
    """106: a guest that exits, is killed, or closes the channel without a result gives the same failure each time."""
    results = [kernel.run(answers.leave, ending, timeout_seconds=120) for _ in range(2)]

    for result in results:
        assert result["status"] in statuses
        assert result["exit_code"] != 0
        assert result["output"] is None
        assert result["error"]["message"]
    assert results[0]["status"] == results[1]["status"]
    assert kernel.attack(spawning.one) == 1


def test_106_the_error_names_the_signal(kernel: Kernel) -> None:
    """106: the error of a run that a signal ended names that signal."""
    message = kernel.run(answers.leave, "segv")["error"]["message"]

    assert "SIGSEGV" in message or str(int(signal.SIGSEGV)) in message


def test_168_ac_s0_11_a_file_above_the_cap_is_not_collected(kernel: Kernel) -> None:
    """168, AC-S0-11: the host does not copy a file above `max_output_bytes`. A run that fails for it names the cap."""
    before = kernel.play("facts")["disk_mb"]

    result = kernel.run(resources.leave_large_file, 40, max_output_bytes=1 << 20, workspace_size_mb=64)

    assert "large.bin" not in {each["name"] for each in result["artifacts"]}
    assert kernel.play("facts")["disk_mb"] - before < 100
    if result["status"] != "completed":
        assert str(1 << 20) in result["error"]["message"]


def test_168_a_sparse_file_above_the_cap_is_not_collected(kernel: Kernel) -> None:
    """168: the host does not copy a sparse file whose size is 100 GB."""
    result = kernel.run(resources.leave_sparse_file, 100, max_output_bytes=1 << 20)

    assert "sparse.bin" not in {each["name"] for each in result["artifacts"] if each["size"] > 1 << 20}


def test_168_a_regular_file_arrives_with_its_content(kernel: Kernel) -> None:
    """168: control: a regular file becomes an artifact with its size and content."""
    result = kernel.run(spawning.leave_file, "words of the agent")

    [artifact] = result["artifacts"]
    assert (artifact["name"], artifact["size"]) == ("report.txt", 18)
    assert pathlib.Path(artifact["path"]).read_text() == "words of the agent"
