"""The control socket of a running kernel for other processes of the same user: `<working_dir>/.ramet/kernel.sock`.

Each connection has one request: a line of JSON, and a line of JSON as the answer, each of at most 1 MiB. Only requests
of the user of the kernel's own process are accepted: the file's mode ensures that, and the credentials of the client
are checked, too. The socket exists as long as the kernel holds its journal; the socket of a killed kernel accepts no
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import pathlib
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ramet.core.errors import InvalidValue, MailRefused, RametError
from ramet.core.limits import limits_from
from ramet.core.policy.session_access import SessionMessage
from ramet.disk.state_folder import checked_state_folder
from ramet.host.control.operator import OperatorControl
from ramet.host.control.schedules import DropSchedule, PutSchedule, answer
from ramet.host.journal.ttl import Collect, Keep, set_keep
from ramet.host.sandbox.port_sockets import sockets_of
from ramet.host.sandbox.workspace_files import workspace_of

if TYPE_CHECKING:
    from ramet.store.contract import Store

_log = logging.getLogger("ramet.control")

SOCKET = "kernel.sock"
MAX_LINE = 1024 * 1024
READ_S = 10.0  #: in which a request must have been sent, and its answer received
ANSWER_S = 120.0  #: in which the kernel must have answered: it may have to wait until runs have ended
_SHORT_PATH = 100  #: an address of a socket is at most 107 bytes long
_BACKLOG = 32


class ControlledTrees(Struct, frozen=True, kw_only=True, tag="trees", forbid_unknown_fields=True):
    """A request for the trees that live in this kernel."""


class Send(Struct, frozen=True, kw_only=True, tag="send", forbid_unknown_fields=True):
    """A request to send a user's message to a run."""

    run: str
    text: str
    dedupe_s: float | None = None


class Stop(Struct, frozen=True, kw_only=True, tag="stop", forbid_unknown_fields=True):
    """A request to end a run and all below it."""

    run: str
    reason: str = "stopped by its user"


class RaiseLimits(Struct, frozen=True, kw_only=True, tag="raise", forbid_unknown_fields=True):
    """A request to add to the limits of a run; one with the `key` of an earlier one adds nothing."""

    run: str
    add: dict[str, int | float]
    key: str = ""


class Pause(Struct, frozen=True, kw_only=True, tag="pause", forbid_unknown_fields=True):
    """A request to pause a run and all below it; with `now`, what they do is cut."""

    run: str
    reason: str = ""
    now: bool = False


class EndPause(Struct, frozen=True, kw_only=True, tag="end_pause", forbid_unknown_fields=True):
    """A request to let a paused run go on."""

    run: str


class FindWorkspace(Struct, frozen=True, kw_only=True, tag="workspace", forbid_unknown_fields=True):
    """A request to copy the present files of a run to this machine, and return their folder."""

    run: str


class FindPorts(Struct, frozen=True, kw_only=True, tag="ports", forbid_unknown_fields=True):
    """A request for the sockets of an active run's ports on this machine."""

    run: str


class ListPauses(Struct, frozen=True, kw_only=True, tag="pauses", forbid_unknown_fields=True):
    """A request for a page of the runs that wait for a person without a question, such as those at limits."""

    after: str = ""  #: id of the last entry of the page before


class Answer(Struct, frozen=True, kw_only=True, tag="answer", forbid_unknown_fields=True):
    """A request with a person's answer to a question."""

    approval: str
    allowed: bool
    reason: str = ""
    for_run: bool = False  #: it also allows the later calls that the question names


Request = (
    ControlledTrees
    | Send
    | Stop
    | RaiseLimits
    | Pause
    | EndPause
    | FindWorkspace
    | FindPorts
    | ListPauses
    | Answer
    | SessionMessage
    | Keep
    | Collect
    | PutSchedule
    | DropSchedule
)
_requests = msgspec.json.Decoder(Request)


class NoKernel(RametError):
    """An error: no kernel answers for this working directory."""


class KernelEnded(NoKernel):
    """An error: the kernel received a request, and ended before its answer."""


class Refused(RametError):
    """An error: the kernel refused the request; `kind` is the name of the kernel's error."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class ControlSocket:
    """The kernel's end: listens from `start` to `stop`, for all runtimes that share its journal."""

    def __init__(self, runtimes: Collection[object], folder: pathlib.Path, store: Store) -> None:
        """Set the `Trees` of the runtimes, which may change meanwhile, and the store, open while this listens."""
        self.path, self._store = folder / SOCKET, store
        self._operator = OperatorControl(runtimes, store)
        self.on_collect: Callable[[Collect], Awaitable[Struct]] | None = None  #: removes ended trees
        self._listening: asyncio.Task[asyncio.Server | None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; idempotent. Only the holder of the journal may call this. A problem is logged."""
        if self._listening is None:
            # In a context of its own: the answers do not belong to the call that opens the journal.
            self._listening = asyncio.create_task(
                self._listen(), name="ramet control socket", context=contextvars.Context()
            )
        await asyncio.shield(self._listening)

    async def stop(self) -> None:
        """Stop listening, and remove the socket; idempotent."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        server = await listening
        if server is None:
            return
        server.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        tasks = [task for task in self._answering if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()

    async def _listen(self) -> asyncio.Server | None:
        try:
            return await asyncio.start_unix_server(self._on_connection, sock=_listener(self.path), limit=MAX_LINE)
        except OSError as problem:
            _log.warning("no other process can reach this kernel: %s: %s", self.path, problem.strerror)
            return None

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="ramet control socket")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _user_of(writer.get_extra_info("socket")) != os.geteuid():
                return
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(READ_S):
                    line = await _line(reader)
                writer.write(await self._answer(line) + b"\n")
                async with asyncio.timeout(READ_S):
                    await writer.drain()
        finally:
            writer.close()
            try:
                async with asyncio.timeout(READ_S):
                    await writer.wait_closed()
            except (OSError, asyncio.CancelledError):  # A peer that does not read would delay the end of the kernel.
                writer.transport.abort()

    async def _answer(self, line: bytes) -> bytes:
        try:
            return msgspec.json.encode({"ok": await self._do(_request(line))})
        except RametError as refusal:
            error = {"type": type(refusal).__name__, "message": str(refusal)}
        except Exception as bug:
            _log.exception("a request of another process failed")
            error = {"type": "Bug", "message": f"{type(bug).__name__}: {bug}"[:2_000]}
        return msgspec.json.encode({"error": error})

    async def _do(self, request: Request) -> dict[str, Any]:
        match request:
            case ControlledTrees():
                return {"pid": os.getpid(), "trees": self._operator.trees(), "streaming": self._operator.streaming()}
            case Send(run=run, text=text, dedupe_s=dedupe_s):
                return {"mail": await self._operator.send(run, text, dedupe_s)}
            case Stop(run=run, reason=reason):
                receipt = await self._operator.stop(run, reason)
                return {"stopped": receipt.stopped, "left": receipt.left}
            case RaiseLimits(run=run, add=add, key=key):
                limits = await self._operator.raise_limits(run, limits_from(add), key)
                return {"run": run, "limits": limits.as_data()}
            case Pause(run=run, reason=reason, now=now):
                pause = await self._operator.pause(run, reason, now=now)
                return {"paused": pause.paused, "working": pause.working}
            case EndPause(run=run):
                await self._operator.resume(run)
                return {"resumed": run}
            case FindWorkspace(run=run):
                workspace = await workspace_of((await self._operator.reach(run)).run)
                return {"folder": str(workspace.folder), "max_bytes": workspace.max_bytes}
            case FindPorts(run=run):
                sockets = sockets_of((await self._operator.reach(run)).run)
                return {name: str(path) for name, path in sockets.items()}
            case ListPauses(after=after):
                return self._operator.pauses(after)
            case Answer(approval=approval, allowed=allowed, reason=reason, for_run=for_run):
                await self._operator.answer(approval, allowed, reason, for_run=for_run)
                return {"approval": approval, "allowed": allowed} | ({"for_run": True} if for_run else {})
            case SessionMessage():
                return await self._receive(request)
            case Keep(run=run, on=on):
                return {"tree": await set_keep(self._store, run, on), "kept": on}
            case Collect() if self.on_collect is not None:
                collected: dict[str, Any] = msgspec.to_builtins(await self.on_collect(request))
                return collected
            case Collect():
                raise InvalidValue("request", "collect", "another request: this kernel removes nothing")
            case PutSchedule() | DropSchedule():
                return await answer(self._store, request)

    async def _receive(self, message: SessionMessage) -> dict[str, Any]:
        try:
            return {"outcome": await self._operator.receive(message)}
        except MailRefused as refusal:
            return {"refused": refusal.reason}


async def send_request(working_dir: pathlib.Path, request: Request, *, patience_s: float = ANSWER_S) -> dict[str, Any]:
    """Send a request to the kernel of a working directory. Raises NoKernel if none answers in time, and Refused."""
    no_kernel = f"no kernel runs in {working_dir}"
    data = msgspec.json.encode(request)
    if len(data) >= MAX_LINE:
        raise InvalidValue("request", f"{len(data)} bytes", f"less than {MAX_LINE}")
    try:
        connection = _connect(_own_socket(working_dir))
    except (OSError, InvalidValue):
        raise NoKernel(no_kernel) from None
    try:
        if _user_of(connection) not in (os.geteuid(), 0):
            raise NoKernel(f"{no_kernel} that belongs to this user")
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
    except BaseException:
        connection.close()
        raise
    try:
        async with asyncio.timeout(patience_s):
            writer.write(data + b"\n")
            await writer.drain()
            reply = msgspec.json.decode(await _line(reader))
    except TimeoutError:
        raise NoKernel(f"the kernel in {working_dir} does not answer") from None
    except (ConnectionError, msgspec.DecodeError):
        raise KernelEnded(f"the kernel in {working_dir} ended before it had answered") from None
    finally:
        writer.close()
    if "error" in reply:
        raise Refused(reply["error"]["type"], reply["error"]["message"])
    answer: dict[str, Any] = reply["ok"]
    return answer


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        return b""
    except asyncio.IncompleteReadError:
        raise ConnectionResetError from None


def _request(line: bytes) -> Request:
    try:
        request: Request = _requests.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("request", line[:200], f"a request in one line of JSON ({problem})") from None
    return request


def _listener(path: pathlib.Path) -> socket.socket:
    # The holder of the journal is alone here: an existing socket was left by a killed kernel.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _with_short_path(path, listener.bind)
        path.chmod(0o600)
        listener.listen(_BACKLOG)  # Before this no client can connect, whatever the file's mode was.
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _own_socket(working_dir: pathlib.Path) -> pathlib.Path:
    """Return the path of the kernel's socket, which is no link to another program's. Raises OSError, InvalidValue."""
    path = checked_state_folder(working_dir) / SOCKET
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileNotFoundError(path)
    return path


def _connect(path: pathlib.Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(READ_S)  # A stopped kernel accepts no connection once its backlog is full.
        _with_short_path(path, connection.connect)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _with_short_path(path: pathlib.Path, use: Any) -> None:
    if len(os.fsencode(path)) <= _SHORT_PATH:
        return use(str(path))  # type: ignore[no-any-return]
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _user_of(connection: Any) -> int:
    """Return the user at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)
