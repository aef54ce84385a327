"""Attacks 101 to 109 and 167 of the list: agents that refuse to end, and what remains when an agent or kernel ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.security.attacks import answers, resources, spawning
from tests.security.kit import HANG_S, PROJECT, Kernel, Raised, wait_until
from tests.support.control_groups import find_groups

_marks = itertools.count()


@pytest.fixture
def mark(kernel: Kernel) -> str:
    """Return a word that is in the command lines of one test's processes and of no others."""
    return f"marked-{os.getpid()}-{next(_marks)}"


@pytest.mark.parametrize("deaf", [False, True])
def test_101_neg_6_no_process_is_left_when_cancel_returns(kernel: Kernel, mark: str, deaf: bool) -> None:
    """101, NEG-6: cancel ends an agent's programs in other sessions, also where they ignore SIGTERM."""
    kernel.start_never_ending("stubborn", mark, deaf=deaf)

    ended = kernel.play("cancel", key="stubborn", reason="the reason given")

    assert kernel.play("processes", mark=mark) == []
    assert (ended["status"], ended["exit_code"]) == ("cancelled", 130)
    assert "the reason given" in ended["error"]["message"]


@pytest.mark.parametrize("agent", [answers.stop_self, resources.spin_for_ever])
def test_101_an_agent_that_stops_or_spins_ends_as_timeout(kernel: Kernel, agent: Callable[[], None]) -> None:
    """101: an agent that sends itself SIGSTOP, or loops without signal handlers, ends as `timeout`."""
    result = kernel.run(agent, timeout_seconds=0.5)

    assert (result["status"], result["output"]) == ("timeout", None)


def test_101_the_programs_of_an_agent_end_with_it(kernel: Kernel, mark: str) -> None:
    """101: an agent that returns leaves no program running."""
    result = kernel.run(answers.start_and_return, mark)

    assert result["output"] == 2
    wait_until(lambda: not kernel.play("processes", mark=mark))


def test_104_the_death_of_a_sandbox_process_fails_its_run_alone(kernel: Kernel, mark: str) -> None:
    """104: killing the process of ramet above an agent ends the agent with an error.

    The kernel serves the next runs.
    """
    pids = kernel.start_never_ending("orphan", mark)
    keepers = kernel.play("ancestors", pid=min(pids))
    assert keepers

    kernel.play("kill", pid=keepers[-1])
    result = kernel.play("result", key="orphan")

    assert result["status"] in {"crashed", "lost"}
    assert result["error"]["message"]
    assert kernel.play("processes", mark=mark) == []
    assert [kernel.attack(spawning.one) for _ in range(3)] == [1, 1, 1]


def test_167_a_command_in_a_sandbox_is_confined_like_its_agent(kernel: Kernel) -> None:
    """167: a command that the owner runs in an agent's sandbox reads its workspace, and no secret of the host."""
    kernel.play("start", key="host of it", agent="tests.security.attacks.answers:write_and_wait", args=["w", 60])

    own = kernel.play("command", key="host of it", argv=["cat", "mine.txt"])
    stolen = kernel.play("command", key="host of it", argv=["cat", str(kernel.secret)])
    failed = kernel.play("command", key="host of it", argv=["sh", "-c", "exit 7"])
    used = kernel.play("metrics", key="host of it")
    kernel.play("cancel", key="host of it")

    assert (own["code"], bytes.fromhex(own["stdout"]["begins"])) == (0, b"w")
    assert stolen["code"] != 0
    assert kernel.key.text.encode().hex()[:40] not in str(stolen)
    assert failed["code"] == 7
    assert used["memory_mb"] > 0
    assert used["pids"] >= 1


def test_109_neg_2_a_missing_isolation_level_is_refused(kernel: Kernel) -> None:
    """109, NEG-2: an isolation level that the machine lacks gives an error that names what is missing and a remedy."""
    with pytest.raises(Raised) as raised:
        kernel.run(spawning.one, isolation="L4")

    assert raised.value.error["type"] == "IsolationUnavailable"
    assert raised.value.error["asked"] == "L4"
    assert raised.value.error["missing"]
    assert raised.value.error["remedy"]


@pytest.fixture(params=["bwrap", "local"])
def dying_kernel(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process with a kernel and ten agents that never end. Return the process and the mark of the agents."""
    backend = request.param
    mark = f"doomed-{backend}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", DYING_KERNEL, backend, str(tmp_path / "work"), mark],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "all are ready\n"
    yield process, mark
    process.kill()
    process.wait()
    process.stdout.close()
    for pid in marked_processes(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


DYING_KERNEL = """
import asyncio, sys
import ramet
from tests.security.attacks import answers

async def main(backend, work, mark):
    async with ramet.AgentRuntime(working_dir=work, backend=backend) as runtime:
        ready = asyncio.Semaphore(0)
        for _ in range(10):
            await runtime.start_agent(
                agent=answers.never_end, args=(mark,), policy=ramet.Policy(), on_stdout=lambda text: ready.release()
            )
        for _ in range(10):
            await ready.acquire()
        print("all are ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


def marked_processes(mark: str) -> list[int]:
    """Return the pids of living programs with this mark, without the kernel that got the mark as an argument."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if b"# " + mark.encode() in line and state not in "ZX":
                found.append(int(folder.name))
    return found


def test_103_neg_15_no_agent_outlives_a_killed_kernel(dying_kernel: tuple[subprocess.Popen[str], str]) -> None:
    """103, NEG-15: after kill -9 of a kernel with ten agents that ignore signals no program of them is left."""
    process, mark = dying_kernel
    wait_until(lambda: len(marked_processes(mark)) == 20)

    process.kill()
    process.wait()

    wait_until(lambda: not marked_processes(mark))


def test_103_a_kernel_removes_the_cgroups_of_a_killed_one(
    dying_kernel: tuple[subprocess.Popen[str], str], tmp_path: pathlib.Path
) -> None:
    """103: the next kernel of the same folder works, lists no old session, and removes the old kernel's cgroups."""
    process, mark = dying_kernel
    process.kill()
    process.wait()
    wait_until(lambda: not marked_processes(mark))
    backend = mark.split("-")[1]

    script = "import asyncio, sys, ramet\nfrom tests.security.attacks import spawning\n"
    script += "async def main():\n async with ramet.AgentRuntime(working_dir=sys.argv[2], backend=sys.argv[1]) as r:\n"
    script += "  print((await r.run_agent(agent=spawning.one)).output, len(r.get_status()['sessions']))\n"
    script += "asyncio.run(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, backend, str(tmp_path / "work")],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )

    assert done.stdout == "1 0\n"
    assert cgroups_of(process.pid) == []


def cgroups_of(pid: int) -> list[pathlib.Path]:
    """Return the control groups whose names still hold the pid of a kernel."""
    return find_groups(f"*ramet*{pid}*")
