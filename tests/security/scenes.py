"""Scenes on the host's side of an attack: runs, victims, services, and counts of resources.

The module `tests.security.driver` plays scenes in a kernel's process. Each scene takes and returns plain data.
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
    """Runtime, with the handles and services that scenes have started."""

    def __init__(self, runtime: Any, base: pathlib.Path) -> None:
        self.runtime, self.base = runtime, base
        self.handles: dict[str, Any] = {}
        self.printed: dict[str, list[str]] = {}
        self.callers: dict[str, int] = {}
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()


def plain(value: Any) -> Any:
    """Return a value as JSON types. Bytes become their number and their beginning."""
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
    """Return the function that "module:qualname" names."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


# ---- runs ----------------------------------------------------------------------------------------------------------


async def run(
    host: Host, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None, kwargs: Any = None
) -> Any:
    """Run an agent to its end, and return its result."""
    return await host.runtime.run_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ()), kwargs=kwargs or {}
    )


async def start(
    host: Host, key: str, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None
) -> str:
    """Start an agent under `key`, wait for its first output or its end, and return its id."""
    first_output = asyncio.Event()
    host.printed[key] = []

    def on_stdout(text: Any) -> None:
        host.printed[key].append(text if isinstance(text, str) else bytes(text).decode(errors="replace"))
        first_output.set()

    handle = await host.runtime.start_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ()), on_stdout=on_stdout
    )
    host.handles[key] = handle
    ended = asyncio.ensure_future(handle.result())
    waiting = asyncio.ensure_future(first_output.wait())
    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not ended.done():
        ended.cancel()
    return str(handle.id)


async def output_of(host: Host, key: str) -> str:
    """Return the output so far of an agent that was started under `key`."""
    return "".join(host.printed[key])


async def begin(
    host: Host, key: str, agent: str, policy: dict[str, Any] | None = None, args: list[Any] | None = None
) -> str:
    """Start an agent under `key` without waiting for output, and return its id."""
    host.handles[key] = await host.runtime.start_agent(
        agent=function(agent), policy=policies.from_json(policy or {}), args=tuple(args or ())
    )
    return str(host.handles[key].id)


async def result(host: Host, key: str) -> Any:
    """Return the result of an agent that was started under `key`."""
    return await host.handles.pop(key).result()


async def cancel(host: Host, key: str, reason: str = "enough") -> Any:
    """Cancel an agent that was started under `key`, and return its result."""
    await host.handles[key].cancel(reason)
    return await host.handles.pop(key).result()


async def command(host: Host, key: str, argv: list[str]) -> Any:
    """Run a command in the sandbox of an agent that was started under `key`."""
    return await host.handles[key].run_command(argv)


async def metrics(host: Host, key: str) -> Any:
    """Return what an agent that was started under `key` uses now."""
    found = host.handles[key].metrics()
    return await found if asyncio.iscoroutine(found) else found


async def status(host: Host) -> Any:
    """Return the status of the runtime."""
    return host.runtime.get_status()


async def unconfined(host: Host, agent: str, args: list[Any]) -> Any:
    """Run a function as the same user without a sandbox, as the positive control, and return its value."""
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
    """Return each event of a run that has ended, with the event's type."""
    return [{"type": type(each).__name__, "told": repr(each)} async for each in host.runtime.get(run).events()]


async def swap_for_link(host: Host, path: str, target: str, method: str) -> None:
    """Arrange that a folder is replaced by a link as soon as `method` of the backend is called for its mounts."""
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
    """Start a process of this user that an attack may try to reach, and return its pid."""
    process = await asyncio.create_subprocess_exec("sleep", "1000", env={"CANARY": "in the environment of a victim"})

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    host.stack.push_async_callback(end)
    return process.pid


async def own_pid(host: Host) -> int:
    """Return the pid of this kernel."""
    return os.getpid()


async def ancestors(host: Host, pid: int) -> list[int]:
    """Return the processes between this kernel and one below it, the nearest to that process first."""
    found: list[int] = []
    while (pid := int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) not in (
        os.getpid(),
        1,
        0,
    ):
        found.append(pid)
    return found


async def kill(host: Host, pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


async def owner(host: Host, pid: int) -> int:
    """Return the uid that a process has on this host."""
    return pathlib.Path(f"/proc/{pid}").stat().st_uid


async def is_alive(host: Host, pid: int) -> bool:
    """Return whether a process lives."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def listen(
    host: Host, key: str, address: str, kind: str = "stream", greeting: str = "hello from the host"
) -> int:
    """Start a service on a loopback address, or on a Unix socket by path or, with @, by abstract name."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host.callers[key] += 1
        with contextlib.suppress(OSError):
            asked = await reader.read(4096)
            page = f"HTTP/1.1 200 OK\r\nContent-Length: {len(greeting)}\r\nConnection: close\r\n\r\n"
            writer.write((page if asked.startswith(b"GET") else "").encode() + greeting.encode())
            await writer.drain()
        writer.close()

    host.callers[key] = 0
    if kind == "udp":
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Counting(host.callers, key), local_addr=(address, 0)
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
    """Protocol that counts datagrams."""

    def __init__(self, counts: dict[str, int], key: str) -> None:
        self._counts, self._key = counts, key

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._counts[self._key] += 1


async def count_callers(host: Host, key: str) -> int:
    """Return the number of callers of a service."""
    return host.callers[key]


# ---- what can be counted -------------------------------------------------------------------------------------------


async def facts(host: Host) -> dict[str, int]:
    """Return this kernel's descriptors, peak memory, disk use below its folder, and number of processes."""
    return {
        "fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "disk_mb": sum(blocks for _, blocks in files_below(host.base)) >> 11,
        "pids": sum(name.isdigit() for name in os.listdir("/proc")),  # noqa: PTH208
    }


async def reset_peak(host: Host) -> float:
    """Reset the peak use of memory, and return the use now, in MB."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _memory_mb("VmRSS")


async def peak(host: Host) -> float:
    """Return the peak use of memory since `reset_peak`, in MB."""
    return _memory_mb("VmHWM")


def _memory_mb(field: str) -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


async def processes(host: Host, mark: str) -> list[int]:
    """Return the living processes with `mark` in their command line, except this one."""
    found: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid() and await is_alive(host, int(name)):
            with contextlib.suppress(OSError):
                if mark.encode() in pathlib.Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found


async def command_lines(host: Host) -> str:
    """Return command lines and environments of each process that this user can read, except this kernel."""
    seen: list[str] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    seen.append(pathlib.Path(f"/proc/{name}/{part}").read_bytes().decode(errors="replace"))
    return "\n".join(seen)


async def environments(host: Host) -> list[str]:
    """Return the environment of each process below this kernel, except victims."""
    seen: list[str] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                environment = pathlib.Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace")
                if await is_below(int(name)) and "CANARY=" not in environment:
                    seen.append(environment)
    return seen


async def is_below(pid: int) -> bool:
    """Return whether a process descends from this kernel."""
    while pid > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


async def files_with(host: Host, text: str, below: str | None = None) -> list[str]:
    """Return each regular file below the kernel's folder that holds `text`. Links are not followed."""
    found: list[str] = []
    for name, _ in files_below(below or host.base):
        with contextlib.suppress(OSError):  # gone since, or not ours to read
            if text.encode() in pathlib.Path(name).read_bytes():
                found.append(name)
    return found


async def named(host: Host, name: str) -> list[str]:
    """Return each folder below the kernel's folder that holds a file or folder of that name."""
    return [folder for folder, folders, files in os.walk(host.base) if name in (*folders, *files)]


def files_below(top: str | pathlib.Path) -> list[tuple[str, int]]:
    """Return the regular files below a folder with their blocks on disk, except those too deep to name."""
    found: list[tuple[str, int]] = []
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    found.append((path, about.st_blocks))
    return found
