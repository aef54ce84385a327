"""The process from which `tests.support.warm` forks programs: `python -m tests.support.warming SOCKET MODULE…`.

It has one thread and no event loop, imports the modules, and then receives one order for a program after the other.
Each order comes with four descriptors: one for its pid and its end, and three for its streams.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pathlib
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

_NUMBER = struct.Struct("=i")


def main() -> None:
    """Serve orders until the other end closes; in a fork, run the program."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(list(pathlib.Path("/proc/self/task").iterdir())) == 1, "a fork would not have the other threads"
    gc.collect()
    gc.freeze()  # What is here stays, in every fork.
    order = serve(orders)
    if order is not None:
        run_program(order)


def serve(orders: socket.socket) -> dict[str, Any] | None:
    """Return the order in a fork; return None once the other end has closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *key.data)
                    continue
                data, fds, _, _ = socket.recv_fds(orders, 1 << 20, 4)
                if not data:
                    return None
                news, *streams = fds
                if not (pid := os.fork()):
                    for each in selector.get_map().values():
                        os.close(each.fd)
                        if each.data is not None:
                            each.data[1].close()
                    orders.detach()
                    os.close(news)
                    return {**json.loads(data), "streams": streams}
                for stream in streams:
                    os.close(stream)
                teller = socket.socket(fileno=news)
                teller.send(_NUMBER.pack(pid))
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, teller))


def _report_end(pidfd: int, pid: int, teller: socket.socket) -> None:
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with teller:
        teller.send(_NUMBER.pack(code), socket.MSG_NOSIGNAL)


def run_program(order: dict[str, Any]) -> None:
    """Run the program as `python FILE` or `python -m MODULE` does, in this process."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    for stream, fd in enumerate(order["streams"]):
        os.dup2(fd, stream)
        os.close(fd)
    # Python's own are of what was there when it started.
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program: str = order["program"]
    sys.argv = [program, *order["arguments"]]
    if order["is_module"]:
        sys.path[0] = order["cwd"]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(pathlib.Path(program).parent)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
