"""Functions that run as agents in the tests of this folder; they import only the standard library at first."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ramet.core.policy.policy import Policy
from ramet.sub_agent_client import (
    load_checkpoint,
    map_sub_agents,
    read_artifact,
    save_checkpoint,
    send_message,
    spawn_sub_agent,
    start_sub_agent,
)


@dataclasses.dataclass
class Report:
    """The findings of a child."""

    topic: str
    lines: tuple[int, ...]


def add(one: int, other: int) -> int:
    sys.stdout.write("adding\n")
    return one + other


def report(topic: str) -> Report:
    return Report(topic, (1, 2))


async def later(value: str) -> str:
    await asyncio.sleep(0)
    return value.upper()


def fail(text: str) -> None:
    raise ValueError(text)


class Hostile(Exception):
    """An error whose every method fails."""

    def __str__(self) -> str:
        sys.exit(3)

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def fail_hostile() -> None:
    raise Hostile


def leave(code: Any) -> None:
    sys.stdout.write("leaving\n")
    sys.exit(code)


def interrupt() -> None:
    raise KeyboardInterrupt


def hoard() -> int:
    """Allocate memory in small pieces until none is left."""
    import resource

    memory_bytes = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes + 64 * 1024 * 1024,) * 2)
    cycles: list[Any] = []
    while True:
        cycles.append([cycles] * 10)


def unshippable() -> dict[str, Any]:
    return {"rows": [1, {"handle": threading.Lock()}]}


def large() -> bytes:
    return b"x" * 100_000


def missing() -> None:
    import a_module_that_is_nowhere  # type: ignore[import-not-found]  # noqa: F401


def print_and_run_on() -> str:
    threading.Thread(target=send_after_the_end, daemon=True).start()
    sys.stdout.write("out\n")
    sys.stderr.write("err\n")
    return "done"


def send_after_the_end() -> None:
    while True:
        send_message("main", "hello")


def fork_and_return() -> str:
    """Fork, and let the child return from the function too."""
    pid = os.fork()
    if pid == 0:
        return "from the child"
    _, status = os.waitpid(pid, 0)
    return f"the child ended with {os.waitstatus_to_exitcode(status)}"


def ask_in_a_fork() -> str:
    """Fork, and let the child send its error through a pipe."""
    send_message("main", "from the parent")
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            send_message("main", "from the child")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    text = os.read(reading, 1_000).decode()
    os.close(reading)
    return text


def parent(memory_mb: int | None = None) -> Any:
    policy = Policy(memory_mb=memory_mb) if memory_mb is not None else None
    result = spawn_sub_agent(agent=report, policy=policy, args=("bees",))
    return [result.exit_code, result.status, result.session_id, result.output, type(result.output).__name__]


def parent_of_many(count: int) -> list[int]:
    """Spawn children from several threads at once."""
    outputs: dict[int, int] = {}

    def one(index: int) -> None:
        outputs[index] = spawn_sub_agent(add, args=(index, 1)).output

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outputs[index] for index in range(count)]


def mapper(items: list[int], max_parallel: int) -> list[int]:
    return [result.output for result in map_sub_agents(abs, items, max_parallel=max_parallel)]


def ends_seen(count: int, max_parallel: int) -> list[int]:
    """Map over the number of children that had ended when each item was taken."""
    from ramet.guest.thread_channel import ThreadChannel, current_channel

    host = current_channel()
    assert isinstance(host, ThreadChannel), "functions have one of their own"
    numbers: list[int] = []

    def items() -> Iterator[int]:
        for index in range(count):
            numbers.append(sum(end.done() for end in host._ends.values()))
            yield index

    map_sub_agents(abs, items(), max_parallel=max_parallel)
    return numbers


async def awaiting() -> list[str]:
    children = [start_sub_agent(later, args=(word,)) for word in ("one", "two")]
    results = await asyncio.gather(*children)
    return [result.output for result in results]


async def giving_up() -> str:
    child = start_sub_agent(later, args=("x",))
    try:
        async with asyncio.timeout(0.05):
            await child
    except TimeoutError:
        receipt = child.cancel("too slow")
        return f"{receipt.stopped} {(await child).status}"
    return "it ended"


def cancel_twice() -> list[int]:
    child = start_sub_agent(add, args=(1, 2))
    return [len(child.cancel().stopped), len(child.cancel().stopped)]


def impatient() -> str:
    child = start_sub_agent(add, args=(1, 2), name="slow")
    try:
        child.result(timeout=0.01)
    except TimeoutError:
        return f"{child.name} {child.send('hurry')} {child.result().output}"
    return "it ended"


def wait_for_child() -> Any:
    return spawn_sub_agent(add, args=(1, 2)).output


def checkpoints() -> list[Any]:
    checkpoints = [load_checkpoint("nothing")]
    save_checkpoint(Report("bees", (3,)), version=2)
    checkpoints += [load_checkpoint("nothing", version=1), load_checkpoint(returns=Report)]
    return [*checkpoints[:2], type(checkpoints[2]).__name__, checkpoints[2].lines]


def artifact() -> bytes:
    return read_artifact("child", "notes.txt")


def wrong_argument() -> str:
    """Send a wrong argument, then a right one over the same channel."""
    try:
        send_message("main", 5)  # type: ignore[arg-type]
    except ValueError as refusal:
        return f"{type(refusal).__name__} {send_message('main', 'five')}"
    return "it was sent"


def stopped() -> str:
    """Save a checkpoint when the host stops the agent."""
    from ramet.core.errors import Aborted

    try:
        spawn_sub_agent(add, args=(1, 2))
    except Aborted as aborted:
        save_checkpoint("half")
        return str(aborted)
    return "it went on"


def failed_child() -> list[Any]:
    result = spawn_sub_agent(report, args=("bees",))
    error, files = result.error, [each.name for each in result.artifacts] or [""]
    assert error is not None
    details = [error.type, error.message, files[0], result.usage.agents, result.stdout, result.output]
    return [result.status, result.exit_code, *details]


def refused_parent() -> list[Any]:
    from ramet.core.errors import SpawnRefused

    try:
        spawn_sub_agent(add, args=(1, 2))
    except SpawnRefused as refusal:
        return [refusal.limit, refusal.reason, refusal.free, str(refusal)]
    return []
