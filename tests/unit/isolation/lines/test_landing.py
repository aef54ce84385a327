"""Tests of the kernel's listener with real TLS: which pods are admitted, and which resources strangers can use."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import ssl
import stat
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, MissingExtra, ProtocolError
from ramet.isolation.transport import certificates, join_token
from ramet.isolation.transport.certificates import ServerIdentity, client_context
from ramet.isolation.transport.dialer import Backoff, open_dialer
from ramet.isolation.transport.join_token import KEY_HEADER, JoinToken
from ramet.isolation.transport.listener import PATH, REFUSAL, ListenerLimits, PodListener
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine
from ramet.wire import websocket
from ramet.wire.frames import Frame
from tests.support.waiting import eventually

NO_TIMEOUT = LineTimeouts(give_up_s=None)
SHORT_BACKOFF = Backoff(first_s=0.01, most_s=0.05)


@pytest.fixture(scope="module")
def identity() -> ServerIdentity:
    return certificates.make(["127.0.0.1", "kernel.test"])


@asynccontextmanager
async def open_listener(identity: ServerIdentity, port: int = 0, **settings: object) -> AsyncIterator[PodListener]:
    async with PodListener("127.0.0.1", port, identity.context, **settings) as landing:  # type: ignore[arg-type]
        yield landing


def invite(landing: PodListener, identity: ServerIdentity, key: str, pod: str = "uid-1") -> JoinToken:
    return JoinToken(url=f"wss://127.0.0.1:{landing.port}{PATH}", ca=identity.ca, key=key, pod=pod)


async def send_request(landing: PodListener, identity: ServerIdentity, request: bytes) -> tuple[bytes, bytes]:
    """Return the head of the listener's answer, and the rest until it closes if it refuses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", landing.port, ssl=client_context(identity.ca))
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        return head, b"" if b" 101 " in head else await reader.read()
    finally:
        writer.transport.abort()


def request(key: str, pod: str = "uid-1", path: str = PATH) -> bytes:
    return websocket.request("kernel", path, bytes(16), {"Authorization": f"Bearer {key}", "Ramet-Pod": pod})


async def obtain_next_key(landing: PodListener, identity: ServerIdentity, key: str, pod: str = "uid-1") -> str:
    """Use a key, and disconnect before the first message; return the next key."""
    head, _ = await send_request(landing, identity, request(key, pod))
    return websocket.read_head(head).headers[KEY_HEADER]


async def test_a_pod_connects_with_its_join_key_and_frames_pass(identity: ServerIdentity) -> None:
    """The pod trusts the TLS certificate because of its Secret."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        async with open_dialer(invite(landing, identity, key)) as machine:
            await machine.send(Frame(b"hello", bytes(3_000_000)))
            await kernel.send(Frame(b"start"))
            assert await kernel.receive() == Frame(b"hello", bytes(3_000_000))
            assert await machine.receive() == Frame(b"start")
        assert await kernel.receive() is None


async def test_every_connection_needs_another_key(identity: ServerIdentity) -> None:
    """An earlier key becomes invalid only once the next has arrived, so a lost answer locks no pod out."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        join = landing.expect("uid-1", kernel, join_s=60)
        next_key = await obtain_next_key(landing, identity, join)
        assert await obtain_next_key(landing, identity, next_key) != next_key
        # The join key is void now, as who used the other has had the answer to it.
        assert (await send_request(landing, identity, request(join)))[0] + b"no\n" == REFUSAL

        repeated_token = landing.expect("uid-1", kernel, join_s=60)
        assert (await send_request(landing, identity, request(next_key)))[0] + b"no\n" == REFUSAL
        async with open_dialer(invite(landing, identity, repeated_token)):
            await eventually(lambda: kernel.connections and landing._join_keys._pods["uid-1"].join_by is None)
            assert len(landing._join_keys._pods["uid-1"].hashes) == 1
            assert (await send_request(landing, identity, request(repeated_token)))[0] + b"no\n" == REFUSAL
            assert kernel.is_connected


REFUSED_REQUESTS = {
    "forged": request("A" * 43),
    "empty": request(""),
    "truncated": b"{join:-1}",
    "longer": b"{join}A",
    "another pod's": b"{other}",
    "of a pod that nobody expects": request("A" * 43, "uid-9"),
    "expired": b"{expired}",
    "of a pod that is gone": b"{gone}",
    "of a line that has ended": b"{ended}",
    "another path": b"{join}/other",
    "another method": b"{join}POST",
    "no websocket": b"GET /line HTTP/1.1\r\nHost: kernel\r\n\r\n",
    "no http": b"\0\x01\x02\r\n\r\n",
    "a head without end": b"GET /line HTTP/1.1\r\n" + b"A: " + b"x" * 70_000,
}


async def test_every_refused_connection_gets_one_answer(identity: ServerIdentity) -> None:
    """Attack 71: all refusals have equal bytes, and the valid key stays valid after them."""
    kernel, ended_line = ResumingLine(patience=NO_TIMEOUT), ResumingLine(patience=NO_TIMEOUT)
    await ended_line.close()
    async with open_listener(identity) as landing:
        keys = {
            "other": landing.expect("uid-2", kernel, join_s=60),
            "expired": landing.expect("uid-3", kernel, join_s=-1),
            "gone": landing.expect("uid-4", kernel, join_s=60),
            "ended": landing.expect("uid-5", ended_line, join_s=60),
            "join": landing.expect("uid-1", kernel, join_s=60),
        }
        landing.forget("uid-4")
        tries = REFUSED_REQUESTS | {
            "truncated": request(keys["join"][:-1]),
            "longer": request(keys["join"] + "A"),
            "another pod's": request(keys["other"]),
            "expired": request(keys["expired"], "uid-3"),
            "of a pod that is gone": request(keys["gone"], "uid-4"),
            "of a line that has ended": request(keys["ended"], "uid-5"),
            "another path": request(keys["join"], path="/other"),
            "another method": request(keys["join"]).replace(b"GET", b"POST", 1),
        }

        answers = {name: b"".join(await send_request(landing, identity, request)) for name, request in tries.items()}

        assert answers == dict.fromkeys(REFUSED_REQUESTS, REFUSAL)
        assert await obtain_next_key(landing, identity, keys["join"])


async def read_to_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the bytes that arrive until the other end closes."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_connections_above_the_limit_for_strangers_are_closed(identity: ServerIdentity) -> None:
    """Attack 74. A pod that has shown its key does not count, and is not disturbed."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity, caps=ListenerLimits(strangers_of_address=2, handshake_s=600)) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        async with open_dialer(invite(landing, identity, key), backoff=SHORT_BACKOFF) as machine:
            await eventually(lambda: kernel.connections)
            silent = [await asyncio.open_connection("127.0.0.1", landing.port) for _ in range(2)]
            for _ in range(5):
                assert await read_to_end(*await asyncio.open_connection("127.0.0.1", landing.port)) == b""
            await machine.send(Frame(b"still here"))
            assert await kernel.receive() == Frame(b"still here")
            assert kernel.connections == 1
            for reader, writer in silent:
                assert not reader.at_eof()
                writer.transport.abort()


async def test_a_silent_or_slow_connection_is_closed(
    identity: ServerIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack 73: the connection is closed before TLS or inside a request, and nothing is logged."""
    caplog.set_level(logging.WARNING)
    async with open_listener(identity, caps=ListenerLimits(handshake_s=2.0)) as landing:
        silent = await asyncio.open_connection("127.0.0.1", landing.port)
        slow = await asyncio.open_connection("127.0.0.1", landing.port, ssl=client_context(identity.ca))
        slow[1].write(b"GET /li")
        assert await read_to_end(*silent) == b""
        assert await read_to_end(*slow) == b""
    assert not caplog.records


@asynccontextmanager
async def admitted_pod(landing: PodListener, identity: ServerIdentity, key: str) -> AsyncIterator[asyncio.StreamWriter]:
    """Yield the connection of an admitted pod that may send any bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", landing.port, ssl=client_context(identity.ca))
    try:
        writer.write(request(key))
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield writer
        assert await read_to_end(reader, writer) is not None
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    "data",
    [
        websocket.pack(websocket.BINARY, b"no packet", b"mask"),
        websocket.pack(websocket.BINARY, b"not masked"),
        b"\x82\xff" + struct.pack("!Q", 2**31) + b"mask",
        b"\x82\xff" + struct.pack("!Q", 2**64 - 1) + b"mask",
    ],
    ids=["no packet", "not masked", "2 GiB", "all there is"],
)
async def test_a_pod_that_breaks_the_protocol_loses_its_line(identity: ServerIdentity, data: bytes) -> None:
    """Attack 72: the first impossible header ends the line, the reader gets an error, and the key becomes invalid."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        async with admitted_pod(landing, identity, key) as writer:
            writer.write(data)
        with pytest.raises(ProtocolError):
            await kernel.receive()
        assert await kernel.receive() is None
        assert b"".join(await send_request(landing, identity, request(key))) == REFUSAL


async def test_an_unfinished_message_ends_its_connection(
    identity: ServerIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 73 by an admitted pod. The line stays for a better connection."""
    monkeypatch.setattr("ramet.isolation.transport.websocket.allowance_s", lambda size: 0.05)
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        async with admitted_pod(landing, identity, key) as writer:
            writer.write(websocket.pack(websocket.BINARY, bytes(1000), b"mask")[:-1])
        await eventually(lambda: not kernel.is_connected)
        assert not kernel.has_ended
    await kernel.close()


async def test_a_machine_trusts_its_kernel_and_no_other(identity: ServerIdentity) -> None:
    """With another authority or another name the machine sends nothing, and gives up at last."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    brief = LineTimeouts(give_up_s=0.3)
    for presented, trusted in (
        (certificates.make(["127.0.0.1"]), identity),
        ((other := certificates.make(["127.0.0.2", "localhost"])), other),
    ):
        async with open_listener(presented) as landing:
            key = landing.expect("uid-1", kernel, join_s=60)
            async with open_dialer(invite(landing, trusted, key), patience=brief, backoff=SHORT_BACKOFF) as machine:
                assert await machine.receive() is None
            assert not kernel.connections
    await kernel.close()


async def test_tls_below_1_2_is_refused(identity: ServerIdentity) -> None:
    """Both sides require TLS 1.2 or newer."""
    async with open_listener(identity) as landing:
        old = client_context(identity.ca)
        assert old.minimum_version == identity.context.minimum_version == ssl.TLSVersion.TLSv1_2
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", landing.port, ssl=old)


async def test_keys_are_stored_as_hashes_and_never_shown(
    identity: ServerIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    """No key is in memory, in a log, or in the representation of an object."""
    caplog.set_level(logging.DEBUG)
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        asking = invite(landing, identity, key)
        async with open_dialer(asking):
            await eventually(lambda: kernel.connections)
        hashes = landing._join_keys._pods["uid-1"].hashes
        text = repr((hashes, asking, vars(landing), caplog.text))
    assert key not in text
    assert all(len(each) == hashlib.sha256().digest_size for each in hashes)


def test_a_join_token_is_read_from_a_mounted_secret(tmp_path: Path) -> None:
    """The error names a missing or broken file, and never shows its content."""
    join_token_sent = JoinToken(
        url="wss://10.0.0.1:7443/line", ca="-----BEGIN…".replace("…", ""), key="k" * 43, pod="uid-1"
    )
    for name, text in join_token.secret_data(join_token_sent).items():
        (tmp_path / name).write_text(text + "\n")

    assert join_token.read(tmp_path) == join_token_sent
    (tmp_path / join_token.POD).unlink()
    assert join_token.read(tmp_path, pod="uid-1") == join_token_sent
    (tmp_path / join_token.KEY).write_bytes(b"\xffsecret")
    with pytest.raises(InvalidValue) as refusal:
        join_token.read(tmp_path)
    assert "join-key" in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("url", ["ws://h/line", "https://h/line", "wss://", "wss://u:p@h/", "wss://h:0/", "wss://h:x/"])
async def test_an_url_that_cannot_be_dialled_is_refused(identity: ServerIdentity, url: str) -> None:
    """The refusal comes before any connection."""
    with pytest.raises(InvalidValue):
        async with open_dialer(JoinToken(url=url, ca=identity.ca, key="k", pod="u")):
            pass


async def test_a_kernel_reuses_the_authority_in_its_folder(tmp_path: Path) -> None:
    """The authority stays for another address; only its user can read the key, and no other file is left."""
    first = certificates.make(["127.0.0.2"], tmp_path / "line")
    second = certificates.make(["127.0.0.1"], tmp_path / "line")

    assert first.ca == second.ca
    (file,) = (tmp_path / "line").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with open_listener(second) as landing:
        assert b"".join(await send_request(landing, first, request("x"))) == REFUSAL


def test_an_authority_without_names_or_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing extra, or the missing names."""
    with pytest.raises(InvalidValue, match="names"):
        certificates.make([])
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(MissingExtra, match="kubernetes"):
        certificates.make(["localhost"])


def test_an_invalid_certificate_of_the_operator_is_refused(tmp_path: Path) -> None:
    """The error names the file that is not valid."""
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(InvalidValue, match=r"no\.pem"):
        certificates.from_files(*(tmp_path / "no.pem",) * 3)


# ---- a machine of its own -------------------------------------------------------------------------------------------

MACHINE = """
import asyncio, pathlib, sys
from ramet.isolation.transport import join_token as invitation
from ramet.isolation.transport.dialer import Backoff, open_dialer
from ramet.wire.frames import Frame

async def run():
    backoff = Backoff(first_s=0.01, most_s=0.05)
    async with open_dialer(invitation.read(pathlib.Path(sys.argv[1])), backoff=backoff) as line:
        for number in range(300):
            await line.send(Frame(b"%d" % number, bytes(50_000)))
        while (frame := await line.receive()) is not None:
            await line.send(frame)

asyncio.run(run())
"""


async def test_another_process_reconnects_after_every_break(identity: ServerIdentity, tmp_path: Path) -> None:
    """Each frame arrives once and in order, over many connections."""
    kernel = ResumingLine(patience=NO_TIMEOUT)
    async with open_listener(identity) as landing:
        key = landing.expect("uid-1", kernel, join_s=60)
        for name, text in join_token.secret_data(invite(landing, identity, key)).items():
            (tmp_path / name).write_text(text)
        machine = await asyncio.create_subprocess_exec(sys.executable, "-c", MACHINE, str(tmp_path))
        try:
            numbers = []
            for number in range(300):
                frame = await kernel.receive()
                assert frame is not None
                numbers.append(int(frame.control))
                if number % 60 == 59 and kernel._transport is not None:
                    kernel._transport.abort()
            assert numbers == list(range(300))
            echoed = Frame(b"echo", os.urandom(100_000))
            await kernel.send(echoed)
            assert await kernel.receive() == echoed
            assert kernel.connections > 3
            await kernel.close()
            assert await machine.wait() == 0
        finally:
            if machine.returncode is None:
                machine.kill()
                await machine.wait()


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_of_any_age_ends_with_the_listener(identity: ServerIdentity, turns: int) -> None:
    """The listener closes also a connection that it has accepted, and not begun to serve."""
    with socket.socket() as client:
        client.setblocking(False)
        async with open_listener(identity) as landing:
            with contextlib.suppress(BlockingIOError):
                client.connect(("127.0.0.1", landing.port))
            for _ in range(turns):
                await asyncio.sleep(0)

        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):  # It was never accepted.
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
