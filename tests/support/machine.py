"""A substitute for another machine: a mount namespace with its own /tmp, and an ordinary user."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from ramet.core.errors import ProtocolError
from ramet.isolation import python_runtime
from ramet.isolation.linux import calls
from ramet.isolation.remote import node_agent
from ramet.isolation.zygote.launcher import drop_privileges
from tests.support.stream_line import StreamLine, open_pipe_line

PATIENCE_S = 400.0  #: without a kernel: longer than any test waits


def main(scratch: Path, runs: Path, uid: int, listener: int | None = None) -> None:
    """Serve standard input and output, or a listening socket to which kernels come one after the other.

    Files that are written in /tmp or in `scratch` cannot be seen from outside.
    """
    folders = [Path(each) for each in python_runtime.find().folders]
    calls.unshare(calls.CLONE_NEWNS)
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
    opened = [(each, os.open(each, os.O_PATH | os.O_CLOEXEC)) for each in folders]
    mount_points = [Path("/tmp")] if scratch.is_relative_to("/tmp") else [Path("/tmp"), scratch]
    for mount_point in mount_points:
        calls.mount("tmpfs", str(mount_point), "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=1777")
    for folder, fd in opened:
        if any(folder.is_relative_to(mount_point) for mount_point in mount_points):
            _make_mount_point(folder, fd)
            calls.mount(f"/proc/self/fd/{fd}", str(folder), None, calls.MS_BIND | calls.MS_REC)
        os.close(fd)
    runs.mkdir(mode=0o700, parents=True)
    os.chown(runs, uid, uid)
    drop_privileges(uid, uid, [str(each) for each in (*folders, runs)])
    os.environ.clear()
    if listener is None:
        asyncio.run(_serve_pipes(runs))
    else:
        asyncio.run(_serve_all(socket.socket(fileno=listener), runs))


async def _serve_pipes(runs: Path) -> None:
    """Serve the line on standard input and output, and end with it. Other output goes to stderr."""
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    with os.fdopen(stdin, "rb", 0) as source, os.fdopen(stdout, "wb", 0) as sink:
        line = await open_pipe_line(source, sink)
        try:
            await node_agent.serve(line, runs, [Path("/tmp")])
        except ProtocolError as violation:
            sys.stderr.write(f"the kernel violated the protocol: {violation}\n")
        finally:
            await line.close()


async def _serve_all(listener: socket.socket, runs: Path) -> None:
    listener.setblocking(False)
    async with node_agent.open_node_agent(runs, [Path("/tmp")]) as agent:
        while True:
            async with asyncio.timeout(PATIENCE_S):
                end, _ = await asyncio.get_running_loop().sock_accept(listener)
            line = StreamLine(*await asyncio.open_unix_connection(sock=end))
            try:
                if await agent.serve(line):
                    return
            finally:
                await line.close()


def _make_mount_point(path: Path, fd: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(f"/proc/self/fd/{fd}"):  # noqa: PTH112
        path.mkdir(exist_ok=True)
    else:
        path.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
