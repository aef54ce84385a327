"""A sitting: every measurement in fresh processes, round by round, with peers right after ours.

Rounds go over all measurements, not over one after the other, so that what else the machine does is spread over all;
and a ratio to a peer is taken within each round, between two processes that ran one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.machine import ROOT
from benchmarks.measurement import Figure, Measurement
from benchmarks.projects import OURS, OURS_DURABLE

TIMEOUT_S = 120
NO_TELEMETRY = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(kw_only=True)
class Sitting:
    """Values of a sitting by measurement, measured project and figure: one value for each round."""

    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  #: of our measurements
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)  #: reasons, by measurement and peer

    def add(self, measurement: Measurement, project: str, figures: Mapping[str, float]) -> None:
        """Add the figures that one process printed."""
        series = self.values.setdefault(measurement.name, {}).setdefault(project, {})
        for figure in measurement.figures:
            if figure.ours_only and project != OURS:
                continue
            series.setdefault(figure.key, []).append(float(f"{figures[figure.key]:.6g}"))

    def leave_out(self, measurement: Measurement, peer: str, reason: str) -> None:
        """Drop what a peer has measured: a ratio is taken within each round, so all rounds are needed."""
        self.left_out[measurement.name, peer] = reason
        self.values.get(measurement.name, {}).pop(peer, None)

    def of(self, measurement: Measurement, figure: Figure, project: str = OURS) -> list[float]:
        """Return the values of a figure, in the order of the rounds; empty if it was not measured."""
        return self.values.get(measurement.name, {}).get(project, {}).get(figure.key, [])

    def is_whole(self, measurements: Sequence[Measurement]) -> bool:
        """Return whether each of our figures was measured, if not in each round."""
        return all(self.of(each, figure) for each in measurements for figure in each.figures)

    def has(self, measurement: Measurement, project: str) -> bool:
        """Return whether a measurement has values of a project."""
        return project in self.values.get(measurement.name, {})

    def ratio(self, measurement: Measurement, figure: Figure, peer: str) -> float | None:
        """Return how many times as much a peer takes: the median over the rounds."""
        pairs = zip(self.of(measurement, figure, peer), self.of(measurement, figure), strict=False)
        ratios = [theirs / ours for theirs, ours in pairs if ours > 0]
        return median(ratios) if ratios else None


def sit(measurements: Sequence[Measurement], *, rounds: int, peers: Mapping[str, str]) -> Sitting:
    """Measure. `peers` are interpreters by the name of the peer. A failure is noted, and the rest continues.

    A peer that fails is left out of that measurement from then on.
    """
    sitting = Sitting()
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "benchmarks"], cwd=ROOT, check=False)
    for number in range(1, rounds + 1):
        for each in measurements:
            if number > each.most_rounds:
                continue
            print(f"round {number} of {rounds}: {each.name}", file=sys.stderr)
            for project, command in _commands(each, peers):
                if (each.name, project) in sitting.left_out:
                    continue
                try:
                    sitting.add(each, project, run_measurement(command))
                except (RuntimeError, LookupError, ValueError) as failure:
                    if project == OURS:
                        sitting.failures.append(f"{each.name}, {project}, round {number}: {failure}")
                    else:
                        sitting.leave_out(each, project, f"round {number}: {failure}")
    return sitting


def _commands(measurement: Measurement, peers: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return the projects to measure, in turn, with their commands."""
    theirs = [(name, [peers[name], *_harness(measurement, name)]) for name in measurement.peers if name in peers]
    return [(OURS, own_command(measurement)), *theirs]


def own_command(measurement: Measurement, python: str = sys.executable, root: Path = ROOT) -> list[str]:
    """Return the command of our measurement, with the interpreter and the sources of a checkout."""
    match measurement.kind:
        case "import":
            script = str(root / "benchmarks" / "measures" / "imports.py")
            return [python, "-P", script, *measurement.arguments]
        case "measure":
            return [python, "-m", "benchmarks.measures", *measurement.arguments]
        case "durable":
            return [python, *_harness(measurement, OURS_DURABLE, root)]
        case "harness":
            return [python, *_harness(measurement, OURS, root)]


def _harness(measurement: Measurement, project: str, root: Path = ROOT) -> list[str]:
    return [str(root / "benchmarks" / "peers" / f"bench_{project}.py"), *measurement.arguments]


def run_measurement(command: Sequence[str], root: Path = ROOT) -> dict[str, float]:
    """Return the figures that a fresh process prints on its last line. Raises RuntimeError if it fails."""
    # The harness leaves by os._exit, so nobody else would clear away what it and the peers leave in files.
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as scratch:
        os.chmod(scratch, 0o711)  # noqa: PTH101 - PostgreSQL runs as another user where we are root
        environment = _environment() | {"TMPDIR": scratch}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done within {TIMEOUT_S} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"status {done.returncode}: {done.stderr.strip()[-1500:]}")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _environment() -> dict[str, str]:
    """Return our environment without settings that slow imports down, send traces, or redirect loopback requests."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return variables | {"NO_PROXY": "127.0.0.1", **NO_TELEMETRY}
