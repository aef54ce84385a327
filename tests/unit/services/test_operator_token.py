"""The operator's key: made once, for its user only, and never weak."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.server.operator_token import operator_token
from ramet.services.server.server import Server


def test_the_key_is_made_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    """Servers that start concurrently get the same complete key."""
    file = tmp_path / "operator-token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: operator_token(file), range(32)))

    assert len(tokens) == 1
    assert tokens.pop() == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("token", ["", "short", "x" * 600, "sixteen letters\n", "sechzehn Zeichen"])
def test_a_weak_key_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    """The error says what a key should be."""
    with pytest.raises(InvalidValue, match="token") as refusal:
        operator_token(tmp_path / "operator-token", token)
    assert token not in str(refusal.value) or not token


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Another user may have read the key already; a link is not followed."""
    file = tmp_path / "operator-token"
    operator_token(file)
    file.chmod(0o644)
    with pytest.raises(InvalidValue, match="chmod 600"):
        operator_token(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(InvalidValue, match="can be read"):
        operator_token(tmp_path / "link")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_key_file_that_is_not_regular_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A pipe would make the server wait for a writer."""
    file = tmp_path / "operator-token"
    file.mkdir(0o700) if kind == "folder" else os.mkfifo(file, 0o600)
    with pytest.raises(InvalidValue, match="regular file"):
        operator_token(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """The other user knows the key."""
    file = tmp_path / "operator-token"
    operator_token(file)
    os.chown(file, 65_534, 65_534)
    with pytest.raises(InvalidValue, match="of this user"):
        operator_token(file)


@pytest.mark.parametrize("kind", ["file", "dangling link", "somebody else's"])
async def test_a_folder_that_cannot_be_the_servers_is_refused(tmp_path: Path, kind: str) -> None:
    """The error names the folder, which stays unchanged."""
    path = tmp_path / ".ramet"
    match kind:
        case "file":
            path.write_text("mine")
        case "dangling link":
            path.symlink_to("nowhere")
        case _ if os.geteuid() == 0:
            path.mkdir()
            os.chown(path, 65_534, 65_534)
        case _:
            pytest.skip("only root can give a folder away")
    with pytest.raises(InvalidValue, match="dir"):
        await Server(tmp_path, types={}).start()
    assert not path.is_dir() or not list(path.iterdir())


async def test_only_the_server_can_write_the_folder_of_its_socket(tmp_path: Path) -> None:
    """Another user could replace the socket there."""
    path = tmp_path / ".ramet"
    path.mkdir()
    path.chmod(0o777)
    async with Server(tmp_path, types={}, listen=("127.0.0.1", 0)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_a_socket_and_an_address_together_are_refused(tmp_path: Path) -> None:
    """A server listens at one of the two."""
    with pytest.raises(InvalidValue, match="either a socket or an address"):
        Server(tmp_path, socket="a", listen=("127.0.0.1", 0))


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_package_is_reported_in_one_line(tmp_path: Path, missing: str) -> None:
    """The line gives the install command, and nothing listens."""
    program = f"import sys; sys.modules[{missing!r}] = None; from ramet.cli.main import main; sys.exit(main())"
    line = [sys.executable, "-c", program, "serve", "--dir", str(tmp_path), "--socket", str(tmp_path / "a")]
    process_result = subprocess.run(line, capture_output=True, text=True, check=False)

    assert (process_result.returncode, process_result.stdout) == (1, "")
    assert process_result.stderr.startswith("ramet: serving over HTTP needs the extra 'server'; install it with: ")
    packages = "'httptools>=0.6' 'httpx2>=2.16' 'packaging>=24' 'starlette>=1' 'uvicorn>=0.40'"
    assert process_result.stderr.endswith(f" {packages}\n")
    assert process_result.stderr.count("\n") == 1
