"""Checks of a process's lifecycle: its start, signals, end, waits, and clean-up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket

from ramet.core.errors import Gone
from ramet.testing.conformance.checks import NotHere, checks_of, expect, raises
from ramet.testing.conformance.isolation.harness import (
    PATIENCE_S,
    BackendFixture,
    Check,
    Ended,
    cgroups,
    eventually,
    is_running,
    time_limit,
)

_IGNORED = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


async def exit_status(fixture: BackendFixture) -> None:
    """Check that the return value of the entry point is the exit status; no value is 0."""
    for code in (0, 7):
        async with fixture.start_guest() as guest:
            await guest.send("leave", code=code)
            ended = await guest.wait_ended()
            expect(
                (ended.code, ended.reason) == (code, "exited"),
                f"a guest that returns {code} exits with that status, not {ended}",
            )


async def closing_the_channel_ends_a_guest_in_order(fixture: BackendFixture) -> None:
    """Check that closing the host's end is an end of file inside."""
    async with fixture.start_guest() as guest:
        await guest.ask("process_info")
        guest.sandbox.channel.shutdown(socket.SHUT_WR)
        expect((await guest.wait_ended()).code == 0, "a guest sees the end of its channel")


async def uncaught_exception(fixture: BackendFixture) -> None:
    """Check that an uncaught exception gives an exit status other than 0, and is printed on stderr."""
    async with fixture.start_guest() as guest:
        await guest.send("crash")
        ended = await guest.wait_ended()
        _, err = await guest.output()
        expect(ended.code > 0 and ended.reason == "exited", f"a crash is a failure, not {ended}")
        expect(b"a crash that was asked for" in err, f"the exception of a crash is on stderr, not {err!r}")


async def an_end_by_signal_is_reported(fixture: BackendFixture) -> None:
    """Check that a process that a signal ended is reported as such."""
    for number in (signal.SIGKILL, signal.SIGSEGV):
        async with fixture.start_guest() as guest:
            await guest.send("end_by", number=number)
            ended = await guest.wait_ended()
            expect(
                (ended.code, ended.reason) == (-number, "signalled"),
                f"an end by {number.name} is reported as such, not {ended}",
            )


async def signals_are_delivered(fixture: BackendFixture) -> None:
    """Check that signals reach the main process, whether it handles them or not, and no process after its end."""
    async with fixture.start_guest() as guest:
        await guest.ask("note", number=signal.SIGUSR1)
        guest.sandbox.signal(signal.SIGUSR1)
        await eventually(lambda: guest.ask("received_signals"), "a signal is delivered")
        guest.sandbox.signal(signal.SIGTERM)
        ended = await guest.wait_ended()
        expect((ended.code, ended.reason) == (-signal.SIGTERM, "signalled"), f"SIGTERM ends a guest, not {ended}")
        guest.sandbox.signal(signal.SIGKILL)


async def kill_allows_an_orderly_end(fixture: BackendFixture) -> None:
    """Check that SIGTERM comes first, and that a guest that handles it within the grace ends by itself."""
    async with fixture.start_guest() as guest:
        await guest.ask("leave_on", number=signal.SIGTERM, code=3)
        ended = await guest.sandbox.kill(PATIENCE_S)
        expect((ended.code, ended.reason) == (3, "exited"), f"a guest that handles SIGTERM ends by itself, not {ended}")


async def kill_ends_an_unresponsive_guest(fixture: BackendFixture) -> None:
    """Check that a guest that ignores signals, is stopped, or works without end has ended when `kill` returns."""
    for name in ("ignore", "end_by", "spin"):
        async with fixture.start_guest() as guest:
            await guest.ask("hold", path="held")
            match name:
                case "ignore":
                    await guest.ask("ignore", numbers=_IGNORED)
                case "end_by":
                    await guest.ask("ignore", numbers=_IGNORED)
                    await guest.send("end_by", number=signal.SIGSTOP)
                case _:
                    await guest.ask("ignore", numbers=_IGNORED)
                    await guest.send("spin", seconds=3600, processes=2)
            ended = await guest.sandbox.kill(0.1)
            expect(ended.code == -signal.SIGKILL, f"{name}: it is killed, not {ended}")
            expect(not await guest.is_locked("held"), f"{name}: no process remains when kill returns")


async def descendants_end_with_the_guest(fixture: BackendFixture) -> None:
    """Check that processes left behind, ignoring signals in a session of their own, have ended when `wait` returns."""
    for quiet in (False, True):
        async with fixture.start_guest() as guest:
            await guest.ask("hide", hold="held", quiet=quiet)
            expect(await guest.is_locked("held"), "control: a hidden process lives")
            await guest.send("leave", code=0)
            expect((await guest.wait_ended()).code == 0, "a remaining process does not change the exit status")
            expect(not await guest.is_locked("held"), "no process remains when wait returns")
            expect(not is_running(guest.sandbox.pid), "the first process has ended when wait returns")
            await guest.output()


async def killing_the_main_process_ends_all(fixture: BackendFixture) -> None:
    """Check that SIGKILL from outside also ends the processes that the main process started."""
    async with fixture.start_guest() as guest:
        await guest.ask("hide", hold="held", quiet=True)
        guest.sandbox.signal(signal.SIGKILL)
        expect((await guest.wait_ended()).code == -signal.SIGKILL, "an end by SIGKILL is reported as such")
        expect(not await guest.is_locked("held"), "no process remains when wait returns")


async def several_callers_may_wait_and_cancel(fixture: BackendFixture) -> None:
    """Check that several callers may wait, and cancel: that ends no process, and each gets the same result."""
    async with fixture.start_guest() as guest:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await guest.sandbox.wait()
        waiting = [asyncio.ensure_future(guest.sandbox.wait()) for _ in range(3)]
        await guest.ask("process_info")
        waiting[0].cancel()
        await guest.ask("process_info")
        await guest.send("leave", code=5)
        answers = {await guest.wait_ended(), *await asyncio.gather(*waiting[1:]), await guest.wait_ended()}
        expect(len(answers) == 1 and answers.pop().code == 5, f"every waiter gets the same result, not {answers}")
        expect(waiting[0].cancelled(), "a cancelled waiter stops waiting")


async def concurrent_kills_have_one_result(fixture: BackendFixture) -> None:
    """Check concurrent, repeated and cancelled kills, together with a wait: one end, one result."""
    async with fixture.start_guest() as guest:
        await guest.ask("ignore", numbers=_IGNORED)
        cancelled = asyncio.ensure_future(guest.sandbox.kill(PATIENCE_S))
        await asyncio.sleep(0)
        cancelled.cancel()
        async with time_limit():
            kills = [guest.sandbox.kill(grace_s) for grace_s in (0.2, 0.1, 0)]
            answers = {*await asyncio.gather(*kills, guest.sandbox.wait()), await guest.sandbox.kill()}
        expect(
            len(answers) == 1 and answers.pop().code == -signal.SIGKILL,
            f"all callers get the same result, not {answers}",
        )
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled


async def killing_an_ended_sandbox_changes_nothing(fixture: BackendFixture) -> None:
    """Check that `kill` after the end changes nothing."""
    async with fixture.start_guest() as guest:
        await guest.send("leave", code=4)
        ended = await guest.wait_ended()
        expect(await guest.sandbox.kill() == ended, "kill does not change an earlier end")


async def clean_up_releases_everything(fixture: BackendFixture) -> None:
    """Check that `clean_up` kills live processes, frees descriptors and cgroups, and keeps the workspace.

    A repeated call is no error.
    """
    async with fixture.start_guest() as guest:
        sandbox = guest.sandbox
        fds = {fd: _identity(fd) for fd in (sandbox.stdout, sandbox.stderr)}
        pid = sandbox.pid
        groups = cgroups(pid)
        await guest.ask("hide", hold="held", quiet=False)
        await guest.ask("write", path="left", text="text")
        expect(is_running(pid) or fixture.probe.remote, "control: the first process lives")
        await asyncio.gather(sandbox.clean_up(), sandbox.clean_up())
        await sandbox.clean_up()
        expect(not is_running(pid) and not await guest.is_locked("held"), "no process remains when clean_up returns")
        expect(sandbox.channel.fileno() == -1, "the channel is closed by clean_up")
        expect(
            not any(_identity(fd) == identity for fd, identity in fds.items()),
            "the output descriptors are closed by clean_up",
        )
        expect(not any(each.exists() for each in groups), "no cgroup remains when clean_up returns")
        expect((guest.spec.workspace / "left").read_text() == "text", "clean_up keeps the workspace")
        async with time_limit():
            expect((await sandbox.wait()).code == -signal.SIGKILL, "wait reports the kill, also after clean_up")


async def descriptions(fixture: BackendFixture) -> None:
    """Check that `describe` is data, and that `adopt` raises Gone, or returns this very sandbox.

    After the end of the sandbox `adopt` raises Gone.
    """
    async with fixture.start_guest() as guest:
        described = guest.sandbox.describe()
        expect(json.loads(json.dumps(described)) == described, f"a description is JSON, not {described!r}")
        pid = guest.sandbox.pid
        try:
            adopted = await fixture.backend.adopt(described, guest.spec)
        except Gone:
            pass
        else:
            expect(adopted.pid == pid, "the adopted sandbox is the described one")
        await guest.ask("process_info")
        await guest.send("leave", code=0)
        await guest.wait_ended()
        await guest.sandbox.clean_up()
        await raises(Gone, fixture.backend.adopt(described, guest.spec), "an ended sandbox cannot be adopted")


async def usage_is_reported(fixture: BackendFixture) -> None:
    """Check that `metrics` follows the usage, and raises Gone afterwards, and that the end reports the total."""
    async with fixture.start_guest() as guest:
        before = await guest.sandbox.metrics()
        expect(before.pids >= 1, f"a living sandbox has processes: {before}")
        await guest.ask("allocate", mb=40)
        await guest.ask("spin", seconds=0.3, processes=1)
        await guest.ask("fill", path=".", mb=4)
        await guest.ask("hide", hold="held", quiet=False)

        all_seen = [before]

        async def is_seen() -> bool:
            all_seen.append(now := await guest.sandbox.metrics())
            grown = now.memory_mb >= before.memory_mb + 35 and now.workspace_mb >= before.workspace_mb + 4
            return grown and now.cpu_seconds > before.cpu_seconds and now.pids > before.pids

        promise = "the usage of a sandbox is reported while it runs: first and last "
        await eventually(is_seen, promise, lambda: (all_seen[0], all_seen[-1]))
        await guest.send("leave", code=0)
        ended = await guest.wait_ended()
        expect(ended.cpu_seconds > 0 and ended.peak_mb >= 40, f"an end reports the usage: {ended}")
        await raises(Gone, guest.sandbox.metrics(), "metrics of an ended sandbox")


async def commands_run_in_the_same_sandbox(fixture: BackendFixture) -> None:
    """Check that commands run in the same sandbox, with bounded output and time, and end with their children."""
    async with fixture.start_guest() as guest:
        await guest.ask("write", path="file", text="text")
        run = guest.sandbox.run_command
        script = "cat file; echo err >&2; echo made > made; exit 3"
        async with time_limit():
            ran = await run(["/bin/sh", "-c", script], timeout_s=PATIENCE_S, max_bytes=1000)
            expect(ran == (3, b"text", b"err\n"), f"a command returns its status and its output: {ran}")
            expect(await guest.ask("read", path="made") == "made\n", "a command and its guest share a workspace")
            flood = await run(["/bin/sh", "-c", "head -c 100000 /dev/zero"], timeout_s=PATIENCE_S, max_bytes=1000)
            expect(len(flood.stdout) <= 1000, f"output is cut at the requested size, not at {len(flood.stdout)} bytes")
            script = "touch held; command -v flock >&2 && exec flock -s held sleep 3600; sleep 3600"
            long_command = run(["/bin/sh", "-c", script], timeout_s=0.3, max_bytes=1000)
            await raises(TimeoutError, long_command, "a command that takes too long")
            await eventually(lambda: guest.is_unlocked("held"), "child processes of a command end with it")
        expect(await guest.ask("process_info"), "the end of a command does not affect its sandbox")
        await guest.send("leave", code=0)
        await guest.wait_ended()
        command = run(["/bin/true"], timeout_s=PATIENCE_S, max_bytes=1000)
        await raises(Gone, command, "a command in an ended sandbox")


async def the_first_process(fixture: BackendFixture) -> None:
    """Check that `pid` is a separate host process for each sandbox; its end ends that sandbox, and no other."""
    if fixture.probe.remote:
        async with fixture.start_guest() as guest:
            expect(guest.sandbox.pid == -1, f"a sandbox of another machine has no pid here: {guest.sandbox.pid}")
        raise NotHere("its processes are on another machine")
    async with fixture.start_guest() as one, fixture.start_guest() as other:
        expect(is_running(one.sandbox.pid) and is_running(other.sandbox.pid), "both have a first process")
        expect(one.sandbox.pid != other.sandbox.pid, "each sandbox has its own first process")
        expect(one.sandbox.pid != os.getpid(), "the first process is not the process of the suite")
        os.kill(one.sandbox.pid, signal.SIGKILL)
        try:
            await one.ask("process_info")
        except Ended:
            pass
        else:
            await one.wait_closed()
        await one.wait_ended()
        expect(await other.ask("process_info"), "the end of one sandbox does not end the other")


def _identity(fd: int) -> object:
    """Return the identity of an open descriptor, None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


CHECKS: tuple[Check, ...] = checks_of(__name__)
