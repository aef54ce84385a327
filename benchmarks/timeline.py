"""`python -m benchmarks.timeline [--runs N]`: where the time of one function agent in a sandbox goes, step by step.

Functions of ramet are wrapped while it runs. A line says when a step begins, counted from the request, how long it
takes until it returns, and the processor time of the event loop in it. A step's time contains what it waits for, and
the steps in it: the lines are no sum. Each number is a median over the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks import machine
from benchmarks.agents import nothing
from benchmarks.arguments import positive
from ramet import AgentRuntime, Policy
from ramet.isolation.bwrap import BwrapBackend

#: Between two requests, so that parked processes are made again.
PAUSE_S = 0.02
WARM_UP = 10

#: Steps by the functions that take them, in the order of a run.
STEPS = (
    ("open the tree", "ramet.host.runtime_base:RuntimeBase.open_tree"),
    ("plan", "ramet.spawn.birth.spawner:Spawner.plan_root"),
    ("pack the function", "ramet.spawn.birth.plan:capsule_of"),
    ("record the birth", "ramet.spawn.birth.spawner:Spawner.root"),
    ("make the folder", "ramet.spawn.birth.spawner:create_folder"),
    ("an attempt in a sandbox", "ramet.spawn.sandbox.executor:_run_attempt"),
    ("take a parked process", "ramet.isolation.zygote.client:ZygoteClient.take_child"),
    ("enter a control group", "ramet.isolation.limits.cgroup:Cgroup.entry_fds"),
    ("assign the process", "ramet.isolation.zygote.backend:send_assignment"),
    ("wait until it is confined", "ramet.isolation.zygote.backend:wait_started"),
    ("open the channel", "ramet.spawn.sandbox.channel:GuestChannel.open"),
    ("wait for the result", "ramet.spawn.sandbox.executor:wait_result"),
    ("wait for its exit", "ramet.spawn.sandbox.executor:terminate"),
    ("read the result", "ramet.spawn.sandbox.executor:_turn_result"),
    ("read its output", "ramet.isolation.workspace.output:OutputStream.wait_drained"),
    ("copy its files", "ramet.spawn.sandbox.executor:collect_artifacts"),
    ("record the end", "ramet.spawn.lifecycle.supervisor:Supervisor._finish_turn"),
    ("write transcripts", "ramet.host.journal.recorder:_Transcripts._flush"),
    ("publish events", "ramet.host.journal.recorder:Recorder._publish"),
)


@dataclass
class Step:
    """Times of a step, for each run: its first begin, its length and its processor time."""

    began_ms: list[float] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


class TimeLine:
    """Times of the steps of one run after another."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {label: Step() for label, _ in STEPS}
        self.took_ms: list[float] = []
        self.host_cpu_ms: list[float] = []
        self._calls: dict[str, list[tuple[float, float, float]]] = {}
        self._began = 0.0

    @contextlib.contextmanager
    def run(self, *, counts: bool) -> Iterator[None]:
        """Measure a run; a run that does not count warms up."""
        self._calls = {}
        self._began, cpu = time.perf_counter(), time.process_time()
        yield
        took_ms, cpu_ms = (time.perf_counter() - self._began) * 1e3, (time.process_time() - cpu) * 1e3
        if not counts:
            return
        self.took_ms.append(took_ms)
        self.host_cpu_ms.append(cpu_ms)
        for label, calls in self._calls.items():
            step = self.steps[label]
            step.began_ms.append(min(began for began, _, _ in calls))
            step.took_ms.append(sum(took for _, took, _ in calls))
            step.cpu_ms.append(sum(cpu for _, _, cpu in calls))
            step.calls.append(len(calls))

    def wrapped(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which notes its times under a label."""

        def note(began: float, cpu: float) -> None:
            now = time.perf_counter()
            line = ((began - self._began) * 1e3, (now - began) * 1e3, cpu * 1e3)
            self._calls.setdefault(label, []).append(line)

        @functools.wraps(function)
        def plain(*args: Any, **options: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **options)
            finally:
                note(began, time.thread_time() - cpu)

        @functools.wraps(function)
        async def awaited(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            steps = _Counted(function(*args, **options))
            try:
                return await steps
            finally:
                note(began, steps.cpu)

        return awaited if inspect.iscoroutinefunction(function) else plain

    def lines(self) -> list[str]:
        """Return the time line as text."""
        lines = [f"{'begins':>8} {'takes':>8} {'CPU':>8}   ms"]
        for label, step in sorted(self.steps.items(), key=lambda each: median(each[1].began_ms or [1e9])):
            if step.calls:
                times = "" if median(step.calls) == 1 else f", {median(step.calls):g} times"
                numbers = (median(values) for values in (step.began_ms, step.took_ms, step.cpu_ms))
                lines.append(" ".join(f"{each:8.2f}" for each in numbers) + f"   {label}{times}")
        lines.append(
            f"{median(self.took_ms):17.2f} {median(self.host_cpu_ms):8.2f}   from request to result; host, all threads"
        )
        return lines


class _Counted:
    """An awaitable that counts the processor time of the steps of a coroutine."""

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine
        self.cpu = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            began = time.thread_time()
            try:
                waited = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.cpu += time.thread_time() - began
            try:
                value, error = (yield waited), None
            except BaseException as raised:
                value, error = None, raised


def instrumented(line: TimeLine) -> ExitStack:
    """Return a context in which the steps note their times. Raises AttributeError for a step that is no more."""
    with ExitStack() as stack:
        for label, name in STEPS:
            module, _, path = name.partition(":")
            owner: Any = import_module(module)
            *outer, attribute = path.split(".")
            for each in outer:
                owner = getattr(owner, each)
            stack.enter_context(mock.patch.object(owner, attribute, line.wrapped(label, getattr(owner, attribute))))
        return stack.pop_all()


async def measure(runs: int) -> TimeLine:
    """Return the time line of function agents that start in parked processes."""
    line = TimeLine()
    with TemporaryDirectory(prefix="ramet-bench-") as folder, instrumented(line):
        backend = BwrapBackend(runs=Path(folder) / ".ramet" / "runs", parked_count=4)
        async with AgentRuntime(folder, backend=backend) as runtime:
            for number in range(runs + WARM_UP):
                with line.run(counts=number >= WARM_UP):
                    result = await runtime.run_agent(nothing, Policy())
                assert result.output == 1, result
                await asyncio.sleep(PAUSE_S)
        await backend.close()
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description="The time line of a run.")
    parser.add_argument("--runs", type=positive, default=100, help="function agents, one after another (default: 100)")
    asked = parser.parse_args(argv)
    before = machine.load()
    line = asyncio.run(measure(asked.runs))
    print(f"commit {machine.commit()}, {asked.runs} runs, load average {before} before, {machine.load()} after")
    print("\n".join(line.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
