"""`ramet serve` as a process of the soak: started in a folder, sampled, and ended by a signal."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Final

from msgspec import Struct

from benchmarks.machine import ROOT
from benchmarks.soak.agents import PLUGIN

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 1e6
_TRACEBACK: Final = b"Traceback (most recent call last)"


class Sample(Struct, frozen=True, kw_only=True):
    """Use of a server at one moment. Sizes in MB of 10^6 bytes; `cpu_ms` since the process began."""

    life: int  #: number of the process, from 0
    at_s: float  #: since the soak began
    turns: int  #: of all processes until then
    rss_mb: float
    descriptors: float
    threads: float
    cpu_ms: float
    wal_mb: float
    journal_mb: float
    folders: float  #: in `.ramet/runs`


class Server:
    """A folder, and the process that serves it. `tracebacks` counts the tracebacks of all its processes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.state, self.socket = folder / ".ramet", folder / ".ramet" / "serve.sock"
        self.tracebacks = self.lives = 0
        self.end_codes: list[int] = []
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        info = folder / "plugin" / "soak-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soak\nVersion: 1\n")
        (info / "entry_points.txt").write_text(PLUGIN)

    async def start(self) -> None:
        """Start a process, and wait until it listens. Raises RuntimeError with its log if it does not."""
        path = os.pathsep.join([str(self._folder / "plugin"), str(ROOT)])
        env = {**os.environ, "PYTHONPATH": path, "RAMET_HOME": str(self._folder / "home")}
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ramet", "serve", "--dir", str(self._folder), "--backend", "local",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, env=env,
            )  # fmt: skip
        self.lives += 1
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise RuntimeError(f"the server did not start: {(self._folder / 'log').read_text()[-2_000:]}")

    async def end(self, number: signal.Signals) -> None:
        """End the process by a signal, and wait for its end; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(number)
        self.end_codes.append(await process.wait())
        self.tracebacks = (self._folder / "log").read_bytes().count(_TRACEBACK)

    def sample(self, at_s: float, turns: int) -> Sample:
        """Measure the process. Raises OSError if it is not there."""
        assert self._process is not None
        proc = pathlib.Path(f"/proc/{self._process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        journal = self.state / "journal.db"
        return Sample(
            life=self.lives - 1,
            at_s=round(at_s, 3),
            turns=turns,
            rss_mb=round(int((proc / "statm").read_text().split()[1]) * _PAGE_MB, 3),
            descriptors=len(list((proc / "fd").iterdir())),
            threads=int(fields[17]),
            cpu_ms=(int(fields[11]) + int(fields[12])) * 1000 / _TICKS,
            wal_mb=_size_mb(journal.with_name("journal.db-wal")),
            journal_mb=_size_mb(journal),
            folders=_entries(self.state / "runs"),
        )

    def sockets_left(self) -> list[str]:
        """Return the names of the sockets in the folder: none once the last process has ended in order."""
        return sorted(each.name for each in self._folder.rglob("*") if each.is_socket())


def _size_mb(path: pathlib.Path) -> float:
    try:
        return round(path.stat().st_size / 1e6, 3)
    except OSError:
        return 0.0


def _entries(path: pathlib.Path) -> int:
    try:
        return len(os.listdir(path))  # noqa: PTH208 - names are not needed
    except OSError:
        return 0
