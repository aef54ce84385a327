"""Tests of Landlock in the kernel: paths without a grant are refused, also to root, and granted paths work."""

from __future__ import annotations

import pathlib
import shutil
import socket
import tempfile
from collections.abc import Iterator

import pytest

from ramet.isolation.linux import landlock
from tests.unit.isolation.linux.trying import SOURCES, AttemptResult, try_each, try_one, users

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
SYSTEM = "'/usr', '/bin', '/lib', '/lib64', sys.prefix, sys.base_prefix"


@pytest.fixture
def sandbox_folder() -> Iterator[pathlib.Path]:
    """Create a folder that any user may enter and write to, with one path of each kind."""
    ground = pathlib.Path(tempfile.mkdtemp())
    for folder in ("", "mine", "mine/a", "mine/b", "other"):
        (ground / folder).mkdir(exist_ok=True)
        (ground / folder).chmod(0o777)
    for file in ("mine/text", "other/text", "single"):
        (ground / file).write_text("text")
        (ground / file).chmod(0o666)
    for program in ("mine/program", "other/program"):
        shutil.copy("/bin/true", ground / program)
        (ground / program).chmod(0o755)
    yield ground
    shutil.rmtree(ground)


def restrict(**paths_by_kind: str) -> str:
    arguments = ", ".join(
        f"{name}=[{paths}]" if name != "tcp" else f"tcp={paths}" for name, paths in paths_by_kind.items()
    )
    return f"calls.set_no_new_privs(); landlock.restrict({arguments})"


def check_attempts(attempts: dict[str, AttemptResult], behind: str, uid: int | None) -> None:
    """Check that every attempt works without a restriction, and ends as listed with it."""
    results = dict(zip(attempts, try_each(*attempts, behind=behind, uid=uid), strict=True))
    free = dict(zip(attempts, try_each(*attempts, uid=uid), strict=True))

    assert not [attempt for attempt, result in free.items() if result not in ("done", "text", True)]
    assert results == attempts


@pytest.mark.parametrize("uid", users())
def test_paths_without_a_grant_are_refused(sandbox_folder: pathlib.Path, uid: int | None) -> None:
    own_dir, other = sandbox_folder / "mine", sandbox_folder / "other"
    check_attempts(
        {
            f"read('{other}/text')": "EACCES",
            f"os.listdir('{other}') and 'done'": "EACCES",
            f"write('{other}/text')": "EACCES",
            f"write('{other}/new')": "EACCES",
            f"os.mkdir('{other}/folder')": "EACCES",
            f"os.unlink('{other}/text'), write('{other}/text')": "EACCES",
            f"os.symlink('/', '{other}/link')": "EACCES",
            f"os.truncate('{other}/text', 1), write('{other}/text', 'text')": "EACCES",
            f"run('{own_dir}/program')": "EACCES",
            f"run('{other}/program')": "EACCES",
            "read('/etc/passwd') and 'done'": "EACCES",
            "write('/dev/null')": "EACCES",
        },
        restrict(execute=SYSTEM, write=f"'{own_dir}'"),
        uid,
    )


@pytest.mark.parametrize("uid", users())
def test_granted_paths_work(sandbox_folder: pathlib.Path, uid: int | None) -> None:
    own_dir, other = sandbox_folder / "mine", sandbox_folder / "other"
    check_attempts(
        {
            f"read('{other}/text')": "text",
            f"os.listdir('{other}') and 'done'": "done",
            f"write('{other}/text')": "EACCES",
            "run('/bin/true')": "done",
            f"run('{own_dir}/program')": "EACCES",
            f"run('{other}/program')": "EACCES",
            f"write('{own_dir}/new'), write('{own_dir}/new'), os.rename('{own_dir}/new', '{own_dir}/a/new')": "done",
            f"os.rename('{own_dir}/a/new', '{own_dir}/b/new'), os.unlink('{own_dir}/b/new')": "done",
            f"os.mkdir('{own_dir}/folder'), os.rmdir('{own_dir}/folder')": "done",
            f"os.symlink('text', '{own_dir}/link'), os.unlink('{own_dir}/link')": "done",
            f"os.mkfifo('{own_dir}/pipe'), os.unlink('{own_dir}/pipe')": "done",
            f"os.truncate('{own_dir}/text', 2)": "done",
            "write('/dev/null')": "done",
            "write('/dev/zero')": "EACCES",
        },
        restrict(read=f"'{other}'", execute=SYSTEM, write=f"'{own_dir}'", devices="'/dev/null'"),
        uid,
    )


@pytest.mark.parametrize("uid", users())
def test_a_file_can_be_granted_and_missing_paths_are_skipped(sandbox_folder: pathlib.Path, uid: int | None) -> None:
    single = sandbox_folder / "single"
    rules = restrict(
        read=f"'{sandbox_folder}/none', '{single}/below', '{sandbox_folder}/none/none'",
        execute=f"'{sandbox_folder}/other/program', {SYSTEM}",
        write=f"'{single}', '{sandbox_folder}/none'",
    )
    check_attempts(
        {
            f"read('{single}')": "text",
            f"write('{single}', 'text')": "done",
            f"run('{sandbox_folder}/other/program')": "done",
            f"read('{sandbox_folder}/other/text')": "EACCES",
        },
        rules,
        uid,
    )


def test_reading_everything_does_not_allow_execution(sandbox_folder: pathlib.Path) -> None:
    """Rules add up, so the right to read `/` must not include the right to execute below it."""
    check_attempts(
        {f"run('{sandbox_folder}/mine/program')": "EACCES", "run('/bin/true')": "done"},
        restrict(read="'/'", execute=SYSTEM),
        None,
    )


@pytest.mark.skipif(landlock.abi() < 4, reason="this Landlock knows no TCP")
@pytest.mark.parametrize("uid", users())
def test_tcp_is_refused_unless_it_is_granted(uid: int | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"socket.socket().connect({server.getsockname()!r})"
        listen = "socket.socket().bind(('127.0.0.1', 0))"

        assert try_each(connect, listen, uid=uid, staged=False) == ["done", "done"]
        assert try_each(connect, listen, behind=restrict(tcp="True"), uid=uid, staged=False) == ["done", "done"]
        assert try_each(connect, listen, behind=restrict(), uid=uid, staged=False) == ["EACCES", "EACCES"]


@pytest.mark.skipif(landlock.abi() < 6, reason="this Landlock knows no scopes")
@pytest.mark.parametrize("uid", users())
def test_sockets_by_abstract_name_and_signals_stay_inside(uid: int | None) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")  # a name of the kernel's choice
        server.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect({server.getsockname()!r})"
        outside, inside_signal = "os.kill(os.getppid(), 0)", "os.kill(os.getpid(), 0)"
        pair = "[a.send(b'x') for a in socket.socketpair()] and 'done'"
        attempts = (connect, outside, inside_signal, pair)

        assert try_each(*attempts, uid=uid, staged=False) == ["done"] * 4
        assert try_each(*attempts, behind=restrict(), uid=uid, staged=False) == ["EPERM", "EPERM", "done", "done"]


def test_restrict_returns_what_it_covers() -> None:
    version = landlock.abi()
    result = try_one("said", behind="calls.set_no_new_privs(); said = list(landlock.restrict(tcp=True))")

    assert result == [version, version >= 4, version >= 6]


def test_an_ordinary_user_cannot_restrict_without_no_new_privs() -> None:
    user = users()[-1]

    assert try_one("landlock.restrict() and 'done'", uid=user, staged=False) == "EPERM"
    assert (
        try_one("landlock.restrict() and 'done'", behind="calls.set_no_new_privs()", uid=user, staged=False) == "done"
    )


def test_no_descriptor_is_left() -> None:
    expression = "len(os.listdir('/proc/self/fd'))"
    rules = restrict(read="'/'", execute=SYSTEM, write=f"'{SOURCES}', '/none'")

    assert try_one(expression, behind=rules) == try_one(expression)
