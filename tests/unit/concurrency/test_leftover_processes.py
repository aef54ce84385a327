"""Tests of the reaper: it finds every process that a command left, and ends no other."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pathlib
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.concurrency import process_reaper
from ramet.concurrency.process_reaper import TAG_VARIABLE, ProcessTag
from tests.support.commands import sh
from tests.support.waiting import alive, eventually, pid_in

DETACH: dict[str, str] = {
    "child": "sleep 1000 & echo $! > pid; wait",
    "grandchild": "sh -c 'sleep 1000 & echo $! > pid; wait' & wait",
    "own session": "setsid sh -c 'echo $$ > pid; exec sleep 1000' & wait",
    "daemon": "(setsid sh -c 'echo $$ > pid; exec sleep 1000 >/dev/null 2>&1 </dev/null' &) ; sleep 1000",
    "stubborn": "trap '' TERM; echo $$ > pid; while :; do sleep 1000; done",
    "orphan": "(sleep 1000 & echo $! > pid); (true &); sleep 1000",
}


@pytest.fixture(params=["others adopt", "we adopt"])
def orphan_adoption(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let orphans go to pid 1, or to this process, which then must reap them."""
    prctl, set_subreaper = ctypes.CDLL(None, use_errno=True).prctl, 36
    if request.param == "we adopt" and prctl(set_subreaper, 1, 0, 0, 0):
        pytest.skip("this system has no subreapers")
    yield
    if request.param == "we adopt":
        prctl(set_subreaper, 0, 0, 0, 0)


@pytest.mark.usefixtures("orphan_adoption")
@pytest.mark.parametrize("grace_s", [0, 0.05])
@pytest.mark.parametrize("script", DETACH.values(), ids=DETACH.keys())
async def test_cancelling_ends_every_process_of_a_command(tmp_path: pathlib.Path, script: str, grace_s: float) -> None:
    """No process of the command is alive when the cancelled call returns, also after it detached."""
    pid = pid_in(tmp_path / "pid")
    running = asyncio.ensure_future(sh(script, cwd=tmp_path, grace_s=grace_s))
    await eventually(pid)
    assert alive(pid())

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(pid())


@pytest.mark.usefixtures("orphan_adoption")
@pytest.mark.parametrize("detached", ["sleep 1000", "setsid sleep 1000", "true"])
async def test_a_background_job_ends_with_the_command_that_started_it(detached: str) -> None:
    """A background job that holds the output open does not delay the caller."""
    result = await sh(f"{detached} & echo $!")

    assert not alive(int(result.stdout))


async def test_cancelling_a_command_leaves_other_processes_alive() -> None:
    """Ending a command, even during its start, ends no process of another command."""
    older = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    running = asyncio.ensure_future(sh("sleep 1000"))
    await asyncio.sleep(0)  # it is being started
    younger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    sibling = await asyncio.create_subprocess_exec("sleep", "1000")

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    for bystander in (older, younger, sibling):
        assert alive(bystander.pid)
        bystander.kill()
        await bystander.wait()


async def test_the_mark_of_an_inner_command_contains_the_outer_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that an inner run marked anew still carries the mark of the outer run."""
    monkeypatch.setenv("RAMET_CALL", ".outer")

    assert (await sh("echo $RAMET_CALL")).stdout.startswith(b".outer.")


# --- the rules, on a /proc of our own -------------------------------------------------------------------------------

LEADER, SESSION_OF_OURS, STRANGER, NOW, BEFORE = 500, 400, 2**22 + 1, 2**62, 0


class FakeProc:
    """Simulated processes: a `/proc` folder, and signals that are recorded and end processes at once."""

    def __init__(self, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
        self.root = root
        self.signals: list[tuple[int, int]] = []
        self.reaped: list[int] = []
        self.ending: dict[int, int] = {}  #: the signal that ends a process, if it is not SIGKILL
        self.forking: dict[int, int] = {}  #: who gives birth to whom while being ended
        self.then: dict[int, Callable[[], None]] = {}  #: what happens once so many signals were sent
        (root / "self").symlink_to(str(pid))
        monkeypatch.setattr(process_reaper, "_PROC", root)
        monkeypatch.setattr(os, "getsid", lambda _: SESSION_OF_OURS)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(os, "killpg", self._killpg)
        monkeypatch.setattr(os, "waitpid", lambda pid, _: self.reaped.append(pid))

    def add(
        self,
        pid: int,
        *,
        parent: int = STRANGER,
        group: int | None = None,
        session: int | None = None,
        start: int = NOW,
        state: str = "S",
        threads: int = 1,
        env: bytes | None = b"A=1\0",
    ) -> None:
        """Add a process, by default a stranger with a session of its own; without `env` it is another user's."""
        folder = self.root / str(pid)
        folder.mkdir()
        middle = " ".join(["0"] * 13 + [str(threads), "0"])
        stat = f"{pid} (a) b) {state} {parent} {group or pid} {pid if session is None else session} {middle} {start} 0"
        (folder / "stat").write_text(stat)
        if env is None:
            (folder / "environ").mkdir()  # As unreadable for root as for others.
        else:
            (folder / "environ").write_bytes(env)

    def _killpg(self, group: int, number: int) -> None:
        """Signal a group with processes born meanwhile; without a trusted `/proc`, record the signal only."""
        if (self.root / "self").is_symlink() and (self.root / "self").readlink().name == str(os.getpid()):
            while pids := [pid for pid, state, of in self._all() if of == group and state != "Z"]:
                for pid in pids:
                    self._kill(pid, number)
        else:
            self._kill(-group, number)

    def _all(self) -> list[tuple[int, str, int]]:
        """Return pid, state and group of each process."""
        with os.scandir(self.root) as entries:
            files = [self.root / each.name / "stat" for each in entries]
        stats = [each.read_text().split() for each in files if each.is_file() and each.parent.name.isdigit()]
        return [(int(stat[0]), stat[3], int(stat[5])) for stat in stats]

    def _kill(self, pid: int, number: int) -> None:
        if pid < 0 and any(each == (pid, signal.SIGKILL) for each in self.signals):
            raise ProcessLookupError
        self.signals.append((pid, number))
        self.then.pop(len(self.signals), lambda: None)()
        if number == self.ending.get(pid, signal.SIGKILL) and pid > 0:
            if pid in self.forking:
                self.add(self.forking[pid], group=LEADER)
            self.end(pid)

    def end(self, pid: int) -> None:
        """Turn the process into an unreaped zombie."""
        stat = self.root / str(pid) / "stat"
        stat.write_text(re.sub(r"\) \w (.*) \d+ 0 (\d+ 0)$", r") Z \1 1 0 \2", stat.read_text()))

    @property
    def signalled_pids(self) -> list[int]:
        """Return the pids that got a signal."""
        return sorted({pid for pid, number in self.signals if number})


@pytest.fixture
def system(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    return FakeProc(tmp_path, monkeypatch, os.getpid())


@pytest.fixture
def process_mark() -> ProcessTag:
    return ProcessTag()


@pytest.fixture
def marked_environ(process_mark: ProcessTag) -> bytes:
    """Return the environment of a process that carries the mark."""
    return f"A=1\0{TAG_VARIABLE}={process_mark.tagged_env({})[TAG_VARIABLE]}\0B=2\0".encode()


@pytest.mark.parametrize("leader_lives", [True, False])
async def test_a_process_is_found_by_group_session_descent_or_mark(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes, leader_lives: bool
) -> None:
    """Each of the four is enough, whether the command lives or not; a process lives as long as one of its threads."""
    if leader_lives:
        system.add(LEADER)
    system.add(501, group=LEADER, session=999)
    system.add(502, session=LEADER, env=None)
    system.add(503, parent=LEADER)
    system.add(504, parent=503, env=None)
    system.add(505, env=marked_environ)
    system.add(506, parent=505)
    system.add(507, session=LEADER, state="Z", threads=2)

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert system.signalled_pids == [LEADER] * leader_lives + [501, 502, 503, 504, 505, 506, 507]


async def test_the_command_is_signalled_before_its_children(system: FakeProc, process_mark: ProcessTag) -> None:
    """A command cannot see its children end and continue."""
    for pid in (LEADER - 1, LEADER, LEADER + 1):
        system.add(pid, group=LEADER)

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert [pid for pid, _ in system.signals] == [LEADER, LEADER - 1, LEADER + 1]


async def test_strangers_older_processes_and_our_own_are_never_signalled(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes
) -> None:
    """One sign that a process is not the command's outweighs every sign that it is."""
    system.add(LEADER)
    system.add(600)
    system.add(601, env=None)
    system.add(602, env=f"{TAG_VARIABLE}=.another\0".encode())
    system.add(603, env=marked_environ.replace(TAG_VARIABLE.encode(), b"COPY_OF_IT"))
    likeness = {"parent": LEADER, "group": LEADER, "env": marked_environ}
    system.add(604, session=LEADER, start=BEFORE, **likeness)  # type: ignore[arg-type]  # of several types
    system.add(605, session=SESSION_OF_OURS, **likeness)  # type: ignore[arg-type]
    system.add(606, session=0, **likeness)  # type: ignore[arg-type]
    system.add(607, session=LEADER, state="Z", **likeness)  # type: ignore[arg-type]
    system.add(os.getpid(), session=SESSION_OF_OURS, **likeness)  # type: ignore[arg-type]

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert system.signalled_pids == [LEADER]


@pytest.mark.parametrize("grace_s", [0, 600])
async def test_a_process_without_environment_is_examined_again(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes, grace_s: float
) -> None:
    """A process has no environment during exec; a later look finds its mark, and spares one that never has any."""
    system.add(650, env=b"")
    system.add(651, env=b"")
    system.ending = {650: signal.SIGTERM} if grace_s else {}
    ending = asyncio.ensure_future(process_reaper.kill_all(LEADER, process_mark, grace_s=grace_s))
    await asyncio.sleep(0)  # it has looked
    (system.root / "650" / "environ").write_bytes(marked_environ)

    await ending

    assert system.signalled_pids == [650]


@pytest.mark.parametrize("parent", ["gone", "dead", "dead and ours"])
async def test_a_child_born_during_the_scan_is_found_after_its_parent_died(
    system: FakeProc, process_mark: ProcessTag, parent: str
) -> None:
    """A process that ended during the scan may have had a child, so the reaper scans again."""
    if parent == "gone":
        (system.root / "680").mkdir()
    else:
        system.add(680, group=LEADER, state="Z", parent=os.getpid() if parent == "dead and ours" else STRANGER)
    ending = asyncio.ensure_future(process_reaper.kill_all(LEADER, process_mark, grace_s=0))
    await asyncio.sleep(0)  # it has looked
    system.add(681, group=LEADER)

    await ending

    assert system.signalled_pids == [681]


async def test_a_group_with_foreign_members_is_not_signalled_as_a_group(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to a group would also reach older processes, our own, and strangers in it."""
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))
    for group in (900, 910, 920, 930):
        system.add(group + 1, group=group, env=marked_environ)
    system.add(902, group=900, start=BEFORE)
    system.add(912, group=910, session=SESSION_OF_OURS)
    system.add(922, group=920)
    system.add(941, group=os.getpgrp(), env=marked_environ)
    system.add(951, group=1, env=marked_environ)

    await process_reaper.kill_all(None, process_mark, grace_s=0)

    assert set(groups) == {930}
    assert system.signalled_pids == [901, 911, 921, 931, 941, 951]


async def test_a_child_of_a_dead_marked_process_is_found(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes
) -> None:
    """Zombies have no environment, so a zombie may have been the command's and have had a child."""
    system.add(685, state="Z", env=b"")
    ending = asyncio.ensure_future(process_reaper.kill_all(LEADER, process_mark, grace_s=0))
    await asyncio.sleep(0)  # it has looked
    system.add(686, env=marked_environ)

    await ending

    assert system.signalled_pids == [686]


async def test_processes_that_die_before_each_scan_end_with_their_group(
    system: FakeProc, process_mark: ProcessTag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of processes, each of which starts the next and ends, is ended by one signal to its group."""
    listing, runners = os.listdir, [1000]
    system.add(1000, group=LEADER)

    def names(folder: pathlib.Path) -> list[str]:
        processes = listing(folder)
        if runners[-1] not in system.signalled_pids:
            system.end(runners[-1])
            runners.append(runners[-1] + 1)
            system.add(runners[-1], group=LEADER)
        return processes

    monkeypatch.setattr(os, "listdir", names)

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert system.signalled_pids == [1001]


async def test_processes_that_fork_while_being_killed_are_all_killed(
    system: FakeProc, process_mark: ProcessTag
) -> None:
    """The reaper scans until it finds no new process."""
    system.add(LEADER)
    system.forking = {LEADER: 671, 671: 672, 672: 673, 673: 674}

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert system.signalled_pids == [LEADER, 671, 672, 673, 674]


async def test_a_found_process_stays_found_and_a_new_one_gets_no_sigterm(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes
) -> None:
    """A process that loses environment and parent during the grace is killed; one born in it gets SIGKILL only."""
    system.add(LEADER)
    system.add(660, parent=LEADER)
    system.add(661, env=marked_environ)
    system.ending = {LEADER: signal.SIGTERM}

    def change() -> None:
        (system.root / "661" / "environ").write_bytes(b"")
        stat = system.root / "660" / "stat"
        stat.write_text(stat.read_text().replace(f" S {LEADER} ", f" S {STRANGER} "))
        system.add(662, parent=660)

    system.then[3] = change  # All three have been asked to go, and none was killed.
    await process_reaper.kill_all(LEADER, process_mark, grace_s=0.01)

    terminated = [pid for pid, number in system.signals if number == signal.SIGTERM]
    killed_pids = [pid for pid, number in system.signals if number == signal.SIGKILL]
    assert (sorted(terminated), sorted(killed_pids)) == ([LEADER, 660, 661], [660, 661, 662])


async def test_without_a_leader_processes_are_found_by_mark_and_descent(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes
) -> None:
    """A start that is cancelled before its pid is known leaves only the mark."""
    system.add(700, env=marked_environ)
    system.add(701, parent=700)
    system.add(702)

    await process_reaper.kill_all(None, process_mark, grace_s=0)

    assert system.signalled_pids == [700, 701]


async def test_adopted_orphans_are_reaped_and_the_command_is_not(
    system: FakeProc, process_mark: ProcessTag, marked_environ: bytes
) -> None:
    """The starter of the command, and of other children, reaps them itself."""
    us = os.getpid()
    system.add(LEADER, parent=us, state="Z")
    system.add(801, parent=us, session=LEADER, state="Z")
    system.add(802, parent=us, env=marked_environ)
    system.add(803, parent=us, state="Z")
    system.add(804, parent=STRANGER, session=LEADER, state="Z")

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)

    assert system.signalled_pids == [802]
    assert set(system.reaped) == {801, 802}


@pytest.mark.parametrize("pid_namespace", ["another", "nobody"])
async def test_a_proc_of_another_pid_namespace_is_not_trusted(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    process_mark: ProcessTag,
    marked_environ: bytes,
    pid_namespace: str,
) -> None:
    """The pids there belong to others, so the reaper signals only the command's own group."""
    system = FakeProc(tmp_path, monkeypatch, STRANGER)
    if pid_namespace == "nobody":
        (tmp_path / "self").unlink()
    system.add(LEADER)
    system.add(901, env=marked_environ)

    await process_reaper.kill_all(LEADER, process_mark, grace_s=0)
    await process_reaper.kill_all(None, process_mark, grace_s=0)

    assert system.signalled_pids == [-LEADER]


@pytest.mark.parametrize("proc", ["none", "kept from us"])
async def test_without_a_readable_proc_the_group_of_the_command_is_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, proc: str
) -> None:
    """A real process ends on a system without `/proc`, such as macOS, or where Landlock forbids listing it."""
    monkeypatch.setattr(process_reaper, "_PROC", tmp_path / proc)
    if proc != "none":  # A link may be read where Landlock lets nobody list the folder that it is in.
        (tmp_path / proc).mkdir()
        (tmp_path / proc / "self").symlink_to(str(os.getpid()))
        listing = os.listdir

        def listdir(path: Any) -> list[str]:
            if path == tmp_path / proc:
                raise PermissionError(13, "Permission denied", str(path))
            return listing(path)

        monkeypatch.setattr(os, "listdir", listdir)
    pid = pid_in(tmp_path / "pid")
    running = asyncio.ensure_future(sh(f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
    await eventually(pid)

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(pid())
