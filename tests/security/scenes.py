"""What happens on the host's side of an attack: runs, victims, services, and what can be counted afterwards.

Played by `tests.security.driver` inside a kernel's process. Each scene takes plain data and gives plain data back.
"""

# A scene has its kernel's loop for itself while it looks at files.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Self

import msgspec

from ramet.core.policy import policy as policies


class Host:
    """A runtime with what the scenes have started beside it."""

    def __init__(self, runtime: Any, base: pathlib.Path) -> None:
        self.runtime, self.base = runtime, base
        self.handles: dict[str, Any] = {}
        self.printed: dict[str, list[str]] = {}
        self.heard: dict[str, int] = {}
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()


def plain(value: Any) -> Any:
    """A value as JSON types; bytes are told by their number and their beginning."""
    if isinstance(value, bytes | bytearray):
        return {"@bytes": len(value), "begins": value[:64].hex()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)[:500]


def function(name: str) -> Any:
    """What "module:qualname" stands for."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


# ---- runs ----------------------------------------------------------------------------------------------------------


async def run(
    host: Host, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None, kwargs: Any = None
) -> Any:
    """Run an agent to its end."""
    return await host.runtime.run_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ()), kwargs=kwargs or {}
    )


async def start(
    host: Host, key: str, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None
) -> str:
    """Start an agent, wait until it has printed its first words, and keep it under `key`; returns its id."""
    heard = asyncio.Event()
    host.printed[key] = []

    def on_stdout(text: Any) -> None:
        host.printed[key].append(text if isinstance(text, str) else bytes(text).decode(errors="replace"))
        heard.set()

    handle = await host.runtime.start_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ()), on_stdout=on_stdout
    )
    host.handles[key] = handle
    ended = asyncio.ensure_future(handle.result())
    waiting = asyncio.ensure_future(heard.wait())
    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not ended.done():
        ended.cancel()
    return str(handle.id)


async def said(host: Host, key: str) -> str:
    """What a kept agent has printed so far."""
    return "".join(host.printed[key])


async def begin(
    host: Host, key: str, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None
) -> str:
    """Start an agent that says nothing, and keep it under `key`."""
    host.handles[key] = await host.runtime.start_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ())
    )
    return str(host.handles[key].id)


async def result(host: Host, key: str) -> Any:
    """How a kept agent ended."""
    return await host.handles.pop(key).result()


async def cancel(host: Host, key: str, reason: str = "enough") -> Any:
    """End a kept agent; returns how it ended."""
    await host.handles[key].cancel(reason)
    return await host.handles.pop(key).result()


async def command(host: Host, key: str, argv: list[str]) -> Any:
    """Run a command in a kept agent's sandbox."""
    return await host.handles[key].run_command(argv)


async def metrics(host: Host, key: str) -> Any:
    """What a kept agent uses now."""
    found = host.handles[key].metrics()
    return await found if asyncio.iscoroutine(found) else found


async def status(host: Host) -> Any:
    """What the runtime says of itself."""
    return host.runtime.get_status()


async def unconfined(host: Host, agent: str, args: list[Any]) -> Any:
    """The same function as the same user without any sandbox: the positive control."""
    script = "import json, sys; from tests.security.scenes import function\n"
    script += "print('\\n' + json.dumps(function(sys.argv[1])(*json.loads(sys.argv[2]))))"
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", script, agent, json.dumps(args)],
        cwd=tempfile.mkdtemp(dir=host.base / "scratch"),
        env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the control of {agent} failed with {process.returncode}")
    return json.loads(out.splitlines()[-1])


async def events(host: Host, run: str) -> list[Any]:
    """Every event of a run that has ended, each with its type."""
    return [{"type": type(each).__name__, "told": repr(each)} async for each in host.runtime.get(run).events()]


async def swap_for_link(host: Host, path: str, target: str, method: str) -> None:
    """Have a folder moved away and a link put in its place, once a backend is about to do something for its mounts."""
    backend = await host.runtime.sandboxes.backend()
    original = getattr(backend, method)

    async def swapping(*given: Any) -> Any:
        if path in repr(given):
            delattr(backend, method)  # The class's own again.
            pathlib.Path(path).rename(f"{path} (moved)")
            pathlib.Path(path).symlink_to(target)
        return await original(*given)

    setattr(backend, method, swapping)


# ---- victims and services ------------------------------------------------------------------------------------------


async def victim(host: Host) -> int:
    """A process of this user that an attack may try to reach."""
    process = await asyncio.create_subprocess_exec("sleep", "1000", env={"CANARY": "in the environment of a victim"})

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    host.stack.push_async_callback(end)
    return process.pid


async def own_pid(host: Host) -> int:
    """Of this kernel."""
    return os.getpid()


async def ancestors(host: Host, pid: int) -> list[int]:
    """The processes between this kernel and one below it, from the nearest to that one to the nearest to this."""
    found: list[int] = []
    while (pid := int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) not in (
        os.getpid(),
        1,
        0,
    ):
        found.append(pid)
    return found


async def kill(host: Host, pid: int) -> None:
    """End a process at once."""
    os.kill(pid, signal.SIGKILL)


async def owner(host: Host, pid: int) -> int:
    """The user to whom a process belongs on this host."""
    return pathlib.Path(f"/proc/{pid}").stat().st_uid


async def is_alive(host: Host, pid: int) -> bool:
    """Whether a process lives."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def listen(
    host: Host, key: str, address: str, kind: str = "stream", greeting: str = "hello from the host"
) -> int:
    """A service of the host: on a loopback address, or a Unix socket by path or, with @, by abstract name."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host.heard[key] += 1
        with contextlib.suppress(OSError):
            asked = await reader.read(4096)
            page = f"HTTP/1.1 200 OK\r\nContent-Length: {len(greeting)}\r\nConnection: close\r\n\r\n"
            writer.write((page if asked.startswith(b"GET") else "").encode() + greeting.encode())
            await writer.drain()
        writer.close()

    host.heard[key] = 0
    if kind == "udp":
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Counting(host.heard, key), local_addr=(address, 0)
        )
        host.stack.callback(transport.close)
        return int(transport.get_extra_info("sockname")[1])
    if address.startswith(("@", "/")):
        name = "\0" + address[1:] if address[0] == "@" else address
        number = socket.SOCK_STREAM if kind == "stream" else socket.SOCK_DGRAM
        listener = socket.socket(socket.AF_UNIX, number)
        listener.bind(name)
        if address[0] == "/":
            pathlib.Path(address).chmod(0o777)
        if kind == "stream":
            server: Any = await asyncio.start_unix_server(greet, sock=listener)
            host.stack.callback(server.close)
        else:
            host.stack.callback(listener.close)
        return 0
    server = await asyncio.start_server(greet, address, 0)
    host.stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


class Counting(asyncio.DatagramProtocol):
    """Counts what arrives."""

    def __init__(self, heard: dict[str, int], key: str) -> None:
        self._heard, self._key = heard, key

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._heard[self._key] += 1


async def heard(host: Host, key: str) -> int:
    """How many callers a service has had."""
    return host.heard[key]


# ---- what can be counted -------------------------------------------------------------------------------------------


async def facts(host: Host) -> dict[str, int]:
    """What this kernel holds: descriptors, memory at its highest, bytes below its folder."""
    return {
        "fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "disk_mb": sum(blocks for _, blocks in files_below(host.base)) >> 11,
        "pids": sum(name.isdigit() for name in os.listdir("/proc")),  # noqa: PTH208
    }


async def reset_peak(host: Host) -> float:
    """Forget the highest use of memory so far; returns the use now, in MB."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _memory_mb("VmRSS")


async def peak(host: Host) -> float:
    """The highest use of memory since `reset_peak`, in MB."""
    return _memory_mb("VmHWM")


def _memory_mb(field: str) -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


async def processes(host: Host, mark: str) -> list[int]:
    """The living processes that have `mark` in their command line, this one aside."""
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid() and await is_alive(host, int(name)):
            with contextlib.suppress(OSError):
                if mark.encode() in pathlib.Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found


async def command_lines(host: Host) -> str:
    """Command lines and environments of every process that this user can look into, this kernel aside."""
    seen: list[str] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    seen.append(pathlib.Path(f"/proc/{name}/{part}").read_bytes().decode(errors="replace"))
    return "\n".join(seen)


async def environments(host: Host) -> list[str]:
    """What every process below this kernel was started with, victims aside."""
    seen: list[str] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                told = pathlib.Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace")
                if await is_below(int(name)) and "CANARY=" not in told:
                    seen.append(told)
    return seen


async def is_below(pid: int) -> bool:
    """Whether a process descends from this kernel."""
    while pid > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


async def files_with(host: Host, text: str, below: str | None = None) -> list[str]:
    """Every regular file below the kernel's folder that holds `text`; links are not followed."""
    found: list[str] = []
    for name, _ in files_below(below or host.base):
        with contextlib.suppress(OSError):  # gone since, or not ours to read
            if text.encode() in pathlib.Path(name).read_bytes():
                found.append(name)
    return found


async def named(host: Host, name: str) -> list[str]:
    """Every file or folder of that name below the kernel's folder."""
    return [folder for folder, folders, files in os.walk(host.base) if name in (*folders, *files)]


def files_below(top: str | pathlib.Path) -> list[tuple[str, int]]:
    """The regular files below a folder, with their blocks on the disk; what is too deep to be named is left out."""
    found: list[tuple[str, int]] = []
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    found.append((path, about.st_blocks))
    return found
