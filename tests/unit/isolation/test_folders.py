"""Tests of run folders: they are whole and private, are found again, and only retention removes them."""

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
from tests.support.checkpoints import load
from tests.support.hostile import field, fill, make_immutable, mount_in

DAY_S = 24 * 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def folders(tmp_path: Path, clock: FakeClock) -> RunFolders:
    return RunFolders(tmp_path, clock=clock)


@pytest.fixture
def outside_folder(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("the host's")
    return path


@pytest.fixture
def lenient_folders() -> Iterator[RunFolders]:
    """Yield folders on a file system that accepts any file."""
    with field() as path:
        yield RunFolders(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def ids(folders: RunFolders) -> list[str]:
    return [each.id for each in folders.list()]


def test_a_run_has_a_folder_of_its_own(folders: RunFolders, clock: FakeClock, tmp_path: Path) -> None:
    """No other user can read the folder."""
    one = folders.create("run-1", path="main", agent="worker")
    other = folders.create("run-2", path="main/2", agent="worker")

    assert one.path == tmp_path / ".ramet" / "runs" / "run-1"
    assert list(one.workspace.iterdir()) == list(other.workspace.iterdir()) == []
    assert {mode(each) for each in (folders.root, one.path, one.workspace)} == {0o700}
    about = one.read_info()
    assert (about.path, about.agent, about.created, about.ended) == ("main", "worker", clock.now(), None)


def test_another_kernel_finds_a_run_folder(folders: RunFolders, tmp_path: Path) -> None:
    """The workspace, the checkpoint and the description are there."""
    folder = folders.create("run-1", path="main", agent="worker")
    (folder.workspace / "half done").write_text("so far")
    folder.save_checkpoint(b"{}", 2, 5)
    folder.record_end()

    found_folder = RunFolders(tmp_path).find("run-1")

    assert (found_folder.workspace / "half done").read_text() == "so far"
    assert load(found_folder.path / "checkpoint") == (b"{}", 2, 5)
    assert found_folder.read_info() == folder.read_info()
    assert found_folder.read_info().ended is not None
    found_folder.record_resume()
    assert found_folder.read_info().ended is None


def test_a_missing_run_folder_is_unknown(folders: RunFolders, tmp_path: Path) -> None:
    """The error lists the existing folders, and a search creates nothing."""
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
def test_an_invalid_id_is_refused(folders: RunFolders, tmp_path: Path, name: str) -> None:
    """No id leads to another place, or looks like a folder that is being made or removed."""
    with pytest.raises(InvalidValue):
        folders.create(name)
    with pytest.raises(InvalidValue):
        folders.find(name)
    assert sorted(each.name for each in tmp_path.iterdir()) in ([], [".ramet"])


@given(name=st.text(max_size=80))
def test_no_id_leads_out_of_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Any text is refused, or names a folder directly below the root."""
    folders = RunFolders(tmp_path_factory.mktemp("working"))
    try:
        folder = folders.create(name)
    except InvalidValue:
        return
    assert folder.path.parent == folders.root
    assert Path(os.path.realpath(folder.path)) == folder.path.parent.resolve() / name


def test_an_id_is_used_once(folders: RunFolders) -> None:
    """The existing folder stays unchanged."""
    (folders.create("run-1", agent="first").workspace / "file").write_text("kept")

    with pytest.raises(InvalidValue, match="no run has had"):
        folders.create("run-1", agent="second")

    assert folders.find("run-1").read_info().agent == "first"
    assert (folders.find("run-1").workspace / "file").read_text() == "kept"
    assert [each.name for each in folders.root.iterdir()] == ["run-1"]


@pytest.mark.parametrize("subpath", [".ramet", ".ramet/runs"])
def test_a_link_in_place_of_our_folder_is_refused(tmp_path: Path, outside_folder: Path, subpath: str) -> None:
    """A checked-out project may contain such a link; nothing is created behind it."""
    (tmp_path / subpath).parent.mkdir(exist_ok=True)
    (tmp_path / subpath).symlink_to(outside_folder)

    with pytest.raises(InvalidValue, match="no symbolic link"):
        RunFolders(tmp_path).create("run-1")

    assert [each.name for each in outside_folder.iterdir()] == ["secret"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away takes root")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """The owner of a folder could replace anything in it."""
    (tmp_path / ".ramet" / "runs").mkdir(parents=True)
    os.chown(tmp_path / ".ramet" / "runs", 60700, 60700)

    with pytest.raises(InvalidValue, match="belong to the user"):
        RunFolders(tmp_path).create("run-1")


@pytest.mark.parametrize(("before", "after"), [(0o777, 0o710), (0o755, 0o710), (0o700, 0o700), (0o710, 0o710)])
def test_a_folder_that_others_could_enter_is_closed_to_them(tmp_path: Path, before: int, after: int) -> None:
    """A person may have made the folder; the agents' group may still pass through if a backend allows it."""
    (tmp_path / ".ramet" / "runs").mkdir(parents=True)
    (tmp_path / ".ramet" / "runs").chmod(before)

    RunFolders(tmp_path).create("run-1")

    assert mode(tmp_path / ".ramet" / "runs") == after


def test_another_attempt_gets_an_empty_workspace(lenient_folders: RunFolders, outside_folder: Path) -> None:
    """Files of the earlier attempt are removed, and the rest of the folder stays."""
    folder = lenient_folders.create("run-1")
    fill(folder.workspace, outside_folder)
    folder.save_checkpoint(b"kept", 0)
    folder.stdout.write_text("said")
    folder.workspace.chmod(0)

    folder.clear_workspace()

    assert list(folder.workspace.iterdir()) == []
    assert mode(folder.workspace) == 0o700
    assert sorted(each.name for each in folder.path.iterdir()) == ["checkpoint", "run.json", "stdout.log", "workspace"]
    assert (outside_folder / "secret").read_text() == "the host's"


def test_immutable_files_are_removed_from_a_workspace(lenient_folders: RunFolders) -> None:
    """Root can set the flag, and so can an agent that runs as root without a sandbox."""
    folder = lenient_folders.create("run-1")
    (folder.workspace / "file").write_text("")
    make_immutable(folder.workspace / "file")
    make_immutable(folder.workspace)

    folder.clear_workspace()

    assert list(folder.workspace.iterdir()) == []
    assert sorted(each.name for each in folder.path.iterdir()) == ["run.json", "workspace"]


def test_a_file_that_cannot_be_removed_is_moved_away(lenient_folders: RunFolders) -> None:
    """The next attempt does not see the file, and a later clear removes it."""
    folder = lenient_folders.create("run-1")
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


def test_a_workspace_is_restored_after_an_interrupted_replacement(folders: RunFolders) -> None:
    """The kernel died between moving the old workspace and making the new one."""
    folder = folders.create("run-1")
    folder.workspace.rename(folder.path / ".gone-1")

    assert not folders.find("run-1").restore_workspace()
    assert list(folder.workspace.iterdir()) == []


def test_a_missing_workspace_is_made_again_and_reported(folders: RunFolders) -> None:
    """The loss is reported once; an existing workspace stays unchanged."""
    folder = folders.create("run-1")
    folder.workspace.rmdir()

    assert folders.find("run-1").restore_workspace()
    (folder.workspace / "file").write_text("new")
    assert not folders.find("run-1").restore_workspace()
    assert (folder.workspace / "file").read_text() == "new"


def test_a_run_folder_is_removed_whole(lenient_folders: RunFolders, outside_folder: Path) -> None:
    """Removing it twice is no error."""
    folder = lenient_folders.create("run-1")
    fill(folder.workspace, outside_folder)

    folder.remove()
    folder.remove()

    assert list(lenient_folders.root.iterdir()) == []
    assert (outside_folder / "secret").read_text() == "the host's"


def test_an_unreadable_description_raises_damaged(folders: RunFolders) -> None:
    """The content of `run.json` is not guessed."""
    folder = folders.create("run-1")
    (folder.path / "run.json").write_text('{"path": "main"')

    with pytest.raises(Damaged, match=r"run\.json"):
        folder.read_info()


# --- retention ------------------------------------------------------------------------------------------------------


async def no_run_is_needed(_: RunFolder) -> bool:
    """Return False for every folder."""
    return False


def needs_one_of(living: Container[str]) -> Callable[[RunFolder], Awaitable[bool]]:
    """Return a function that says whether a folder belongs to one of these runs."""

    async def is_needed(folder: RunFolder) -> bool:
        return folder.id in living

    return is_needed


async def end_runs_daily(folders: RunFolders, clock: FakeClock, count: int) -> None:
    """Create and end the runs 0, 1, …, one a day."""
    for number in range(count):
        folders.create(f"run-{number}").record_end()
        await clock.advance(DAY_S)


async def test_folders_of_runs_that_ended_long_ago_are_removed(tmp_path: Path, clock: FakeClock) -> None:
    """No other folder is removed."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=2.5, count=None), clock=clock)
    await end_runs_daily(folders, clock, 5)

    assert sorted(await folders.remove_expired(no_run_is_needed)) == ["run-0", "run-1", "run-2"]
    assert ids(folders) == ["run-3", "run-4"]
    assert await folders.remove_expired(no_run_is_needed) == ()


async def test_only_the_newest_folders_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    """The limit of count says how many stay."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=None, count=2), clock=clock)
    await end_runs_daily(folders, clock, 5)

    assert sorted(await folders.remove_expired(no_run_is_needed)) == ["run-0", "run-1", "run-2"]
    assert ids(folders) == ["run-3", "run-4"]


async def test_the_newest_folders_that_fit_the_size_limit_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    """Every file in a folder counts, also of needed runs; links out of the folder do not."""
    folders = RunFolders(tmp_path, limits=FolderLimits(days=None, count=None, bytes=3 << 20), clock=clock)
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    for number in range(5):
        folder = folders.create(f"run-{number}")
        (folder.workspace / "file").write_bytes(os.urandom(1 << 20))
        (folder.workspace / "link").symlink_to(tmp_path / "large")
        folder.record_end()
        await clock.advance(DAY_S)

    assert sorted(await folders.remove_expired(needs_one_of({"run-0"}))) == ["run-1", "run-2"]
    assert ids(folders) == ["run-0", "run-3", "run-4"]


async def test_folders_of_living_or_marked_runs_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    """Age does not matter for them, and without limits no folder is removed."""
    await end_runs_daily(RunFolders(tmp_path, clock=clock), clock, 4)
    unlimited = RunFolders(tmp_path, limits=FolderLimits(days=None, count=None), clock=clock)
    assert await unlimited.remove_expired(no_run_is_needed) == ()
    unlimited.find("run-1").keep()
    strict = RunFolders(tmp_path, limits=FolderLimits(days=0, count=0), clock=clock)

    assert sorted(await strict.remove_expired(needs_one_of({"run-0"}))) == ["run-2", "run-3"]

    strict.find("run-1").keep(False)
    assert sorted(await strict.remove_expired(no_run_is_needed)) == ["run-0", "run-1"]


def test_a_keep_mark_survives_a_concurrent_end(tmp_path: Path) -> None:
    """One thread writes the end of the run, while another marks the folder to be kept."""
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


async def test_a_run_that_wakes_during_tidying_keeps_its_folder(tmp_path: Path, clock: FakeClock) -> None:
    """The check for living runs is made at the last moment."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=0), clock=clock)
    for number in range(50):
        folders.create(f"run-{number}").record_end()

    class Waking(set[str]):
        def __contains__(self, run: object) -> bool:
            self.add("run-7")  # it was not among them when the looking began
            return super().__contains__(run)

    living = Waking()
    await folders.remove_expired(needs_one_of(living))

    assert ids(folders) == ["run-7"]


async def test_a_run_without_an_end_is_as_old_as_its_last_output(tmp_path: Path) -> None:
    """The kernel of the run died. Times in the workspace, which a guest can set, do not count."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=1, days=None))
    old, new = folders.create("run-old"), folders.create("run-new")
    for folder in (old, new):
        for each in (folder.path / "run.json", folder.workspace):
            os.utime(each, (1, 1))
    os.utime(old.workspace, (2**33, 2**33))
    new.stdout.write_text("its last word")
    os.utime(new.stdout, (2**32, 2**32))

    assert await folders.remove_expired(no_run_is_needed) == ("run-old",)


async def test_a_damaged_folder_is_removed_like_any_other(tmp_path: Path) -> None:
    """A damaged description does not stop retention."""
    folders = RunFolders(tmp_path, limits=FolderLimits(count=0))
    folders.create("run-1").record_end()
    (folders.create("run-2").path / "run.json").write_text("")

    assert sorted(await folders.remove_expired(no_run_is_needed)) == ["run-1", "run-2"]


async def test_unfinished_folders_of_dead_kernels_are_removed(tmp_path: Path) -> None:
    """Folders that are being made now, and foreign folders, stay."""
    folders = RunFolders(tmp_path)
    folders.create("run-1")
    for name in (".new-run-2-aa", ".new-run-3-bb", ".gone-run-4-cc", ".somebody's"):
        (folders.root / name).mkdir()
    os.utime(folders.root / ".new-run-2-aa", (1, 1))

    assert await folders.remove_expired(needs_one_of({"run-1"})) == ()

    assert sorted(each.name for each in folders.root.iterdir()) == [".new-run-3-bb", ".somebody's", "run-1"]


@pytest.mark.parametrize("options", [{"days": -1}, {"days": float("nan")}, {"count": -1}, {"bytes": -1}])
def test_invalid_limits_are_refused(options: dict[str, int]) -> None:
    """The refusal names the limit."""
    with pytest.raises(InvalidValue, match=next(iter(options))):
        FolderLimits(**options)


def test_sockets_of_proxies_and_ports_are_removed_and_nothing_else(folders: RunFolders) -> None:
    """A plain file of that name stays, and so does a guest's socket in its workspace."""
    first, other = folders.create("run-1"), folders.create("run-2")
    socket_names = ("proxy.sock", "ports/web.sock")
    for path in (folder / name for folder in (first.path, first.workspace) for name in socket_names):
        path.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, inside(path.parent):
            listener.bind(path.name)
    (other.path / "proxy.sock").write_text("a file")
    (other.path / "ports").symlink_to(first.workspace / "ports")

    folders.remove_sockets()

    assert not (first.path / "proxy.sock").exists()
    assert (first.workspace / "proxy.sock").is_socket()
    assert not first.ports.exists()
    assert (first.workspace / "ports" / "web.sock").is_socket()
    assert (other.path / "proxy.sock").read_text() == "a file"
