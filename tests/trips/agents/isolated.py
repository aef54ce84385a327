"""Functions that run as agents in sandboxes; the module imports only the standard library, as a user's would."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Point:
    """Two numbers."""

    x: int
    y: int
    tags: list[str] = dataclasses.field(default_factory=list)


def point(x: int, y: int) -> Point:
    """Return a dataclass that the annotation names."""
    return Point(x, y, ["made inside"])


def unnamed_point(x: int, y: int) -> Any:
    """Return a dataclass that the annotation does not name."""
    return point(x, y)


def points() -> dict[str, list[Point]]:
    """Return dataclasses inside an annotated container."""
    return {"line": [Point(0, 0), Point(1, 1)]}


def pair() -> tuple[int, str]:
    """Return an annotated tuple."""
    return 1, "one"


def unannotated_pair():  # type: ignore[no-untyped-def]  # noqa: ANN201, RUF100 - that it says nothing is the point
    """Return a tuple without an annotation."""
    return 1, {2}


def moment() -> datetime.datetime:
    """Return an aware datetime."""
    return datetime.datetime(2026, 11, 20, 17, 30, tzinfo=datetime.UTC)


def array(rows: int, columns: int) -> Any:
    """Return a numpy array."""
    import numpy

    return numpy.arange(rows * columns, dtype=numpy.float32).reshape(rows, columns)


def answer() -> Any:
    """Return a pydantic model."""
    from tests.trips.agents.models import Answer

    return Answer(text="yes", score=0.5)


def echo(*args: Any, **kwargs: Any) -> Any:
    """Return the arguments."""
    return {"args": list(args), "kwargs": kwargs}


def big(size: int) -> str:
    """Return a text of that size."""
    return "b" * size


async def asynchronous(word: str) -> str:
    """Return the word in capitals, from a coroutine function."""
    import asyncio

    await asyncio.sleep(0)
    return word.upper()


def speak(lines: list[str]) -> None:
    """Print lines, and the last on stderr."""
    for line in lines[:-1]:
        print(line, flush=True)  # noqa: T201
    print(lines[-1], file=sys.stderr, flush=True)  # noqa: T201


def leave(files: dict[str, str]) -> int:
    """Write files, and return their number."""
    for name, text in files.items():
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return len(files)


def nap(seconds: float) -> str:
    """Sleep for a time."""
    print("napping", flush=True)  # noqa: T201
    time.sleep(seconds)
    return "rested"


def work_and_nap(cpu_seconds: float, seconds: float) -> str:
    """Use a processor, then sleep."""
    while time.process_time() < cpu_seconds:
        pass
    return nap(seconds)


def fail(words: str) -> None:
    """Raise ValueError."""
    raise ValueError(words)


def needs_missing() -> None:
    """Import a module that does not exist."""
    import no_such_module_anywhere  # type: ignore[import-not-found]

    no_such_module_anywhere.run()


def grow(megabytes: int) -> int:
    """Use memory that is never freed."""
    data = bytearray()
    for _ in range(megabytes):
        data += b"\xa5" * (1 << 20)
    return len(data) >> 20


def attempts(path: str, succeed_at: int) -> dict[str, Any]:
    """Fail until the given attempt; a checkpoint counts the attempts, and files show whether one saw another."""
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint

    number = (load_checkpoint() or 0) + 1
    save_checkpoint(number)
    exists = pathlib.Path(path).exists()
    pathlib.Path(path).write_text("left by an attempt")
    pathlib.Path("/tmp/left").write_text("left by an attempt")
    if number < succeed_at:
        raise RuntimeError(f"attempt {number} fails")
    return {"attempt": number, "found": exists}


def spawn(
    agent: Callable[..., Any], policy: dict[str, Any] | None = None, args: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """Spawn one child, and return each field of its result."""
    from ramet import Policy
    from ramet.sub_agent_client import read_artifact, spawn_sub_agent

    result = spawn_sub_agent(agent=agent, policy=Policy(**(policy or {})), args=args)
    return {
        "output": result.output,
        "exit_code": result.exit_code,
        "status": str(result.status),
        "error": None if result.error is None else result.error.message,
        "stdout": result.stdout,
        "artifacts": {
            each.name: bytes(read_artifact(result.session_id, each.name)).decode() for each in result.artifacts
        },
    }


def level(depth: int, size: int) -> dict[str, Any]:
    """Spawn a chain of agents whose leaf returns a text of `size`; each returns its child's text."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    if depth == 1:
        return {"levels": 1, "text": "leaf " * (size // 5)}
    policy = Policy(allow_sub_agents=depth > 2, memory_mb=64 * (depth - 1))
    result = spawn_sub_agent(agent=level, policy=policy, args=(depth - 1, size))
    if result.exit_code:
        raise RuntimeError(f"level {depth - 1}: {result.error}")
    return {"levels": result.output["levels"] + 1, "text": result.output["text"]}


def spawn_one_by_one(number: int) -> list[str]:
    """Spawn children one after the other; return the status or the exceeded limit of each."""
    from ramet.core.errors import SpawnRefused
    from ramet.sub_agent_client import spawn_sub_agent

    statuses = []
    for _ in range(number):
        try:
            statuses.append(str(spawn_sub_agent(agent=echo).status))
        except SpawnRefused as refusal:
            statuses.append(refusal.limit)
    return statuses


def spawn_beyond_memory(seconds: float) -> dict[str, Any]:
    """Spawn a child of 300 MB under a parent of 512 while another runs; return when each ran."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent, start_sub_agent

    policy = Policy(memory_mb=300, cpu_cores=0.4)
    first = start_sub_agent(agent=lifetime, policy=policy, args=(seconds,))
    second = spawn_sub_agent(agent=lifetime, policy=policy, args=(0,))
    return {"first": first.result().output, "second": second.output}


def lifetime(seconds: float) -> list[float]:
    """Return the start and the end of this run by the machine's clock."""
    start_time = time.monotonic()
    time.sleep(seconds)
    return [start_time, time.monotonic()]


def leave_one_at_work(seconds: float) -> str:
    """Return while a child is active."""
    from ramet.sub_agent_client import start_sub_agent

    start_sub_agent(agent=lifetime, args=(seconds,), name="late")
    return "the parent's"


def cancel_one() -> dict[str, Any]:
    """Cancel a sleeping child twice, and spawn the next one in its reservation."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent, start_sub_agent

    policy = Policy(memory_mb=300, cpu_cores=0.4)
    first = start_sub_agent(agent=nap, policy=policy, args=(60,))
    first.cancel("make room")
    first_result = first.result()
    first.cancel("again")
    next_one = spawn_sub_agent(agent=echo, policy=policy)
    return {"first": str(first_result.status), "why": str(first_result.error), "next": str(next_one.status)}


def fan_out(numbers: list[int]) -> list[Any]:
    """Return the squares of numbers, each from a child of its own, in order; the error type where one failed."""
    from ramet import Policy
    from ramet.sub_agent_client import map_sub_agents

    results = map_sub_agents(square, numbers, policy=Policy(memory_mb=64, cpu_cores=0.1))
    return [result.output if result.error is None else result.error.type for result in results]


def square(number: int) -> int:
    """Return the square of a number, and fail for 13."""
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def subtree(mark: str, depth: int) -> None:
    """Spawn a chain of agents that never end, each with a program that ignores SIGTERM."""
    import subprocess

    from ramet import Policy
    from ramet.sub_agent_client import start_sub_agent

    subprocess.Popen(["sh", "-c", f"trap : TERM; while :; do sleep 1000; done # {mark}"], start_new_session=True)
    if depth > 1:
        policy = Policy(allow_sub_agents=depth > 2, memory_mb=64 * depth)
        start_sub_agent(agent=subtree, policy=policy, args=(mark, depth - 1))
    while True:
        time.sleep(60)


def deaf(mark: str) -> None:
    """Ignore SIGTERM and never end, with a program that ignores it too."""
    import signal
    import subprocess

    subprocess.Popen(["sh", "-c", f"trap : TERM; while :; do sleep 1000; done # {mark}"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def chain(depth: int, child_s: float | None) -> None:
    """Lead a chain of `below` agents, each of which asks for `child_s` seconds; none ends, the last ignores SIGTERM."""
    import signal

    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    if depth:
        policy = Policy(allow_sub_agents=depth > 1, memory_mb=64 * depth, timeout_seconds=child_s)
        spawn_sub_agent(agent=chain, policy=policy, args=(depth - 1, child_s))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("begun").touch()
    while True:
        time.sleep(60)


def fail_above(children: int) -> None:
    """Spawn children that ignore SIGTERM, and fail once there is a file `go`."""
    from ramet import Policy
    from ramet.sub_agent_client import start_sub_agent

    for _ in range(children):
        start_sub_agent(agent=chain, policy=Policy(memory_mb=64), args=(0, None))
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    raise ValueError("failed above its children")


def chain_when_told() -> None:
    """Lead a chain of one agent once there is a file `go`."""
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    chain(1, None)


def send_again(to: str, text: str, windows: list[Any]) -> list[str]:
    """Send the same message once for each window; return the answer or the error of each."""
    from ramet.core.errors import RametError
    from ramet.sub_agent_client import send_message

    results = []
    for window in windows:
        try:
            results.append(send_message(to, text, dedupe_s=window))
        except RametError as refusal:
            results.append(f"{type(refusal).__name__}: {refusal}")
    return results


def working_directory() -> str:
    """Return the working directory."""
    return str(pathlib.Path.cwd())


def hold(megabytes: int, seconds: float) -> int:
    """Use memory for a while."""
    data = b"\xa5" * (megabytes << 20)
    time.sleep(seconds)
    return len(data) >> 20


def hold_and_stay(megabytes: int) -> None:
    """Use memory, write a file `begun`, and keep the memory."""
    data = b"\xa5" * (megabytes << 20)
    pathlib.Path("begun").touch()
    while data:
        time.sleep(60)


def fill_cache_and_grow(cached_mb: int, megabytes: int) -> int:
    """Fill the page cache with a file, then use memory that is never freed."""
    with open("large", "wb") as file:  # noqa: PTH123 - as users do
        for _ in range(cached_mb):
            file.write(bytes(1 << 20))
        file.flush()
    return grow(megabytes)


def look_for_others() -> dict[str, list[str]]:
    """Write a file, let one child write one, and let another search for both."""
    from ramet.sub_agent_client import spawn_sub_agent

    leave({"of_parent.txt": "x"})
    spawn_sub_agent(agent=leave, args=({"of_sibling.txt": "x"},))
    return {
        "of parent": spawn_sub_agent(agent=find, args=("of_parent.txt",)).output,
        "of sibling": spawn_sub_agent(agent=find, args=("of_sibling.txt",)).output,
    }


def find(name: str) -> list[str]:
    """Return the path of each file of that name."""
    import os

    return [f"{folder}/{name}" for folder, _, names in os.walk("/") if name in names]


def speak_file(path: str) -> None:
    """Print the content of a file."""
    print("the token is", pathlib.Path(path).read_text(), flush=True)  # noqa: T201


def digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
