"""A client among strangers: to whom it sends its key, and how it treats answers that no ramet sends."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ramet
from ramet.core.errors import Denied, Gone, InvalidValue, NotYours, ProtocolError
from ramet.core.events import TurnStarted, encode
from ramet.services.client import retry
from ramet.services.client.errors import Refused, error_of
from tests.support.http import Answer, Request, serve
from tests.support.serving import serving

#: Listens as another user, and tells what each connection has said to it.
STRANGER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
listener.listen()  # From now on the kernel knows whose it is.
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    print(connection.recv(65536), flush=True)
    connection.close()
"""


@asynccontextmanager
async def listen_as(path: pathlib.Path, user: int) -> AsyncIterator[asyncio.StreamReader]:
    """Start a process that listens as the user; yield what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STRANGER, path, str(user), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listens\n"
        yield process.stdout
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
async def test_the_client_sends_nothing_to_another_users_socket(folder: pathlib.Path) -> None:
    """A process of another user in place of the server receives no byte; the client raises Denied."""
    path = folder / "serve.sock"
    async with listen_as(path, 65_534) as received_lines, ramet.connect(path, "op_secret") as client:
        for ask in (client.list_teams(), anext(client.turn("agent-1", b"hello"))):
            with pytest.raises(Denied, match="user 65534"):
                await ask
            assert await received_lines.readline() == b"b''\n"


async def test_the_client_sends_its_key_to_a_socket_of_this_user(folder: pathlib.Path) -> None:
    """A process of this user receives the key (the control of the test above)."""
    path = folder / "serve.sock"
    async with listen_as(path, os.geteuid()) as received_lines, ramet.connect(path, "op_secret") as client:
        with pytest.raises(Gone):
            await client.list_teams()
        assert b"op_secret" in await received_lines.readline()


@pytest.mark.parametrize("key", ["with\nline", "schlüssel", "\x00"], ids=["line", "umlaut", "nul"])
async def test_an_invalid_key_is_refused_before_connecting(folder: pathlib.Path, key: str) -> None:
    """The error names the field, and not the value."""
    with pytest.raises(InvalidValue, match="key") as refusal:
        ramet.connect(folder / "none.sock", key)
    assert key not in str(refusal.value)
    async with ramet.connect(folder / "none.sock", "fine") as client:
        with pytest.raises(InvalidValue, match="key"):
            await client.list_teams(key=key)


async def test_an_unreadable_token_file_counts_as_no_key(folder: pathlib.Path) -> None:
    """The server then says that a key is needed."""
    async with serving(folder) as echo_server:
        token = pathlib.Path(echo_server.server.listen_address).with_name("operator-token")
        token.write_bytes(b"\xff\xfe")
        async with ramet.connect(echo_server.server.listen_address) as client:
            with pytest.raises(Exception, match="a key is needed"):
                await client.list_teams()


@pytest.mark.parametrize("name", ["__class__", "__dict__", "args", "with_traceback", "__cause__"])
def test_a_problem_document_sets_only_the_fields_of_its_error(name: str) -> None:
    """Python's own attribute names in a document change nothing."""
    error = error_of(
        b'{"type": "urn:ramet:problem:not-yours", "detail": "no", "kind": "team", "%s": 1}' % name.encode(), 404
    )

    assert isinstance(error, NotYours)
    assert (error.args, error.kind, error.__cause__) == (("no",), "team", None)
    assert callable(error.with_traceback)


@pytest.mark.parametrize(
    "event",
    [
        "id: x:²\nevent: chunk\ndata: a",
        "id: x\nevent: other\ndata: a",
        "event: error\ndata: a",
        "id: \nevent: event\ndata: 1",
    ],
    ids=["number", "event", "problem", "cursor"],
)
async def test_an_invalid_stream_raises_protocol_error(event: str) -> None:
    """The client raises ProtocolError, and no other error."""

    async def strange(request: Request, answer: Answer) -> None:
        await answer.start_stream()
        answer._writer.write(b"%x\r\n%s\n\n\r\n" % (len(event.encode()) + 2, event.encode()))
        await answer.end_stream()

    async with serve(strange) as url, ramet.connect(url, "key") as client:
        stream = client.events("a") if "event: event" in event else client.read_turn("a", "x")
        with pytest.raises(ProtocolError):
            _ = [each async for each in stream]
        await stream.aclose()


EVENT = encode(TurnStarted(root="r", run="r", path="main", agent="a", turn=1)).decode()
NOT_NOW = [
    (503, "urn:ramet:problem:service-unavailable", "the kernel that has it is away"),
    (503, "urn:ramet:problem:taken-over", "agent 'a' is another kernel's by now"),
    (502, "", "no such server"),
]


@pytest.mark.parametrize("kind", ["turn", "agent", "run"])
async def test_a_stream_continues_once_a_kernel_answers_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream breaks with its kernel; the client asks again through several 502 and 503 answers."""
    monkeypatch.setattr(retry, "_AWAY_S", 0)
    requests = []

    async def lost_and_back(request: Request, answer: Answer) -> None:
        requests.append((request.method, request.path.partition("after=")[2]))
        if 1 < len(requests) <= 1 + len(NOT_NOW):
            status, type, detail = NOT_NOW[len(requests) - 2]
            return await answer.send(status, {"type": type, "status": status, "detail": detail})
        of = "t:" if kind == "turn" else ""
        await answer.start_stream()
        await answer.event(f"{EVENT}\nid: {of}{len(requests)}", "chunk" if kind == "turn" else "event")
        if len(requests) > 1:
            await answer.event(f"\nid: {of}{len(requests) + 1}", "done")
            await answer.end_stream()
        else:
            answer.break_off()

    async with serve(lost_and_back) as url, ramet.connect(url, "key") as client:
        match kind:
            case "turn":
                numbers = [each.number async for each in client.turn("a", b"{}")]
            case "agent":
                numbers = [each.cursor async for each in client.events("a")]
            case _:
                numbers = [each.cursor async for each in client.kernel.events("r", follow=True)]

    assert numbers == [1, 5, *([6] if kind == "turn" else [])]
    assert [method for method, _ in requests] == ["POST" if kind == "turn" else "GET", *["GET"] * 4]
    assert [after.partition("&")[0] for _, after in requests[1:]] == ["1"] * 4


async def test_a_410_answer_is_not_repeated() -> None:
    """The server says that the stream has ended permanently."""
    requests = []

    async def gone(request: Request, answer: Answer) -> None:
        requests.append(request.method)
        await answer.send(410, {"type": "urn:ramet:problem:gone", "detail": "it has ended"})

    async with serve(gone) as url, ramet.connect(url, "key") as client:
        with pytest.raises(Gone, match="it has ended"):
            _ = [each async for each in client.events("a")]
    assert requests == ["GET"]


async def test_a_refused_turn_is_not_repeated() -> None:
    """The client does not repeat a POST after a 503; its caller has to decide."""
    requests = []

    async def away(request: Request, answer: Answer) -> None:
        requests.append(request.method)
        await answer.send(503, {"type": "urn:ramet:problem:service-unavailable", "detail": "come again"})

    async with serve(away) as url, ramet.connect(url, "key") as client:
        with pytest.raises(Refused, match="come again"):
            _ = [each async for each in client.turn("a", b"{}")]
    assert requests == ["POST"]
