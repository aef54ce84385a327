"""The endpoint for models inside a sandbox: a program sends its requests to a loopback address, the host forwards them.

    with model_endpoint() as endpoint:
        subprocess.run([…], env={"ANTHROPIC_BASE_URL": endpoint.url("anthropic"), "ANTHROPIC_API_KEY": endpoint.key})

The first part of a path names the provider: `/anthropic/v1/messages`, `/openai/v1/responses`, `/google/v1beta/models`.
The key of the endpoint is no key of a provider: it keeps other programs out, where a machine shares its loopback
addresses. Decisions are the host's. The endpoint reads a reply on as the program reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ramet.core.errors import RametError
from ramet.guest.models.http_messages import (
    MAX_HEAD_BYTES,
    HttpError,
    RequestHead,
    encode_chunk,
    encode_head,
    read_body,
    read_head,
)
from ramet.guest.thread_channel import StreamClient, stream_channel
from ramet.wire.guest_protocol.guest_to_host import ForwardRequest, ResetStream, WindowUpdate
from ramet.wire.guest_protocol.host_to_guest import Answer, HostMessage, ResponseHead, StreamChunk
from ramet.wire.guest_protocol.reply_window import UPDATE_BYTES

if TYPE_CHECKING:
    from ramet.guest.tree_tools.mcp_server import McpServer

HOST: Final = "127.0.0.1"
#: Connections, and requests that the host has at the same time: others wait here.
MAX_CONNECTIONS, MAX_REQUESTS = 64, 8
MCP_PATH: Final = "/mcp"
#: Headers that stay here: credentials, and those of the connection.
_DROPPED_HEADERS: Final = frozenset(
    (
        "authorization connection content-length cookie expect host keep-alive proxy-authorization proxy-connection te "
        "trailer transfer-encoding upgrade x-api-key x-goog-api-key"
    ).split()
)
_Event = tuple[HostMessage | BaseException, bytes]


class ModelEndpoint:
    """An endpoint, from `open` to `close`, in one event loop."""

    def __init__(self, channel: StreamClient, *, tree_tools: bool = False) -> None:
        self._channel = channel
        self.key = secrets.token_urlsafe(24)  #: a program sends it where it would send a provider's key
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._requests = asyncio.Semaphore(MAX_REQUESTS)
        self._sender = ThreadPoolExecutor(1, "ramet-models")  #: writes to the host may block
        self._mcp_server = _mcp_server(channel, self._sender) if tree_tools else None

    @property
    def has_tree_tools(self) -> bool:
        """Return whether the endpoint has the tools of the tree."""
        return self._mcp_server is not None

    @property
    def mcp_url(self) -> str:
        """Return the address of the tools of the tree; the key is the bearer token. Raises RametError without them."""
        if self._mcp_server is None:
            raise RametError("this endpoint has no tools: model_endpoint(tree_tools=True)")
        return f"http://{HOST}:{self.port}{MCP_PATH}"

    def url(self, wire: str) -> str:
        """Return the address of a provider's wire."""
        return f"http://{HOST}:{self.port}/{wire}"

    async def open(self, port: int = 0) -> None:
        """Listen on a loopback port, a free one by default. Raises OSError, also where there is no loopback address."""
        loop = asyncio.get_running_loop()

        def connect() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(_Reader(limit=MAX_HEAD_BYTES, loop=loop), self._accept, loop=loop)

        self._server = await loop.create_server(connect, HOST, port)
        if not self._server.sockets:  # asyncio passes over a socket that cannot be made.
            raise OSError(f"this sandbox has no network, and so no {HOST}")
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._sender.shutdown(wait=False)  # The host still hears of requests that ended.

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, _Reader)
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.write(_whole_reply(HttpError(503, f"there are {MAX_CONNECTIONS} connections")))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await read_head(reader)) is not None:
                if not await self._answer(head, reader, writer):
                    return
        except HttpError as error:
            writer.write(_whole_reply(error))
        except (OSError, RametError):
            writer.transport.abort()  # The program, or the host, has left.
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, head: RequestHead, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether another one may follow."""
        wire, _, path = head.path[1:].partition("/")
        if head.path == MCP_PATH and self._mcp_server is not None:
            await self._answer_tools(self._mcp_server, head, reader, writer)
        elif head.method in ("GET", "HEAD") and not path:  # A program asks whether there is a server.
            await read_body(reader, writer, head)
            writer.write(encode_head(200, [("content-length", "0")]))
        else:
            self._require_key(head)
            async with self._requests:
                body = await read_body(reader, writer, head)
                await _Exchange(self._channel, self._sender, head, reader, writer).run(wire, f"/{path}", body)
        await writer.drain()
        return head.keeps_alive

    async def _answer_tools(
        self, server: McpServer, head: RequestHead, reader: _Reader, writer: asyncio.StreamWriter
    ) -> None:
        self._require_key(head)
        body = await read_body(reader, writer, head, max_bytes=server.max_bytes)
        reply = await server.answer(head.method, head.headers, body)
        headers = [*reply.headers, ("content-length", str(len(reply.body)))]
        writer.write(encode_head(reply.status, headers) + reply.body)

    def _require_key(self, head: RequestHead) -> None:
        scheme, _, bearer = head.headers.get("authorization", "").partition(" ")
        given = [head.headers.get("x-api-key", ""), head.headers.get("x-goog-api-key", "")]
        given += [bearer.strip()] if scheme.lower() == "bearer" else []
        given += [each.removeprefix("key=") for each in head.query.split("&") if each.startswith("key=")]
        if not any(hmac.compare_digest(each.encode(), self.key.encode()) for each in given):
            raise HttpError(401, "the key of this endpoint is expected")


class _Reader(asyncio.StreamReader):
    """A reader that also says at once when its client has left."""

    def __init__(self, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.end = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.end.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.end.set()


class _Exchange:
    """A request to the host, and the reply to it."""

    def __init__(
        self,
        channel: StreamClient,
        sender: ThreadPoolExecutor,
        head: RequestHead,
        reader: _Reader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._channel, self._sender, self._head = channel, sender, head
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()  # Bounded by the window of the reply.
        self._is_started = self._is_over = False

    async def run(self, wire: str, path: str, body: bytes) -> None:
        """Have the request forwarded. Raises RametError if its reply breaks off, or its program leaves."""
        head = self._head
        headers = {name: value for name, value in head.headers.items() if name not in _DROPPED_HEADERS}
        query = "&".join(each for each in head.query.split("&") if not each.startswith("key="))
        fields: dict[str, Any] = {"wire": wire, "method": head.method, "path": path, "query": query}
        try:
            number = await self._loop.run_in_executor(
                self._sender,
                lambda: self._channel.open_stream(ForwardRequest, self._receive, body, headers=headers, **fields),
            )
        except RametError as problem:
            raise HttpError(400, str(problem)) from None
        left = asyncio.ensure_future(self._reader.end.wait())
        copy = asyncio.ensure_future(self._copy(number))
        try:
            await asyncio.wait((left, copy), return_when=asyncio.FIRST_COMPLETED)
            if not copy.done():
                raise RametError("the program has left")
            await copy
        finally:
            for each in (left, copy):
                each.cancel()
            await asyncio.wait((left, copy))
            if not self._is_over:
                self._post(ResetStream(request=number))

    async def _copy(self, number: int) -> None:
        read_bytes = 0
        while True:
            message, data = await self._events.get()
            match message:
                case ResponseHead():
                    self._start(message)
                case StreamChunk() if self._is_started:
                    self._write(data)
                    await self._writer.drain()
                    read_bytes += len(data)
                    if read_bytes >= UPDATE_BYTES:
                        self._post(WindowUpdate(request=number, size=read_bytes))
                        read_bytes = 0
                case Answer(error=None) if self._is_started:
                    self._is_over = True
                    if self._is_chunked:
                        self._writer.write(encode_chunk(b""))
                    return
                case _:
                    self._is_over = True
                    self._fail(message)

    def _start(self, head: ResponseHead) -> None:
        if self._is_started:
            raise RametError("the reply began twice")
        self._is_started = True
        framing = ("transfer-encoding", "chunked") if self._is_chunked else ("connection", "close")
        self._writer.write(encode_head(head.status, [*head.headers, framing]))

    def _write(self, data: bytes) -> None:
        if data and self._head.method != "HEAD":
            self._writer.write(encode_chunk(data) if self._is_chunked else data)

    @property
    def _is_chunked(self) -> bool:
        return not self._head.is_1_0 and self._head.method != "HEAD"

    def _fail(self, message: object) -> None:
        """Say that there is no reply, or no more of it."""
        reason = message.error.message if isinstance(message, Answer) and message.error is not None else str(message)
        if self._is_started:
            raise RametError(reason)
        raise HttpError(403, reason)

    def _receive(self, message: HostMessage | BaseException, body: bytes) -> None:
        """Receive a message of the host, in the thread of the channel."""
        with contextlib.suppress(RuntimeError):  # The endpoint is closed.
            self._loop.call_soon_threadsafe(self._events.put_nowait, (message, body))

    def _post(self, message: WindowUpdate | ResetStream) -> None:
        with contextlib.suppress(RuntimeError):  # The endpoint is closed.
            self._sender.submit(self._send, message)

    def _send(self, message: WindowUpdate | ResetStream) -> None:
        with contextlib.suppress(RametError):  # The host has left.
            self._channel.post(message)


def _mcp_server(channel: StreamClient, sender: ThreadPoolExecutor) -> McpServer:
    from ramet.guest.tree_tools.mcp_server import McpServer  # Most programs only ask models.
    from ramet.guest.tree_tools.tree_tools import TreeTools

    return McpServer(TreeTools(channel, sender))


def _whole_reply(error: HttpError) -> bytes:
    body = json.dumps({"error": {"type": "endpoint_error", "message": error.reason[:1_000]}}).encode()
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("x-should-retry", "false"),
        ("connection", "close"),
    ]
    return encode_head(error.status, headers) + body


@contextmanager
def model_endpoint(port: int = 0, *, tree_tools: bool = False) -> Iterator[ModelEndpoint]:
    """Provide an endpoint for models while the context is open, served by a thread of its own.

    With `tree_tools`, its `mcp_url` is an MCP server whose tools start and lead agents below this one.

    Raises OSError if the port is taken, RametError if this code is not an agent.
    """
    channel = stream_channel()
    ready = threading.Event()
    state: dict[str, Any] = {}

    async def serve() -> None:
        endpoint = ModelEndpoint(channel, tree_tools=tree_tools)
        stop = asyncio.Event()
        try:
            await endpoint.open(port)
            state.update(endpoint=endpoint, loop=asyncio.get_running_loop(), stop=stop)
            ready.set()
            await stop.wait()
        finally:
            await endpoint.close()

    def body() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            state["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=body, name="ramet-models", daemon=True)
    thread.start()
    ready.wait()
    if "endpoint" not in state:
        raise state["error"]
    try:
        yield state["endpoint"]
    finally:
        with contextlib.suppress(RuntimeError):  # Its loop has ended.
            state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join()
