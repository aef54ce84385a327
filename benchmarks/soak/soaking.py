"""A soak: server processes one after the other, workers that continue across them, and samples."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

import ramet
from benchmarks.soak import report
from benchmarks.soak.load import TEAM, Account, Worker
from benchmarks.soak.server import Sample, Server

SAMPLES: Final = 300  #: of a whole soak, about
_LEAST_PAUSE_S: Final = 0.2
_LOOK_S: Final = 0.05
_PROGRESS_S: Final = 30.0  #: between two lines of progress


class Plan(Struct, frozen=True, kw_only=True):
    """Plan of a soak. Without SIGKILL and SIGTERM in between, `lives` is 1."""

    seconds: float
    workers: int = 4
    lives: int = 4
    warm_up: int = 300  #: turns of each process that are left out of slopes
    seed: int = 2


class Outcome(Struct, frozen=True, kw_only=True):
    """Outcome of a soak."""

    plan: Plan
    account: Account
    samples: Sequence[Sample]
    seconds: float
    tracebacks: int
    sockets_left: Sequence[str]
    end_codes: Sequence[int]

    @property
    def is_sound(self) -> bool:
        """Return whether no turn was lost, doubled or wrong, and no traceback and no socket is left."""
        account = self.account
        return not (account.lost or account.doubled or account.wrong or self.tracebacks or self.sockets_left)

    @property
    def rows(self) -> list[report.Row]:
        """Return the slopes of the sampled values."""
        return report.rows(self.samples, self.plan.warm_up)

    def text(self) -> str:
        """Return the report for a terminal."""
        account = self.account
        done = ", ".join(f"{count} {act}" for act, count in sorted(account.done.items()))
        return "\n".join(
            [
                f"{account.turns} turns ({done}) in {self.seconds:.0f} s, seed {self.plan.seed}; processes ended by "
                f"{self.end_codes}; {account.interrupted} requests broken off by a restart",
                f"lost {len(account.lost)}, doubled {len(account.doubled)}, wrong {len(account.wrong)}, "
                f"tracebacks {self.tracebacks}, sockets left {len(self.sockets_left)}",
                *(f"  {each}" for each in (*account.lost[:5], *account.doubled[:5], *account.wrong[:5])),
                report.table(self.rows),
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the report and every sample, as plain data."""
        account = self.account
        return {
            "plan": msgspec.to_builtins(self.plan),
            "seconds": round(self.seconds, 3),
            "turns": account.turns,
            "done": dict(account.done),
            "interrupted": account.interrupted,
            "lost": account.lost,
            "doubled": account.doubled,
            "wrong": account.wrong,
            "tracebacks": self.tracebacks,
            "sockets_left": list(self.sockets_left),
            "end_codes": list(self.end_codes),
            "sound": self.is_sound,
            "rows": report.as_json(self.rows),
            "samples": msgspec.to_builtins(self.samples),
        }


async def soak(plan: Plan, progress: Callable[[str], object] = lambda line: None) -> Outcome:
    """Soak a server in its own folder. Neither the folder nor a process of the server is left in the end.

    `progress` is called with a line for each process of the server when it is up, and every half minute.
    """
    with tempfile.TemporaryDirectory(prefix="soak") as path:
        server = Server(pathlib.Path(path))
        try:
            return await _Soak(plan, server, progress).run()
        finally:
            await server.end(signal.SIGKILL)


class _Soak:
    def __init__(self, plan: Plan, server: Server, progress: Callable[[str], object]) -> None:
        self._plan, self._server, self._progress = plan, server, progress
        self._account, self._is_up, self._is_over = Account(), asyncio.Event(), False
        self._samples: list[Sample] = []
        self._began = time.monotonic()
        self._workers = [
            Worker(number, plan.seed, server, self._account, self._is_up) for number in range(plan.workers)
        ]

    async def run(self) -> Outcome:
        """Run all processes of the server. The last one ends once all workers have checked their conversations."""
        await self._server.start()
        async with ramet.connect(self._server.socket) as client:
            # An agent whose birth or end a restart cut off is nobody's, and keeps its place.
            agent_count = self._plan.workers * (3 + 2 * self._plan.lives)
            team = await client.create_team({"agents": agent_count}, name=TEAM)
        self._is_up.set()
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample())
            working = [group.create_task(each.work(team.key, lambda: self._is_over)) for each in self._workers]
            for life in range(self._plan.lives - 1):
                await self._live(working, life)
                self._is_up.clear()
                await self._server.end(signal.SIGTERM if life % 2 else signal.SIGKILL)
                await self._server.start()
                self._is_up.set()
            await self._live(working, self._plan.lives - 1)
            self._is_over = True
            await asyncio.wait(working)
            sampling.cancel()
        await self._server.end(signal.SIGTERM)
        return Outcome(
            plan=self._plan,
            account=self._account,
            samples=self._samples,
            seconds=time.monotonic() - self._began,
            tracebacks=self._server.tracebacks,
            sockets_left=self._server.sockets_left(),
            end_codes=self._server.end_codes,
        )

    async def _live(self, working: Sequence[asyncio.Task[None]], life: int) -> None:
        """Give a process its share of the time, and give each worker time for a few rounds."""
        next_line = time.monotonic()
        until = time.monotonic() + self._plan.seconds / self._plan.lives
        rounds = [each.rounds for each in self._workers]
        while time.monotonic() < until or any(
            each.rounds < before + 5 for each, before in zip(self._workers, rounds, strict=True)
        ):
            if any(each.done() for each in working):
                return  # It failed: the group says how.
            if time.monotonic() >= next_line:
                next_line += _PROGRESS_S
                self._progress(self._line(life))
            await asyncio.sleep(_LOOK_S)

    def _line(self, life: int) -> str:
        plan, account = self._plan, self._account
        bad = len(account.lost) + len(account.doubled) + len(account.wrong)
        return (
            f"{time.monotonic() - self._began:.0f} of {plan.seconds:.0f} s, process {life + 1} of {plan.lives}: "
            f"{account.turns} turns, {bad} of them lost, doubled or wrong"
        )

    async def _sample(self) -> None:
        pause = max(_LEAST_PAUSE_S, self._plan.seconds / SAMPLES)
        while True:
            await self._is_up.wait()
            try:
                self._samples.append(self._server.sample(time.monotonic() - self._began, self._account.turns))
            except (OSError, AssertionError):
                pass  # It is being ended.
            await asyncio.sleep(pause)
