"""Tests of the launcher: root becomes an ordinary user who reaches the needed paths and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ramet.isolation import python_runtime
from ramet.isolation.zygote import packets
from ramet.isolation.zygote.launcher import Launch
from tests.support.users import own_user

USER = own_user()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has anybody else to become")

VIEW_PROGRAM = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[1])[:1]
from ramet.isolation.zygote.launcher import drop_privileges
shown = json.loads(sys.argv[2])
drop_privileges(shown["user"], shown["user"], shown["paths"], shown["granted"], shown["sources"])
def look(path):
    try:
        return sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()
    except OSError as error:
        return type(error).__name__
def write(path):
    try:
        open(path, "a").close()
        return "written"
    except OSError as error:
        return os.strerror(error.errno)
seen = {path: look(path) for path in shown["look"]}
print(json.dumps({"seen": seen, "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
                  "written": {path: write(path) for path in shown["write"]}}))
"""


def view_of_user(
    *,
    paths: list[Path],
    look: list[Path],
    granted_paths: list[Path] | None = None,
    write: list[Path] | None = None,
    sources: dict[Path, Path] | None = None,
) -> Any:
    """Return what the ordinary user sees whom root became, with access to `paths`."""
    ran = run_as_user(paths=paths, look=look, granted_paths=granted_paths, write=write, sources=sources)
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


def run_as_user(
    *,
    paths: list[Path],
    look: list[Path],
    granted_paths: list[Path] | None = None,
    write: list[Path] | None = None,
    sources: dict[Path, Path] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a process of root that becomes an ordinary user and looks at paths."""
    runtime = python_runtime.find()
    request = {
        "user": USER,
        "paths": [*runtime.folders, *map(str, paths)],
        "granted": [*map(str, granted_paths or [])],
        "look": [*map(str, look)],
        "write": [*map(str, write or [])],
        "sources": {str(path): str(source) for path, source in (sources or {}).items()},
    }
    return subprocess.run(
        [sys.executable, "-I", "-c", VIEW_PROGRAM, json.dumps(runtime.path), json.dumps(request)],
        capture_output=True,
        check=False,
        timeout=180,
        extra_groups=[USER + 1],
    )


def make_folder(path: Path, mode: int = 0o755, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
        (path / name).chmod(0o644)
    path.chmod(mode)
    return path


@needs_root
def test_a_process_that_drops_root_cannot_regain_it(tmp_path: Path) -> None:
    assert view_of_user(paths=[], look=[])["ids"] == [USER] * 6


@needs_root
def test_a_needed_folder_below_a_private_one_is_reachable_alone(tmp_path: Path) -> None:
    closed_folder = make_folder(tmp_path / "home", 0o700, secret="secret")
    needed = make_folder(closed_folder / "needed", 0o755, file="text")
    other = make_folder(closed_folder / "other", 0o755, file="text")

    result = view_of_user(
        paths=[needed], look=[needed / "file", other / "file", closed_folder / "secret", closed_folder]
    )["seen"]

    assert result == {
        str(needed / "file"): "text",
        str(other / "file"): "FileNotFoundError",
        str(closed_folder / "secret"): "FileNotFoundError",
        str(closed_folder): ["needed"],
    }
    assert (closed_folder / "secret").read_text() == "secret", "the host's own folder is as it was"


@needs_root
def test_nested_needed_folders_below_nested_private_ones_are_reachable(tmp_path: Path) -> None:
    outer = make_folder(tmp_path / "outer", 0o700)
    inner = make_folder(outer / "inner", 0o700)
    deep = make_folder(inner / "deep", 0o755, file="text")
    below_folder = make_folder(deep / "below", 0o755, file="text")
    sibling = make_folder(outer / "beside", 0o755, file="text")

    look = [deep / "file", below_folder / "file", sibling / "file"]

    assert view_of_user(paths=[below_folder, sibling, deep], look=look)["seen"] == {str(path): "text" for path in look}


@needs_root
def test_a_single_file_can_be_needed(tmp_path: Path) -> None:
    closed_folder = make_folder(tmp_path / "home", 0o700, file="text", secret="secret")

    result = view_of_user(paths=[closed_folder / "file"], look=[closed_folder / "file", closed_folder])["seen"]

    assert result == {str(closed_folder / "file"): "text", str(closed_folder): ["file"]}


@needs_root
def test_a_folder_below_a_private_one_is_unreachable_by_default(tmp_path: Path) -> None:
    """Control for the tests above."""
    closed_folder = make_folder(tmp_path / "home", 0o700)
    file = make_folder(closed_folder / "needed", 0o755, file="text") / "file"
    assert view_of_user(paths=[], look=[file])["seen"][str(file)] == "PermissionError"


@needs_root
def test_a_granted_folder_is_readable_and_not_writable_in_any_mode(tmp_path: Path) -> None:
    """Folders of mode 0700 and files of mode 0600 of root are readable, as an ordinary user's own would be."""
    closed_folder = make_folder(tmp_path / "project", 0o700, file="text")
    (closed_folder / "file").chmod(0o600)
    below_folder = make_folder(closed_folder / "below", 0o700, file="text")

    view = view_of_user(
        paths=[closed_folder],
        granted_paths=[closed_folder],
        look=[closed_folder / "file", below_folder / "file"],
        write=[closed_folder / "file"],
    )

    assert view["seen"] == {str(closed_folder / "file"): "text", str(below_folder / "file"): "text"}
    assert view["written"] == {str(closed_folder / "file"): "Read-only file system"}
    assert (closed_folder / "file").stat().st_uid == 0


@needs_root
def test_a_workspace_inside_a_granted_folder_stays_writable(tmp_path: Path) -> None:
    """A granted project holds the workspaces, which their owners write."""
    project = make_folder(tmp_path / "project", 0o700, file="text")
    runs = make_folder(project / "runs", 0o755)
    os.chown(runs, USER, USER)

    view = view_of_user(paths=[project, runs], granted_paths=[project], look=[], write=[runs / "new", project / "new"])

    assert view["written"] == {str(runs / "new"): "written", str(project / "new"): "Read-only file system"}


@needs_root
def test_private_files_of_other_users_in_a_granted_folder_stay_hidden(tmp_path: Path) -> None:
    """Issue 16, line 8: a granted folder shows root's own files, as it shows an ordinary user's own."""
    closed_folder = make_folder(tmp_path / "project", 0o700, own="of root", others="of somebody else")
    for name in ("own", "others"):
        (closed_folder / name).chmod(0o600)
    os.chown(closed_folder / "others", USER + 7, USER + 7)

    result = view_of_user(
        paths=[closed_folder], granted_paths=[closed_folder], look=[closed_folder / "own", closed_folder / "others"]
    )["seen"]

    assert result == {str(closed_folder / "own"): "of root", str(closed_folder / "others"): "PermissionError"}


@needs_root
def test_a_granted_link_is_reachable_at_its_own_path(tmp_path: Path) -> None:
    """Issue 16, line 1: an operator's link below a private folder shows its target at the time of the grant."""
    closed_folder = make_folder(tmp_path / "home", 0o700)
    real = make_folder(tmp_path / "real", 0o700, file="text")
    (closed_folder / "link").symlink_to(real)

    result = view_of_user(
        paths=[closed_folder / "link", real],
        granted_paths=[closed_folder / "link", real],
        look=[closed_folder / "link" / "file", real / "file"],
        sources={closed_folder / "link": real, real: real},
    )["seen"]

    assert set(result.values()) == {"text"}


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_source_that_has_become_a_link_is_not_shown(tmp_path: Path, mode: int) -> None:
    """Issue 16, line 1: no process starts, whether or not the surrounding folder is private."""
    repo = make_folder(tmp_path / "repo", mode)
    keys = make_folder(tmp_path / "keys", 0o700, id="key")
    source = repo / "sub"
    source.symlink_to(keys)
    look = [source / "id", keys / "id"]

    assert "key" in view_of_user(paths=[source, keys], granted_paths=[source, keys], look=look)["seen"].values()
    ran = run_as_user(paths=[source], granted_paths=[source], look=look, sources={source: source})

    assert ran.returncode != 0
    assert b"Too many levels of symbolic links" in ran.stderr
    assert b"key" not in ran.stdout


def run_launcher(launch: Launch) -> subprocess.CompletedProcess[bytes]:
    our_end, their_end = packets.pair()
    with our_end, their_end:
        packets.send(our_end, "launch", launch)
        return subprocess.run(
            python_runtime.find().program("zygote.launcher", their_end.fileno(), their_end.fileno(), options=("-S",)),
            env={},
            pass_fds=[their_end.fileno()],
            capture_output=True,
            check=False,
            timeout=180,
        )


@needs_root
def test_nothing_is_started_as_root() -> None:
    process_result = run_launcher(
        Launch("bwrap", None, None, (), (), os.getpid(), ("/bin/echo", "started"), "/bin/echo")
    )
    assert process_result.returncode != 0
    assert b"uid 0" in process_result.stderr
    assert process_result.stdout == b""


@needs_root
def test_nothing_is_started_for_an_ended_host() -> None:
    assert run_launcher(Launch("none", USER, USER, (), (), 1, ("/bin/echo", "started"))).stdout == b""
    assert (
        run_launcher(Launch("none", USER, USER, (), (), os.getpid(), ("/bin/echo", "started"))).stdout == b"started\n"
    )


@needs_root
def test_a_private_mount_with_a_needed_folder_in_it_shows_its_files() -> None:
    """A project made by `mkdtemp` is such a mount: its `.ramet` has the folders of runs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        mount = make_folder(Path(name, "project"), 0o700, file="text")
        Path(name).chmod(0o755)
        needed = make_folder(mount / "runs", 0o755, inside="text")
        os.chown(needed, USER, USER)

        result = view_of_user(
            paths=[mount, needed],
            granted_paths=[mount],
            sources={mount: mount},
            look=[mount, mount / "file", needed],
            write=[mount / "file", needed / "new"],
        )

    assert list(result["seen"].values()) == [["file", "runs"], "text", ["inside"]]
    assert list(result["written"].values()) == ["Read-only file system", "written"]
