"""What a guest sees, for `guest`: itself, its descriptors, environments, processes and files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import stat
import sys
import time
from collections.abc import Callable

_MB = 1024 * 1024


def who() -> dict[str, object]:
    """Itself."""
    return {"pid": os.getpid(), "uid": os.getuid(), "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109


def has_imported(module: str) -> bool:
    """Whether a module was there from the start."""
    return module in sys.modules


def privileges() -> dict[str, int]:
    """Capabilities, and whether a program could gain some."""
    from ramet.isolation.linux import calls, caps

    get_no_new_privs = 39
    return {"capabilities": caps.held(), "no_new_privs": calls.prctl(get_no_new_privs)}


def core_limit() -> int:
    """How large a core file may become at most."""
    return resource.getrlimit(resource.RLIMIT_CORE)[1]


def descriptors(up_to: int) -> list[dict[str, object]]:
    """What is open, but for the standard streams."""
    found: list[dict[str, object]] = []
    for fd in range(3, up_to):
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            found.append(
                {
                    "fd": fd,
                    "is_socket": stat.S_ISSOCK(mode),
                    "is_folder": stat.S_ISDIR(mode),
                    "is_inherited": os.get_inheritable(fd),
                }
            )
    return found


def from_stdin() -> str:
    """What comes from the standard input."""
    return os.read(0, 100).decode()


def environments() -> str:
    """All environments that can be read."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found.append(each.read_text(errors="replace"))
    return "\n".join(found)


def processes() -> list[int]:
    """The processes that are listed."""
    return [int(each.name) for each in pathlib.Path("/proc").iterdir() if each.name.isdigit()]


def read(path: str) -> str:
    """A file."""
    return pathlib.Path(path).read_text()


def write(path: str, text: str) -> None:
    """Make or replace a file."""
    pathlib.Path(path).write_text(text)


def make(path: str) -> str:
    """Make a new file in a folder, and say where."""
    made = pathlib.Path(path, f"ramet-conformance-{os.getpid()}-{time.monotonic_ns()}")
    made.touch(exist_ok=False)
    return str(made)


def listing(path: str) -> list[str]:
    """A folder."""
    return sorted(each.name for each in pathlib.Path(path).iterdir())


def fill(path: str, mb: int) -> float:
    """Write until that many MiB are written in a folder, or it is full: says how many were."""
    written = 0
    block = os.urandom(_MB // 4)
    try:
        while written < mb * _MB:
            fd = os.open(f"{path}/fill-{time.monotonic_ns()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                for _ in range(4):
                    written += os.write(fd, block)
            finally:
                os.close(fd)
    except OSError:
        pass
    return written / _MB


DEEDS: tuple[Callable[..., object], ...] = (
    who,
    has_imported,
    privileges,
    core_limit,
    descriptors,
    from_stdin,
    environments,
    processes,
    read,
    write,
    make,
    listing,
    fill,
)
