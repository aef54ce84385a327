"""The main program of a sandbox, after its last gate: reads the first message, does the work, reports the end."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
import types
from typing import Any

import msgspec

from ramet.agent.capabilities import task_runner
from ramet.core.errors import ProtocolError, RametError
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.rights import IMPORTS
from ramet.guest.channel import Channel
from ramet.guest.thread_channel import connect
from ramet.wire.code.capsule import unpack
from ramet.wire.error_codec import clean, encode_error
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import Done
from ramet.wire.guest_protocol.host_to_guest import StartConversation, StartFunction, StartMcpServer
from ramet.wire.values.values import EncodedValue, encode_result

#: Bytes held in reserve, to be able to report that there is no memory left.
_RESERVE = 4 * 1024 * 1024
#: Maximum characters of a traceback on stderr.
_MAX_TRACEBACK = 32 * 1024
_NOTHING = EncodedValue(0, b"")


def main(channel: socket.socket) -> int:
    """Run the agent that the host's first message describes, to its end.

    Returns the exit status: 0 only with a result.
    """
    _import_from_image()
    end = Channel(channel)
    frame = end.read()
    if frame is None:
        return 1
    start = message_codec.from_host(frame.control)
    match start:
        case StartFunction():
            body = [frame.body]
            del frame
            return _run_function(end, start, body)
        case StartConversation():
            from ramet.guest.serve import serve

            serve(channel, start, frame.body)
            return 0
        case StartMcpServer():
            from ramet.guest.mcp.server_sandbox import serve as serve_mcp

            serve_mcp(channel, start)
            return 0
    raise ProtocolError(f"{type(start).__name__} must not be the first message")


def _import_from_image() -> None:
    """Make the modules of the image importable, here and in commands that are started.

    They do not hide any module of ramet.
    """
    folders = [each for each in os.environ.pop(IMPORTS, "").split(os.pathsep) if each.startswith("/")]
    if folders:
        sys.path += [each for each in folders if each not in sys.path]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def _run_function(end: Channel, start: StartFunction, body: list[bytes]) -> int:
    """Run the function and send its result.

    `body` is taken out of its list: once its packed function is unpacked, nothing else may hold its memory.
    """
    reserve = [mmap.mmap(-1, _RESERVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)]
    connect(end)
    task_runner.use_runner("ramet.guest.authoring", "GUEST")
    value, problem = _NOTHING, None
    end_message = Done(ok=False, oom=True, error=ErrorInfo(type="MemoryError", message="it ran out of memory"))
    try:
        value = encode_result(_result(start, body), max_bytes=start.max_result_bytes)
        end_message = Done(ok=True, json_size=value.json_size)
    except MemoryError:
        reserve.pop().close()
    except BaseException as error:
        problem = error
    if not end.is_own:  # A child that the function forked, and that returned from the function.
        _flush()
        os._exit(_status_of(problem))
    if problem is not None:
        end_message = _failure(problem)
        _print_traceback(problem)
    _flush()
    try:
        end.write_last(end_message, value.body)
    except RametError:  # The host has ended.
        return 1
    return 0 if end_message.ok else 1


def _result(start: StartFunction, body: list[bytes]) -> Any:
    late_args: list[Any] = []
    if start.late_size:
        late_args = msgspec.json.decode(memoryview(body[0])[-start.late_size :], type=list[Any])
        body[0] = body[0][: -start.late_size]
    packed_call = unpack(body.pop(), start.capsule_tag)
    args = (*packed_call.args, *late_args)
    del late_args
    result = packed_call.function(*args, **packed_call.kwargs)
    if isinstance(result, types.CoroutineType):
        import asyncio

        return asyncio.run(result)
    return result


def _failure(error: BaseException) -> Done:
    """Return the last message about an error; never fails, whatever the error's own methods do."""
    info, fields = encode_error(error)
    message = info.message
    if isinstance(error, SystemExit):
        message = f"it called sys.exit({_shown_value(error.code)}) in place of returning a result"
    elif isinstance(error, KeyboardInterrupt):
        message = "it was interrupted"
    elif isinstance(error, ModuleNotFoundError) and type(error.name) is str:
        message = (
            f"module {clean(error.name[:200])!r} is not installed in the sandbox: install it where ramet is installed, "
            "or import it in the module of the function, so that its source is packed as well"
        )
    return Done(ok=False, error=ErrorInfo(type=info.type, message=message, scope=info.scope), fields=fields)


def _shown_value(code: object) -> str:
    if code is None:
        return ""
    if type(code) is str:
        return clean(repr(code[:200]))
    return str(code) if type(code) is int and code.bit_length() < 64 else "…"


def _status_of(problem: BaseException | None) -> int:
    if problem is None:
        return 0
    if isinstance(problem, SystemExit) and (problem.code is None or isinstance(problem.code, int)):
        return (problem.code or 0) & 0xFF
    return 1


def _print_traceback(error: BaseException) -> None:
    with contextlib.suppress(BaseException):  # a hostile error, or no stderr
        import traceback

        trace = error.__traceback__
        while trace is not None and (trace.tb_frame.f_globals.get("__package__") or "").startswith("ramet."):
            trace = trace.tb_next
        report = traceback.TracebackException(type(error), error, trace, limit=-30, compact=True)
        sys.stderr.write("".join(report.format())[-_MAX_TRACEBACK:])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    status = 1
    try:
        with socket.socket(fileno=int(sys.argv[1])) as inherited:
            status = main(inherited)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(status)  # As in a sandbox. An interpreter that cleans up aborts at a thread that still prints.
