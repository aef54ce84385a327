"""Run folders: whole, private, found again, and removed by retention only."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir as inside
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.isolation.workspace.run_dirs import RunFolder, RunFolders
from tests.support.hostile import field, fill, make_immutable, mount_in

DAY_S = 24 * 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def folders(tmp_path: Path, clock: FakeClock) -> RunFolders:
    return RunFolders(tmp_path, clock=clock)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("the host's")
    return path


@pytest.fixture
def wide() -> Iterator[RunFolders]:
    """Folders in a place where anything may be left."""
    with field() as path:
        yield RunFolders(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def ids(folders: RunFolders) -> list[str]:
    return [each.id for each in folders.list()]


def test_a_run_has_a_folder_of_its_own(folders: RunFolders, clock: FakeClock, tmp_path: Path) -> None:
    """Nobody else may look into it."""
    one = folders.create("run-1", path="main", agent="worker")
    other = folders.create("run-2", path="main/2", agent="worker")

    assert one.path == tmp_path / ".ramet" / "runs" / "run-1"
    assert list(one.workspace.iterdir()) == list(other.workspace.iterdir()) == []
    assert {mode(each) for each in (folders.root, one.path, one.workspace)} == {0o700}
    about = one.read_info()
    assert (about.path, about.agent, about.created, about.ended) == ("main", "worker", clock.now(), None)


def test_it_is_found_again_by_another_kernel(folders: RunFolders, tmp_path: Path) -> None:
    """With all that was kept in it."""
    folder = folders.create("run-1", path="main", agent="worker")
    (folder.workspace / "half done").write_text("so far")
    folder.save_checkpoint(b"{}", 2, 5)
    folder.record_end()

    later = RunFolders(tmp_path).find("run-1")

    assert (later.workspace / "half done").read_text() == "so far"
    assert later.load_checkpoint() == (b"{}", 2, 5)
    assert later.read_info() == folder.read_info()
    assert later.read_info().ended is not None
    later.record_resume()
    assert later.read_info().ended is None


def test_what_is_not_there_is_not_found(folders: RunFolders, tmp_path: Path) -> None:
    """The error names what there is; looking makes nothing."""
    with pytest.raises(Unknown, match="there are none"):
        folders.find("run-1")
    assert ids(folders) == []
    assert not (tmp_path / ".ramet").exists()

    folders.create("run-2")
    with pytest.raises(Unknown, match="run-2"):
        folders.find("run-1")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "~", "a\0b", "a\n", ".hidden", "-rf", "x" * 65, "ü", "a b", "run-1/"]
)
def test_what_is_no_id_is_refused(folders: RunFolders, tmp_path: Path, name: str) -> None:
    """So no id leads anywhere else, and none looks like a folder that is being made or removed."""
    with pytest.raises(InvalidValue):
        folders.create(name)
    with pytest.raises(InvalidValue):
        folders.find(name)
    assert sorted(each.name for each in tmp_path.iterdir()) in ([], [".ramet"])


@given(name=st.text(max_size=80))
def test_no_id_leads_out_of_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Whatever it is made of."""
    folders = RunFolders(tmp_path_factory.mktemp("working"))
    try:
        folder = folders.create(name)
    except InvalidValue:
        return
    assert folder.path.parent == folders.root
    assert Path(os.path.realpath(folder.path)) == folder.path.parent.resolve() / name


def test_an_id_is_used_once(folders: RunFolders) -> None:
    """What is there stays as it is."""
    (folders.create("run-1", agent="first").workspace / "file").write_text("kept")

    with pytest.raises(InvalidValue, match="no run has had"):
        folders.create("run-1", agent="second")

    assert folders.find("run-1").read_info().agent == "first"
    assert (folders.find("run-1").workspace / "file").read_text() == "kept"
    assert [each.name for each in folders.root.iterdir()] == ["run-1"]


@pytest.mark.parametrize("where", [".ramet", ".ramet/runs"])
def test_a_link_in_place_of_our_folder_is_refused(tmp_path: Path, outside: Path, where: str) -> None:
    """A project that was checked out may hold one; nothing is made where it leads to."""
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).symlink_to(outside)

    with pytest.raises(InvalidValue, match="no symbolic link"):
        RunFolders(tmp_path).create("run-1")

    assert [each.name for each in outside.iterdir()] == ["secret"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away takes root")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Whoever owns it could put anything in place of anything."""
    (tmp_path / ".ramet" / "runs").mkdir(parents=True)
    os.chown(tmp_path / ".ramet" / "runs", 60700, 60700)

    with pytest.raises(InvalidValue, match="belong to the user"):
        RunFolders(tmp_path).create("run-1")


@pytest.mark.parametrize(("before", "after"), [(0o777, 0o710), (0o755, 0o710), (0o700, 0o700), (0o710, 0o710)])
def test_a_folder_that_others_could_enter_is_closed_to_them(tmp_path: Path, before: int, after: int) -> None:
    """It may have been made by hand. A group may pass through: the agents' own, if a backend let it."""
    (tmp_path / ".ramet" / "runs").mkdir(parents=True)
    (tmp_path / ".ramet" / "runs").chmod(before)

    RunFolders(tmp_path).create("run-1")

    assert mode(tmp_path / ".ramet" / "runs") == after


def test_another_attempt_gets_an_empty_workspace(wide: RunFolders, outside: Path) -> None:
    """Whatever the one before left; the rest of the folder stays."""
    folder = wide.create("run-1")
    fill(folder.workspace, outside)
    folder.save_checkpoint(b"kept", 0)
    folder.stdout.write_text("said")
    folder.workspace.chmod(0)

    folder.clear_workspace()

    assert list(folder.workspace.iterdir()) == []
    assert mode(folder.workspace) == 0o700
    assert sorted(each.name for each in folder.path.iterdir()) == ["checkpoint", "run.json", "stdout.log", "workspace"]
    assert (outside / "secret").read_text() == "the host's"


def test_flags_do_not_keep_a_workspace_from_being_emptied(wide: RunFolders) -> None:
    """Root can set them, and so can an agent that runs as root without walls."""
    folder = wide.create("run-1")
    (folder.workspace / "file").write_text("")
    make_immutable(folder.workspace / "file")
    make_immutable(folder.workspace)

    folder.clear_workspace()

    assert list(folder.workspace.iterdir()) == []
    assert sorted(each.name for each in folder.path.iterdir()) == ["run.json", "workspace"]


def test_what_cannot_be_removed_is_out_of_the_way(wide: RunFolders) -> None:
    """The next attempt does not see it, and it goes as soon as it can."""
    folder = wide.create("run-1")
    (folder.workspace / "busy").mkdir()
    (folder.workspace / "file").write_text("")
    mount_in(folder.workspace / "busy")
    try:
        folder.clear_workspace()
        assert list(folder.workspace.iterdir()) == []
        assert [each.name for each in folder.path.glob(".gone-*/*")] == ["busy"]
    finally:
        for each in folder.path.rglob("busy"):
            subprocess.run(["umount", str(each)], check=True)

    folder.clear_workspace()
    assert sorted(each.name for each in folder.path.iterdir()) == ["run.json", "workspace"]


def test_a_workspace_whose_replacing_was_cut_off_is_there_again(folders: RunFolders) -> None:
    """The kernel died between taking the old one away and making the new one."""
    folder = folders.create("run-1")
    folder.workspace.rename(folder.path / ".gone-1")

    assert not folders.find("run-1").restore_workspace()
    assert list(folder.workspace.iterdir()) == []


def test_a_workspace_that_is_missing_is_made_again_and_said(folders: RunFolders) -> None:
    """Once: what was in it is lost. One that is there stays as it is."""
    folder = folders.create("run-1")
    folder.workspace.rmdir()

    assert folders.find("run-1").restore_workspace()
    (folder.workspace / "file").write_text("new")
    assert not folders.find("run-1").restore_workspace()
    assert (folder.workspace / "file").read_text() == "new"


def test_a_folder_goes_as_a_whole(wide: RunFolders, outside: Path) -> None:
    """Removing it twice is no error."""
    folder = wide.create("run-1")
    fill(folder.workspace, outside)

    folder.remove()
    folder.remove()

    assert list(wide.root.iterdir()) == []
    assert (outside / "secret").read_text() == "the host's"


def test_what_cannot_be_read_is_said_so(folders: RunFolders) -> None:
    """Not guessed at."""
    folder = folders.create("run-1")
    (folder.path / "run.json").write_text('{"path": "main"')

    with pytest.raises(Damaged, match=r"run\.json"):
        folder.read_info()


# --- retention ------------------------------------------------------------------------------------------------------


async def nobody(_: RunFolder) -> bool:
    """Nobody needs any of them."""
    return False


def among(living: Container[str]) -> Callable[[RunFolder], Awaitable[bool]]:
    """Those of these runs are needed."""

    async def is_needed(folder: RunFolder) -> bool:
        return folder.id in living

    return is_needed


async def ended_daily(folders: RunFolders, clock: FakeClock, count: int) -> None:
    """Runs 0, 1, …, each a day after the other."""
    for number in range(count):
        folders.create(f"run-{number}").record_end()
        await clock.advance(DAY_S)


async def test_what_ended_long_ago_is_removed(tmp_path: Path, clock: FakeClock) -> None:
    """And nothing else."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=2.5, count=None), clock=clock)
    await ended_daily(folders, clock, 5)

    assert sorted(await folders.remove_expired(nobody)) == ["run-0", "run-1", "run-2"]
    assert ids(folders) == ["run-3", "run-4"]
    assert await folders.remove_expired(nobody) == ()


async def test_only_the_newest_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    """As many as were asked for."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=None, count=2), clock=clock)
    await ended_daily(folders, clock, 5)

    assert sorted(await folders.remove_expired(nobody)) == ["run-0", "run-1", "run-2"]
    assert ids(folders) == ["run-3", "run-4"]


async def test_the_newest_are_kept_that_fit_into_a_size(tmp_path: Path, clock: FakeClock) -> None:
    """All that a folder holds counts, what is needed too; links out of it do not."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=None, count=None, bytes=3 << 20), clock=clock)
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    for number in range(5):
        folder = folders.create(f"run-{number}")
        (folder.workspace / "file").write_bytes(os.urandom(1 << 20))
        (folder.workspace / "link").symlink_to(tmp_path / "large")
        folder.record_end()
        await clock.advance(DAY_S)

    assert sorted(await folders.remove_expired(among({"run-0"}))) == ["run-1", "run-2"]
    assert ids(folders) == ["run-0", "run-3", "run-4"]


async def test_who_lives_or_is_marked_stays(tmp_path: Path, clock: FakeClock) -> None:
    """However old; and without limits nobody goes."""
    await ended_daily(RunFolders(tmp_path, clock=clock), clock, 4)
    unlimited = RunFolders(tmp_path, limits=FolderLimits(days=None, count=None), clock=clock)
    assert await unlimited.remove_expired(nobody) == ()
    unlimited.find("run-1").keep()
    strict = RunFolders(tmp_path, limits=FolderLimits(days=0, count=0), clock=clock)

    assert sorted(await strict.remove_expired(among({"run-0"}))) == ["run-2", "run-3"]

    strict.find("run-1").keep(False)
    assert sorted(await strict.remove_expired(nobody)) == ["run-0", "run-1"]


def test_a_word_to_keep_it_is_not_lost_to_its_end(tmp_path: Path) -> None:
    """Its end is written down in a thread of its own, while who found it failed says in another that it is to stay."""
    folders = RunFolders(tmp_path)
    for number in range(50):
        folder = folders.create(f"run-{number}")
        with ThreadPoolExecutor(2) as threads:
            ending, keeping = threads.submit(folder.record_end), threads.submit(folders.find(folder.id).keep)
            ending.result()
            keeping.result()
        about = folder.read_info()
        assert about.keep
        assert about.ended is not None


async def test_who_comes_back_while_others_are_looked_at_stays(tmp_path: Path, clock: FakeClock) -> None:
    """The set of the living is asked at the last moment."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=0), clock=clock)
    for number in range(50):
        folders.create(f"run-{number}").record_end()

    class Waking(set[str]):
        def __contains__(self, run: object) -> bool:
            self.add("run-7")  # it was not among them when the looking began
            return super().__contains__(run)

    living = Waking()
    await folders.remove_expired(among(living))

    assert ids(folders) == ["run-7"]


async def test_one_that_never_ended_is_as_old_as_its_last_word(tmp_path: Path) -> None:
    """Its kernel died. What a guest can set, the times of its workspace, does not count."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=1, days=None))
    old, new = folders.create("run-old"), folders.create("run-new")
    for folder in (old, new):
        for each in (folder.path / "run.json", folder.workspace):
            os.utime(each, (1, 1))
    os.utime(old.workspace, (2**33, 2**33))
    new.stdout.write_text("its last word")
    os.utime(new.stdout, (2**32, 2**32))

    assert await folders.remove_expired(nobody) == ("run-old",)


async def test_a_damaged_one_goes_like_any_other(tmp_path: Path) -> None:
    """It does not keep retention from its work."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=0))
    folders.create("run-1").record_end()
    (folders.create("run-2").path / "run.json").write_text("")

    assert sorted(await folders.remove_expired(nobody)) == ["run-1", "run-2"]


async def test_what_dead_kernels_were_making_or_removing_goes(tmp_path: Path) -> None:
    """What is being made right now stays, and so does what is not ours."""
    folders = RunFolders(tmp_path)
    folders.create("run-1")
    for name in (".new-run-2-aa", ".new-run-3-bb", ".gone-run-4-cc", ".somebody's"):
        (folders.root / name).mkdir()
    os.utime(folders.root / ".new-run-2-aa", (1, 1))

    assert await folders.remove_expired(among({"run-1"})) == ()

    assert sorted(each.name for each in folders.root.iterdir()) == [".new-run-3-bb", ".somebody's", "run-1"]


@pytest.mark.parametrize("options", [{"days": -1}, {"days": float("nan")}, {"count": -1}, {"bytes": -1}])
def test_limits_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    """By name."""
    with pytest.raises(InvalidValue, match=next(iter(options))):
        FolderLimits(**options)


def test_sockets_of_proxies_and_ports_are_removed_and_nothing_else(folders: RunFolders) -> None:
    """A file of that name stays, and so does a socket that a guest has made in its workspace."""
    left, other = folders.create("run-1"), folders.create("run-2")
    below = ("proxy.sock", "ports/web.sock")
    for path in (folder / name for folder in (left.path, left.workspace) for name in below):
        path.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, inside(path.parent):
            listener.bind(path.name)
    (other.path / "proxy.sock").write_text("a file")
    (other.path / "ports").symlink_to(left.workspace / "ports")

    folders.remove_sockets()

    assert not (left.path / "proxy.sock").exists()
    assert (left.workspace / "proxy.sock").is_socket()
    assert not left.ports.exists()
    assert (left.workspace / "ports" / "web.sock").is_socket()
    assert (other.path / "proxy.sock").read_text() == "a file"
