"""Attacks 101 to 109 of the list: who will not end, and what is left when others end."""

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

_marks = itertools.count()


@pytest.fixture
def mark(kernel: Kernel) -> str:
    """A word that is in the command lines of one test's processes and of no others."""
    return f"marked-{os.getpid()}-{next(_marks)}"


@pytest.mark.parametrize("deaf", [False, True])
def test_101_neg_6_when_cancel_returns_everybody_is_gone(kernel: Kernel, mark: str, deaf: bool) -> None:
    """101, NEG-6: an agent with programs in sessions of their own, deaf to SIGTERM or not: none is left."""
    kernel.start_never_ending("stubborn", mark, deaf=deaf)

    ended = kernel.play("cancel", key="stubborn", reason="the reason given")

    assert kernel.play("processes", mark=mark) == []
    assert (ended["status"], ended["exit_code"]) == ("cancelled", 130)
    assert "the reason given" in ended["error"]["message"]


@pytest.mark.parametrize("agent", [answers.stop_self, resources.spin_for_ever])
def test_101_time_ends_who_stops_or_spins(kernel: Kernel, agent: Callable[[], None]) -> None:
    """101: SIGSTOP to oneself, a loop that lets no signal handler run: ended as `timeout`."""
    result = kernel.run(agent, timeout_seconds=0.5)

    assert (result["status"], result["output"]) == ("timeout", None)


def test_101_the_end_of_an_agent_is_the_end_of_what_it_started(kernel: Kernel, mark: str) -> None:
    """101: an agent that returns leaves no program behind."""
    result = kernel.run(answers.start_and_return, mark)

    assert result["output"] == 2
    wait_until(lambda: not kernel.play("processes", mark=mark))


def test_104_the_keepers_death_is_told_and_mended(kernel: Kernel, mark: str) -> None:
    """104: when what keeps an agent is killed, the agent is gone, its caller is told, the next one is served."""
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
    """167: a command that the owner runs beside an agent sees its workspace, and none of the host's secrets."""
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


def test_109_what_this_machine_cannot_give_is_refused(kernel: Kernel) -> None:
    """109, NEG-2: a level that nobody offers here is an error that says what is missing; nothing runs below it."""
    with pytest.raises(Raised) as raised:
        kernel.run(spawning.one, isolation="L4")

    assert raised.value.told["type"] == "IsolationUnavailable"
    assert raised.value.told["asked"] == "L4"
    assert raised.value.told["missing"]
    assert raised.value.told["remedy"]


@pytest.fixture(params=["bwrap", "local"])
def doomed(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A kernel with agents that never end, in a process that may be killed; and the mark of theirs."""
    backend = request.param
    mark = f"doomed-{backend}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", DOOMED, backend, str(tmp_path / "work"), mark],
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
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


DOOMED = """
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


def marked(mark: str) -> list[int]:
    """The living processes with this mark, whoever started them; the kernel that was told it aside."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if b"# " + mark.encode() in line and state not in "ZX":
                found.append(int(folder.name))
    return found


def test_103_no_agent_outlives_a_kernel_that_is_killed(doomed: tuple[subprocess.Popen[str], str]) -> None:
    """103, NEG-15: after kill -9 of the kernel nobody is left of ten deaf agents with sessions of their own."""
    process, mark = doomed
    wait_until(lambda: len(marked(mark)) == 20)

    process.kill()
    process.wait()

    wait_until(lambda: not marked(mark))


def test_103_what_a_killed_kernel_left_is_removed_by_the_next(
    doomed: tuple[subprocess.Popen[str], str], tmp_path: pathlib.Path
) -> None:
    """103: cgroups and folders of the dead are found and removed when the next kernel starts in the same folder."""
    process, mark = doomed
    process.kill()
    process.wait()
    wait_until(lambda: not marked(mark))
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
    """Groups that a kernel has left and that still bear its number."""
    return [path for path in pathlib.Path("/sys/fs/cgroup").rglob(f"*ramet*{pid}*") if path.is_dir()]
