"""Where a server listens: its own, while it lives; nobody else's, ever."""

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


def test_a_socket_is_for_its_user_alone_and_leaves_nothing(folder: Path) -> None:
    """Mode 0600 from the first moment; closing removes it, and it can be had again."""
    path = folder / "serve.sock"
    for _ in range(2):
        listener = unix_listener(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (answers(path), listener.where) == (True, str(path))
        listener.close()
        assert [each.name for each in folder.iterdir()] == ["serve.sock.lock"]


def test_a_second_server_is_refused_and_the_first_goes_on(folder: Path) -> None:
    """Nobody is pushed off; what is refused says which path."""
    path = folder / "serve.sock"
    first = unix_listener(path)
    try:
        with pytest.raises(InvalidValue, match="no other server") as refused:
            unix_listener(path)
        assert (refused.value.field, refused.value.value) == ("socket", str(path))
        assert answers(path)
    finally:
        first.close()


def test_a_strangers_socket_is_left_alone(folder: Path) -> None:
    """A program that knows nothing of our lock listens there: it keeps its place."""
    path = folder / "serve.sock"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(InvalidValue, match="no other server"):
            unix_listener(path)
        assert answers(path)


def test_what_a_killed_server_left_is_taken_over(folder: Path) -> None:
    """Its lock went with it, and nobody listens at its socket."""
    path = folder / "serve.sock"
    program = "import os, sys, pathlib; from ramet.services.http.sockets import unix_listener as u"
    program += "; u(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert (killed.returncode, path.is_socket(), answers(path)) == (-9, True, False)

    listener = unix_listener(path)

    assert answers(path)
    listener.close()


def test_what_is_no_socket_is_never_removed(folder: Path) -> None:
    """Somebody's file at that path is somebody's file."""
    path = folder / "serve.sock"
    path.write_text("mine")
    with pytest.raises(InvalidValue, match="nothing is, or an old socket"):
        unix_listener(path)
    assert path.read_text() == "mine"


def test_a_link_at_the_lock_is_not_followed(folder: Path) -> None:
    """Nor is a file made where it leads."""
    (folder / "serve.sock.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(InvalidValue, match="socket"):
        unix_listener(folder / "serve.sock")
    assert not (folder / "elsewhere").exists()


def test_a_path_that_is_too_long_or_leads_nowhere(folder: Path) -> None:
    """Both are refused by name, and nothing is made."""
    with pytest.raises(InvalidValue, match="at most 100 bytes"):
        unix_listener(folder / ("x" * 100))
    with pytest.raises(InvalidValue, match="can be written to"):
        unix_listener(folder / "none" / "serve.sock")
    assert list(folder.iterdir()) == []


def test_a_listener_that_was_replaced_removes_nothing_of_the_new_one(folder: Path) -> None:
    """Closing removes one's own socket, not whatever has its name by now."""
    path = folder / "serve.sock"
    first = unix_listener(path)
    path.unlink()
    path.write_text("another's")

    first.close()

    assert path.read_text() == "another's"


def test_an_address_that_a_stranger_holds() -> None:
    """It is refused by name; any free port is given for 0."""
    listener = tcp_listener("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    try:
        assert listener.where == f"http://127.0.0.1:{port}"
        with pytest.raises(InvalidValue, match="no other process") as refused:
            tcp_listener("127.0.0.1", port)
        assert (refused.value.field, refused.value.value) == ("listen", f"127.0.0.1:{port}")
    finally:
        listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "\udcff"], ids=["foreign", "unknown", "bytes"])
def test_an_address_of_nobody_here(host: str) -> None:
    """One that is not this machine's is refused by name."""
    with pytest.raises(InvalidValue, match="listen"):
        tcp_listener(host, 0)


async def test_what_is_written_at_an_address_is_sent_at_once() -> None:
    """An answer is written in parts: by TCP's own ways each would wait until the one before it is acknowledged."""
    listener = tcp_listener("127.0.0.1", 0)
    made: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(met, sock=listener.socket):
        reader, writer = await asyncio.open_connection(*listener.socket.getsockname())
        assert await reader.read() == b""
        assert await made == 1
        writer.close()
        await writer.wait_closed()
    listener.close()
