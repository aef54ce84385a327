"""Tests of what stays read-only in a writable mount, and of the folders that no run may write to."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.writable_mounts import protected_entries
from ramet.isolation.writable_mounts.host_code import HostCode, check_host_code, host_code
from ramet.isolation.writable_mounts.placeholders import Placeholders
from ramet.isolation.writable_mounts.protected_entries import ProtectedEntries, find_protected
from ramet.isolation.writable_mounts.refusals import check_writable
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Refused, replace_grant
from tests.support.backends import open_backend_or_skip

NO_CODE = HostCode((), ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with repositories and settings at several depths."""
    folder = tmp_path.resolve() / "project"
    for name in (".git/hooks", "a/b/.git", "bare/objects", "bare/refs", "bare/hooks/.git", ".vscode", "a/.vscode"):
        (folder / name).mkdir(parents=True)
    (folder / "ramet.yaml").write_text("")
    (folder / "a/empty/.git").mkdir(parents=True)
    for name in ("bare/HEAD", "a/.git", "a/b/.git/config", ".envrc", "a/HEAD", "a/refs"):
        (folder / name).write_text("")
    (folder / ".ramet/worktrees/one/.git").mkdir(parents=True)
    return folder


def find(folder: Path, *nested: str, code: HostCode = NO_CODE) -> ProtectedEntries:
    return find_protected("/mount", str(folder), nested, code)


def test_repositories_are_found_at_any_depth_and_settings_at_the_top(folder: Path) -> None:
    """A folder `.ramet` is covered in any mount; what lies in a repository needs no protection of its own.

    An empty `.git` is no repository.
    """
    assert find(folder) == ((".envrc", ".git", ".vscode", "a/.git", "a/b/.git", "bare", "ramet.yaml"), False)


def test_the_search_ends_at_nested_mounts(folder: Path) -> None:
    """A nested mount is searched on its own."""
    assert find(folder, "a").paths == (".envrc", ".git", ".vscode", "bare", "ramet.yaml")


@pytest.mark.parametrize("name", [".git", "a/c/.git", ".GIT", ".ramet", ".envrc", "a/.ramet"])
def test_a_link_in_place_of_an_entry_to_protect_is_refused(tmp_path: Path, name: str) -> None:
    """No mount can cover a link, and a guest could replace it."""
    link = tmp_path.resolve() / "folder" / name
    link.parent.mkdir(parents=True)
    link.symlink_to("elsewhere")

    with pytest.raises(InvalidValue, match="symbolic link") as refusal:
        find(tmp_path.resolve() / "folder")

    assert (refusal.value.field, refusal.value.value) == ("writable_mounts", "/mount")


@pytest.mark.parametrize("limit", ["MOST_FOLDERS", "MOST_ENTRIES", "MOST_FOUND", "MOST_S"])
def test_a_writable_mount_above_a_search_limit_is_refused(
    folder: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the mount and the limit."""
    monkeypatch.setattr(protected_entries, limit, 0 if limit == "MOST_S" else 2)

    with pytest.raises(InvalidValue, match=r"more than [02] ") as refusal:
        find(folder)

    assert (refusal.value.field, refusal.value.value) == ("writable_mounts", "/mount")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_searched_is_refused(folder: Path) -> None:
    """A guest of the same user could open it again."""
    (folder / "a").chmod(0)
    try:
        with pytest.raises(InvalidValue, match="cannot be searched"):
            find(folder)
    finally:
        (folder / "a").chmod(0o700)


# ---- code of the host -----------------------------------------------------------------------------------------------


def test_searched_folders_and_installed_code_in_a_mount_are_protected(folder: Path) -> None:
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    code = HostCode((str(folder / "venv"),), (str(folder / "venv" / "bin"), str(folder / "lib"), "/usr/bin", "/none"))

    assert {"venv", "lib"} <= set(find(folder, code=code).paths)


@pytest.mark.parametrize("place", ["", "missing/bin", "link", "link/bin"])
def test_a_searched_folder_that_a_run_could_make_or_exchange_is_refused(folder: Path, place: str) -> None:
    """Only a folder that exists, without a link on its path, can be kept read-only."""
    (folder / "real" / "bin").mkdir(parents=True)
    (folder / "link").symlink_to("real")

    with pytest.raises(InvalidValue, match="searches") as refusal:
        find(folder, code=HostCode((), (str(folder / place).rstrip("/"),)))

    assert (refusal.value.field, refusal.value.value) == ("writable_mounts", "/mount")


def test_a_folder_in_installed_code_is_refused() -> None:
    inner = Path(sys.prefix).resolve() / "lib"

    with pytest.raises(InvalidValue, match="holds the Python"):
        check_host_code("/mount", str(inner), host_code())


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[BackendFixture]:
    async with open_backend_or_skip(BwrapBackend(tmp_path / "runs", parked_count=1), tmp_path) as site:
        yield site


async def test_a_guest_does_not_change_a_module_that_the_host_imports(
    site: BackendFixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of sys.path in a writable mount is read-only inside, and the rest is writable."""
    (folder / "lib").mkdir()
    monkeypatch.syspath_prepend(str(folder / "lib"))
    assert str(folder / "lib") in host_code().searched

    async with site.start_guest(grant=replace_grant(GRANT, writable_mounts=(str(folder),))) as guest:
        with pytest.raises(Refused, match="EROFS"):
            await guest.ask("write", path=str(folder / "lib" / "json.py"), text="planted")
        await guest.ask("write", path=str(folder / "a" / "json.py"), text="planted")

    assert (folder / "a" / "json.py").read_text() == "planted"
    assert list((folder / "lib").iterdir()) == []


def test_a_folder_that_holds_the_workspaces_is_refused(tmp_path: Path) -> None:
    """Only those in a folder `.ramet` can be covered with what belongs to them."""
    folder = tmp_path.resolve()

    with pytest.raises(InvalidValue, match="folders of runs"):
        check_writable({"/mount": str(folder)}, str(folder / "state" / "runs"))

    check_writable({"/mount": str(folder)}, str(folder / ".ramet" / "runs"))


# ---- placeholders ---------------------------------------------------------------------------------------------------


def test_a_placeholder_is_made_and_removed_once(tmp_path: Path) -> None:
    """The last release removes it."""
    placeholders, source = Placeholders(), str(tmp_path.resolve())
    placeholders.acquire("/mount", source)
    placeholders.acquire("/mount", source)

    placeholders.release(source)
    assert (tmp_path / ".git").is_dir()
    placeholders.release(source)

    assert not (tmp_path / ".git").exists()


def test_a_placeholder_of_another_kernel_is_not_removed(tmp_path: Path) -> None:
    """Its sandboxes would lose the mount that covers it."""
    first, second, source = Placeholders(), Placeholders(), str(tmp_path.resolve())
    first.acquire("/mount", source)
    second.acquire("/mount", source)

    first.release(source)

    assert (tmp_path / ".git").is_dir()
    second.release(source)


def test_a_repository_that_the_user_makes_meanwhile_is_kept(tmp_path: Path) -> None:
    placeholders, source = Placeholders(), str(tmp_path.resolve())
    placeholders.acquire("/mount", source)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main")

    placeholders.release(source)

    assert (tmp_path / ".git" / "HEAD").read_text() == "ref: refs/heads/main"


def test_a_placeholder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    placeholders, source = Placeholders(), str(tmp_path.resolve())
    placeholders.acquire("/mount", source)
    (tmp_path / ".git").rmdir()

    placeholders.acquire("/mount", source)
    placeholders.release(source)
    assert (tmp_path / ".git").is_dir()
    placeholders.release(source)

    assert not (tmp_path / ".git").exists()


def test_a_placeholder_that_another_process_locks_is_refused(tmp_path: Path) -> None:
    """Without the lock another kernel could remove it."""
    (tmp_path / ".git").mkdir()
    other = os.open(tmp_path / ".git", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InvalidValue, match="lock") as refusal:
            Placeholders().acquire("/mount", str(tmp_path.resolve()))
    finally:
        os.close(other)

    assert refusal.value.field == "writable_mounts"
