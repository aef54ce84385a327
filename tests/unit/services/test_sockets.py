"""Sockets of a server: its own while it runs, and never another program's."""

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.http.sockets import tcp_listener, unix_listener


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's address is at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="r") as path:
        yield Path(path)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(str(path))
        except OSError:
            return False
        return True


def test_a_socket_is_only_for_its_user_and_is_removed_at_the_end(folder: Path) -> None:
    """The mode is 0600 from the first moment, and the path can be used again."""
    path = folder / "serve.sock"
    for _ in range(2):
        listener = unix_listener(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (answers(path), listener.address) == (True, str(path))
        listener.close()
        assert [each.name for each in folder.iterdir()] == ["serve.sock.lock"]


def test_a_second_server_is_refused_and_the_first_continues(folder: Path) -> None:
    """The error names the path."""
    path = folder / "serve.sock"
    first = unix_listener(path)
    try:
        with pytest.raises(InvalidValue, match="no other server") as refusal:
            unix_listener(path)
        assert (refusal.value.field, refusal.value.value) == ("socket", str(path))
        assert answers(path)
    finally:
        first.close()


def test_another_programs_socket_is_left_alone(folder: Path) -> None:
    """The other program does not know our lock, and keeps its path."""
    path = folder / "serve.sock"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(InvalidValue, match="no other server"):
            unix_listener(path)
        assert answers(path)


def test_the_socket_of_a_killed_server_is_replaced(folder: Path) -> None:
    """The lock ended with the process, and nothing listens there."""
    path = folder / "serve.sock"
    program = "import os, sys, pathlib; from ramet.services.http.sockets import unix_listener as u"
    program += "; u(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    process = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert (process.returncode, path.is_socket(), answers(path)) == (-9, True, False)

    listener = unix_listener(path)

    assert answers(path)
    listener.close()


def test_a_file_that_is_not_a_socket_is_never_removed(folder: Path) -> None:
    """The file keeps its content."""
    path = folder / "serve.sock"
    path.write_text("mine")
    with pytest.raises(InvalidValue, match="nothing is, or an old socket"):
        unix_listener(path)
    assert path.read_text() == "mine"


def test_a_link_at_the_lock_is_not_followed(folder: Path) -> None:
    """No file is created at the link's target."""
    (folder / "serve.sock.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(InvalidValue, match="socket"):
        unix_listener(folder / "serve.sock")
    assert not (folder / "elsewhere").exists()


def test_a_long_path_or_a_missing_folder_is_refused(folder: Path) -> None:
    """The error names the path, and nothing is created."""
    with pytest.raises(InvalidValue, match="at most 100 bytes"):
        unix_listener(folder / ("x" * 100))
    with pytest.raises(InvalidValue, match="can be written to"):
        unix_listener(folder / "none" / "serve.sock")
    assert list(folder.iterdir()) == []


def test_a_replaced_listener_does_not_remove_its_successor(folder: Path) -> None:
    """Closing removes only the listener's own socket."""
    path = folder / "serve.sock"
    first = unix_listener(path)
    path.unlink()
    path.write_text("another's")

    first.close()

    assert path.read_text() == "another's"


def test_a_port_in_use_is_refused_by_name() -> None:
    """Port 0 gets any free port."""
    listener = tcp_listener("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    try:
        assert listener.address == f"http://127.0.0.1:{port}"
        with pytest.raises(InvalidValue, match="no other process") as refusal:
            tcp_listener("127.0.0.1", port)
        assert (refusal.value.field, refusal.value.value) == ("listen", f"127.0.0.1:{port}")
    finally:
        listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "\udcff"], ids=["foreign", "unknown", "bytes"])
def test_an_address_of_another_machine_is_refused_by_name(host: str) -> None:
    """An unknown host and invalid text are refused too."""
    with pytest.raises(InvalidValue, match="listen"):
        tcp_listener(host, 0)


async def test_data_sent_over_tcp_is_not_delayed() -> None:
    """TCP_NODELAY is set: otherwise each part of an answer would wait for an acknowledgement."""
    listener = tcp_listener("127.0.0.1", 0)
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        result.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(met, sock=listener.socket):
        reader, writer = await asyncio.open_connection(*listener.socket.getsockname())
        assert await reader.read() == b""
        assert await result == 1
        writer.close()
        await writer.wait_closed()
    listener.close()
