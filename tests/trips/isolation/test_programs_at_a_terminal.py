"""Programs in sandboxes at a pseudo-terminal of the host's, hostile ones among them."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ramet
from ramet.core.errors import InvalidValue
from ramet.core.outcome import Status
from ramet.core.policy.policy import Grant
from ramet.core.policy.rights import STDIO
from ramet.guest.terminal.program_process import run_program
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.local import LocalBackend
from ramet.spawn.handle import Handle
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.isolated import backend, marked_processes, runtime

__all__ = ["backend", "runtime"]

PUSH = """
import errno, fcntl, os, termios
for name in ("/dev/tty", "/dev/stdin"):
    fd = os.open(name, os.O_RDWR)
    for request, argument in ((termios.TIOCSTI, b"x"), (0x541C, b"\\2"), (termios.TIOCSETD, b"\\0\\0\\0\\0")):
        try:
            fcntl.ioctl(fd, request, argument)
            print("done")
        except OSError as error:
            print("refused", errno.errorcode[error.errno])
"""
#: No program can change these two, which are the C library's own: its posix_spawn ignores them in what it starts.
LIBRARY_SIGNALS = (32, 33)
RETURN = """
import os
for fd in range(3):
    os.close(fd)
fd = os.open("/dev/tty", os.O_RDWR)
os.write(fd, b"it is back")
"""


class Screen:
    """The host's end of a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self.master, self.text = master, ""
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            self.text += os.read(self.master, 65_536).decode()
        except OSError:  # Nobody has the other end.
            asyncio.get_running_loop().remove_reader(self.master)

    async def shows(self, text: str) -> None:
        await eventually(lambda: text in self.text)


@asynccontextmanager
async def program(runtime: ramet.AgentRuntime, *command: str) -> AsyncIterator[tuple[Handle, Screen]]:
    """Yield a run of a program, and the screen of its terminal."""
    master, slave = pty.openpty()
    screen = Screen(master)
    try:
        handle = await runtime.spawn(
            run_in_home, args=(list(command),), policy=ramet.Policy(pids=32), stdio=(slave,), repeatable=False
        )
        yield handle, screen
    finally:
        asyncio.get_running_loop().remove_reader(master)
        os.close(slave)
        os.close(master)


def run_in_home(command: list[str]) -> int:
    """Run a program in the folder of its run."""
    return run_program(command, os.environ, os.environ["HOME"])


async def test_no_program_pushes_input_into_its_terminal(runtime: ramet.AgentRuntime) -> None:
    """The sandbox refuses it by its filter: EPERM. The kernel's own answer would be EIO, or none."""
    async with program(runtime, sys.executable, "-c", PUSH) as (handle, screen):
        result = await handle.result()
        await screen.shows("refused EPERM\r\n" * 6)

    assert (result.status, result.value) == (Status.COMPLETED, 0)
    assert "done" not in screen.text


async def test_a_program_that_closes_its_terminal_can_open_it_again(runtime: ramet.AgentRuntime) -> None:
    """/dev/tty is the terminal of the program, and no other."""
    async with program(runtime, sys.executable, "-c", RETURN) as (handle, screen):
        result = await handle.result()
        await screen.shows("it is back")

    assert result.value == 0, result.error


async def test_a_program_has_no_variable_and_no_descriptor_besides_its_own(runtime: ramet.AgentRuntime) -> None:
    """The fourth descriptor is the listed folder."""
    script = f"import os; print(sorted(os.listdir('/proc/self/fd')), os.environ.get({STDIO!r}))"
    async with program(runtime, sys.executable, "-c", script) as (handle, screen):
        await handle.result()
        await screen.shows("]")

    assert screen.text == "['0', '1', '2', '3'] None\r\n"


async def test_what_a_program_leaves_ends_with_it(runtime: ramet.AgentRuntime) -> None:
    """Also what has left its group and its session, and ignores that the terminal has gone."""
    script = (
        "trap '' HUP; sh -c 'cat /dev/zero >/dev/null # left-behind' & setsid sh -c 'sleep 999; : # left-behind' & :"
    )
    async with program(runtime, "sh", "-c", f"{script}; echo ready; exit 3") as (handle, screen):
        await screen.shows("ready")
        result = await handle.result()
        await eventually(lambda: not marked_processes("left-behind"))

    assert result.value == 3


async def test_a_stop_asks_a_program_first(runtime: ramet.AgentRuntime) -> None:
    """SIGTERM comes first, and the program has a moment."""
    script = "trap 'echo asked; exit' TERM; echo ready; while :; do :; done"
    async with program(runtime, "sh", "-c", script) as (handle, screen):
        await screen.shows("ready")
        await handle.cancel()
        await screen.shows("asked")

    assert (await handle.result()).status is Status.CANCELLED


@pytest.mark.parametrize(
    ("command", "status"),
    [(["no-such-program"], 127), (["/etc"], 126), (["sh", "-c", "kill -9 $$"], 137), (["sh", "-c", "exit 300"], 44)],
)
async def test_the_status_is_the_one_of_a_shell(runtime: ramet.AgentRuntime, command: list[str], status: int) -> None:
    async with program(runtime, *command) as (handle, _):
        result = await handle.result()

    assert result.value == status, result.error


async def test_a_program_gets_the_default_of_every_signal(runtime: ramet.AgentRuntime) -> None:
    """Python, which starts it, ignores some: a program would never learn that its reader has left."""
    async with program(runtime, "grep", "-E", "^Sig(Blk|Ign)|^SigCgt", "/proc/self/status") as (handle, screen):
        assert (await handle.result()).value == 0
        await screen.shows("SigCgt")
    blocked, ignored = (int(word, 16) for word in screen.text.split()[1:4:2])

    assert blocked == 0
    assert ignored & ~sum(1 << each - 1 for each in LIBRARY_SIGNALS) == 0, screen.text


async def test_a_function_without_a_terminal_says_so(runtime: ramet.AgentRuntime) -> None:
    result = await runtime.run_agent(run_in_home, args=(["true"],), policy=ramet.Policy())

    assert result.error is not None
    assert "no terminal" in result.error.message


async def test_a_backend_without_namespaces_refuses_a_terminal(tmp_path: Path) -> None:
    """There no process can begin a session."""
    workspace = tmp_path / "runs" / "one"
    workspace.mkdir(parents=True)
    local = LocalBackend(tmp_path / "runs", namespaces=False)
    try:
        with pytest.raises(InvalidValue, match="bwrap") as refusal:
            await local.start(SandboxSpec(run="one", grant=Grant(), workspace=workspace, stdio=(0,)))
    finally:
        await local.close()

    assert (refusal.value.field, refusal.value.value) == ("stdio", (0,))


def test_a_pod_refuses_a_terminal(tmp_path: Path) -> None:
    workspace = tmp_path / "runs" / "one"
    workspace.mkdir(parents=True)
    pods = KubernetesBackend(tmp_path / "runs", namespace="agents", image="example.org/agents")

    with pytest.raises(InvalidValue, match="another machine") as refusal:
        pods._check(SandboxSpec(run="one", grant=Grant(), workspace=workspace, stdio=(0,)))

    assert refusal.value.field == "stdio"


@pytest.mark.parametrize(("stdio", "policy"), [((3, 4), ramet.Policy()), ((3,), None)])
def test_descriptors_are_one_or_three_and_for_a_sandbox(stdio: tuple[int, ...], policy: ramet.Policy | None) -> None:
    with pytest.raises(InvalidValue, match="stdio"):
        SpawnRequest(stdio=stdio, policy=policy)
