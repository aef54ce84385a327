"""Attacks on the server of the page, over real sockets: from other pages, other programs, and with wrong requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.types import Receive, Scope, Send

from ramet.store.sqlite.store import SqliteStore
from ramet.web.folder_api import FolderApi
from ramet.web.forwarding_api import ForwardingApi
from ramet.web.static_files import CONTENT_SECURITY_POLICY, static_files
from ramet.web.ui_server import UiServer
from tests.support.serving import short_folder
from tests.support.waiting import eventually


class Api:
    """An API that says what reached it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.open_streams = 0

    async def has_kernel(self) -> bool:
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; `/v1/stream` never ends by itself."""
        self.requests.append(f"{scope['method']} {scope['raw_path'].decode()}")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/v1/stream":
            self.open_streams += 1
            await send({"type": "http.response.body", "body": b"open", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.open_streams -= 1
        await send({"type": "http.response.body", "body": b"{}"})


class Answer(NamedTuple):
    """The status, the headers and the body of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(server: UiServer, head: str, token: str | None = None, body: str = "", **headers: str) -> Answer:
    """Send a request as bytes, as no browser would; `headers` replace the right ones, and "" leaves one out."""
    key = server.token if token is None else token
    given = {
        "host": f"127.0.0.1:{server.port}", "authorization": f"Bearer {key}" if key else "",
        "content-length": str(len(body)) if body else "", "connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    lines = [f"{head} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value), "", body]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write("\r\n".join(lines).encode("latin-1"))
        raw_head, _, raw_body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    except ConnectionError:  # The server does not read what it has refused.
        return Answer(0, {}, b"")
    finally:
        writer.close()
    first, *rest = raw_head.decode("latin-1").split("\r\n")
    return Answer(int(first.split()[1]), dict(each.lower().split(": ", 1) for each in rest), raw_body)


@asynccontextmanager
async def page(**options: Any) -> AsyncIterator[tuple[UiServer, Api]]:
    """Yield the server of a page over an API that says what reached it."""
    api = Api()
    async with UiServer(api, "a folder", **options) as server:
        yield server, api


@asynccontextmanager
async def streams(server: UiServer, count: int) -> AsyncIterator[None]:
    """Keep this number of streams open, each on a connection of its own, of which something has arrived."""
    head = (
        f"GET /v1/stream HTTP/1.1\r\nhost: localhost:{server.port}\r\nauthorization: Bearer {server.token}\r\n\r\n"
    ).encode()
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
    try:
        for reader, writer in connections:
            writer.write(head)
            await reader.readuntil(b"open")
        yield
    finally:
        for _, writer in connections:
            writer.close()


async def test_requests_of_other_pages_and_wrong_tokens_reach_nothing() -> None:
    """DNS rebinding, another origin, another port of this host, a wrong token: each is refused with its own status."""
    async with page(names=["agents.example.org"]) as (server, api):
        port, right = server.port, server.token
        refused: list[tuple[int, dict[str, str]]] = [
            (421, {"host": f"evil.example.com:{port}"}),
            (421, {"host": "evil.example.com"}),
            (421, {"host": f"127.0.0.1:{port + 1}"}),
            (421, {"host": f"localhost.:{port}"}),
            (421, {"host": f"127.0.0.1:{port}@evil.example.com"}),
            (421, {"host": f"127.0.0.1.evil.example.com:{port}"}),
            (403, {"origin": f"http://evil.example.com:{port}"}),
            (403, {"origin": "null"}),
            (403, {"origin": f"http://localhost:{port}"}),  # Another origin than that of the request's Host.
            (403, {"origin": f"http://127.0.0.1:{port + 1}"}),
            (403, {"origin": f"file://127.0.0.1:{port}"}),
            (403, {"sec_fetch_site": "cross-site"}),
            (403, {"sec_fetch_site": "same-site"}),  # A page at another port of this host.
            (403, {"sec_fetch_site": "unheard-of"}),
            (401, {"token": right[:-1]}),
            (401, {"token": right + "x"}),
            (401, {"token": "é"}),
            (401, {"token": "", "cookie": f"token={right}"}),
        ]
        for path in ("/v1/runs", "/ui/about.json"):
            for status, headers in refused:
                answer = await ask(server, f"GET {path}", **headers)
                assert answer.status == status, (path, headers, answer)
                assert answer.headers["content-type"] == "application/problem+json"
                assert json.loads(answer.body)["status"] == status
        assert api.requests == []

        for headers in (
            {"origin": f"http://127.0.0.1:{port}", "sec_fetch_site": "same-origin"},
            {"host": f"[::1]:{port}"},
            {"host": f"LocalHost:{port}", "origin": f"http://localhost:{port}"},
            {"host": "agents.example.org", "origin": "https://agents.example.org"},
            {"sec_fetch_site": "none"},
        ):
            assert (await ask(server, "GET /v1/runs", **headers)).status == 200, headers
        two_hosts = await ask(server, "GET /v1/runs HTTP/1.1\r\nhost: evil.example.com\r\nx: y\r\nz:", host="")
        assert two_hosts.status in (400, 421)


async def test_only_files_of_the_page_and_paths_of_the_api_are_served() -> None:
    """No spelling of a path leads out of the files or the API, no method is smuggled, and no head is too large."""
    async with page(read_only=True) as (server, api):
        for path in (
            "/ui/../pyproject.toml", "/ui/%2e%2e/page.py", "/ui/..%2fpage.py", "/ui//etc/passwd", "/ui/vendor/",
            "/ui/vendor/VENDORED.toml", "/ui/app.mjs%00.html", "/ui/./app.mjs", "/etc/passwd", "/metrics",
            "/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/runs/..%2f..", "/v1/runs/%00", "/v1", "/v2/runs",
        ):  # fmt: skip
            answer = await ask(server, f"GET {path}")
            # Below one part of a path, a slash is an ordinary character: the API looks for a run of that name.
            assert answer.status == 404 or path == "/v1/runs/..%2f..", path
        api.requests.clear()
        for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", "GETX"):
            for extra in ({}, {"x_http_method_override": "GET"}):
                answer = await ask(server, f"{method} /v1/runs/r1/stop?_method=GET", body="{}", **extra)
                assert answer.status in (400, 403), (method, answer)
            assert (await ask(server, f"{method} /ui/about.json", body="{}")).status in (200, 400, 405)
        smuggled = "0\r\n\r\nPOST /v1/runs/r1/stop HTTP/1.1\r\nhost: x\r\n\r\n"
        await ask(server, "GET /v1/runs", body=smuggled, transfer_encoding="chunked")
        assert [each for each in api.requests if not each.startswith("GET ")] == []

        assert (await ask(server, "GET /v1/runs", x_large="a" * 40_000)).status == 431
        assert (await ask(server, "GET /v1/runs", x_large="a" * 400_000)).status in (0, 431)
        assert (await ask(server, "GET /v1/" + "a" * 40_000)).status in (400, 431)
        assert (await ask(server, "GET /v1/runs")).status == 200


async def test_every_answer_has_the_headers_of_a_page_that_trusts_nobody() -> None:
    """Files are revalidated by the hash of their content, data is never stored, and no answer has a CORS header."""
    async with page() as (server, _):
        port = f"http://127.0.0.1:{server.port}"
        answers = [await ask(server, f"GET /ui/{name}", token="") for name in static_files()]
        answers += [
            await ask(server, "GET /ui/", token="", sec_fetch_site="cross-site"),  # A link in another page.
            await ask(server, "GET /ui/about.json"),
            await ask(server, "GET /v1/runs", origin=port),
            await ask(server, "OPTIONS /v1/runs", token="", origin=port, access_control_request_method="POST"),
            await ask(server, "GET /nothing"),
        ]
        for answer in answers:
            assert {name: answer.headers.get(name) for name in (
                "x-content-type-options", "referrer-policy", "cross-origin-opener-policy",
                "cross-origin-resource-policy",
            )} == {
                "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
                "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
            }  # fmt: skip
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert [answer.status for answer in answers[-5:]] == [200, 200, 200, 401, 404]
        assert {answer.headers["cache-control"] for answer in answers[-4:]} == {"no-store"}
        for name, answer in zip(static_files(), answers, strict=False):
            assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY.lower()
            assert answer.headers["cache-control"] == "no-cache"
            kept = await ask(server, f"GET /ui/{name}", if_none_match=answer.headers["etag"])
            assert (kept.status, kept.body) == (304, b"")
            compressed = await ask(server, f"GET /ui/{name}", accept_encoding="br, gzip")
            assert (compressed.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "accept-encoding")
            assert gzip.decompress(compressed.body) == static_files()[name].content
        assert "script-src 'self'" in CONTENT_SECURITY_POLICY
        assert not re.search("unsafe|https?:|[*]", CONTENT_SECURITY_POLICY)
        types = {name: answer.headers["content-type"] for name, answer in zip(static_files(), answers, strict=False)}
        assert types["app.mjs"] == "text/javascript; charset=utf-8"
        assert types["index.html"] == "text/html; charset=utf-8"


async def test_a_link_works_once_and_for_a_short_time() -> None:
    """Its code is exchanged for the token by a POST of the page itself. Each refusal says why, and what to do."""
    now = 0.0
    async with page(read_only=True, now=lambda: now) as (server, api):

        async def use(link: str, **headers: str) -> Answer:
            return await ask(server, "POST /ui/session", token=link.partition("#code=")[2], **headers)

        link, other = server.new_link(), server.new_link()
        assert server.token not in link
        port = server.port
        assert (await use(link, origin=f"http://127.0.0.1:{port + 1}")).status == 403
        assert (await use(link, sec_fetch_site="same-site")).status == 403
        assert (await use(link, host=f"evil.example.com:{port}")).status == 421
        assert (await use(link[:-1])).status == 401
        assert (await ask(server, "GET /ui/session")).status == 405
        for token in ("", "é", server.token, "a" * 30_000):
            answer = await ask(server, "POST /ui/session", token=token, content_length="5")  # It waits for no body.
            assert answer.status == 401, token

        answer = await use(link, origin=f"http://127.0.0.1:{port}")
        assert (answer.status, json.loads(answer.body)) == (200, {"token": server.token})
        assert answer.headers["cache-control"] == "no-store"
        used = await use(link)
        assert (used.status, "used already" in used.body.decode()) == (410, True)
        assert "press Enter" in used.body.decode()
        now = 601.0
        old = await use(other)
        assert (old.status, "too old" in old.body.decode()) == (410, True)

        first, *rest = [server.new_link() for _ in range(17)]
        assert (await use(first)).status == 410  # A new link ends the oldest one.
        assert (await use(rest[0])).status == 200
        assert api.requests == []


async def test_an_idle_token_ends_and_an_open_stream_keeps_it() -> None:
    """After the time without a request token and links are others; a stream that is open counts as a request."""
    now, new_links = 0.0, list[bool]()
    async with page(idle_minutes=5, now=lambda: now, on_end=lambda: new_links.append(True)) as (server, api):
        first, link = server.token, server.new_link()
        async with streams(server, 1):
            now = 1_000.0
            assert (await ask(server, "GET /v1/runs", token=first)).status == 200
        await eventually(lambda: not api.open_streams)

        now += 299.0
        assert (await ask(server, "GET /ui/about.json", token=first)).status == 200
        now += 200.0  # Another user of this machine, who has no token, does not make it last.
        for path in ("/ui/about.json", "/ui/", "/v1/runs"):
            assert (await ask(server, f"GET {path}", token="wrong")).status in (200, 401)
        now += 101.0
        old_link, link = link, server.new_link()
        now += 301.0
        for unused in (old_link, link):  # A link of a history or a screen would undo the logout.
            ended = await ask(server, "POST /ui/session", token=unused.partition("#code=")[2])
            assert (ended.status, "press Enter" in ended.body.decode()) == (410, True)
        assert (await ask(server, "GET /v1/runs", token=first)).status == 401
        assert new_links == [True]
        code = server.new_link().partition("#code=")[2]
        assert json.loads((await ask(server, "POST /ui/session", token=code)).body) == {"token": server.token}
        assert server.token != first
        assert (await ask(server, "GET /v1/runs")).status == 200


async def test_a_hundred_streams_are_open_at_once_and_end_with_their_readers() -> None:
    """A hundred tabs, each with a stream of its own: others are answered meanwhile, and nothing stays open."""
    async with page() as (server, api):
        async with streams(server, 100):
            assert api.open_streams == 100
            assert (await ask(server, "GET /v1/runs")).status == 200

        await eventually(lambda: not api.open_streams)


async def test_a_folder_with_a_journal_that_is_none_says_so(tmp_path: Path) -> None:
    """Each answer names the file and its fault: the person at the page owns it. A socket without a key is said, too."""
    state = tmp_path / ".ramet"
    state.mkdir(mode=0o700)
    async with FolderApi(tmp_path) as api, UiServer(api, "a folder") as server:
        for content, fault in ((b"x" * 10_000, "not a database"), (b"", "no journal in it yet")):
            (state / "journal.db").write_bytes(content)
            (state / "journal.db").chmod(0o600)
            for path in ("/v1/runs", "/v1/changes"):
                answer = await ask(server, f"GET {path}")
                assert (answer.status, fault in json.loads(answer.body)["detail"]) == (500, True), answer

    with short_folder() as folder:
        address = folder / "s"

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"authorization" not in head.lower()
            writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()

        async with await asyncio.start_unix_server(refuse, address):
            async with ForwardingApi(str(address)) as forwarding, UiServer(forwarding, "a folder") as server:
                answer = await ask(server, "GET /v1/runs")
        assert (answer.status, "does not accept this key" in json.loads(answer.body)["detail"]) == (502, True), answer


async def test_a_replaced_journal_is_closed_and_a_linked_socket_is_no_server(tmp_path: Path) -> None:
    """The next request is answered from the new file, streams of the old one break off, and no descriptor stays.

    A symbolic link in the place of the server's socket leads to no server of another folder.
    """
    state = tmp_path / ".ramet"
    state.mkdir(mode=0o700)
    for name in ("journal.db", "next.db"):
        await (await SqliteStore(state / name).open()).close()

    def open_files() -> list[str]:
        return [each for each in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if str(state) in each]

    async with FolderApi(tmp_path) as api, UiServer(api, "a folder") as server:
        assert (await ask(server, "GET /v1/runs")).status == 200
        stream = asyncio.create_task(ask(server, "GET /v1/changes"))
        await eventually(lambda: api.open_streams)
        (state / "next.db").rename(state / "journal.db")
        assert (await ask(server, "GET /v1/runs")).status == 200
        assert (await asyncio.wait_for(stream, 180)).status == 200
        await eventually(lambda: not [each for each in open_files() if "deleted" in each])

        with short_folder() as folder:
            async with await asyncio.start_unix_server(lambda _, writer: writer.close(), folder / "s"):
                (state / "serve.sock").symlink_to(folder / "s")
                assert json.loads((await ask(server, "GET /ui/about.json")).body)["kernel"] is False
                assert (await ask(server, "GET /v1/runs")).status == 200
    assert open_files() == []


@pytest.fixture(autouse=True)
def _silent_server(caplog: pytest.LogCaptureFixture) -> Any:
    """Check that no attack makes the server raise: each exception of an application is logged."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
