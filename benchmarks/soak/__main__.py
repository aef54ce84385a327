"""`python -m benchmarks.soak [--minutes N] [--lives N] [--workers N] [--seed N] [--json FILE]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import ROOT
from benchmarks.soak.soaking import Plan, soak

RESULTS = ROOT / "benchmarks" / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the report and write it; 0 only if nothing was lost, doubled or wrong."""
    asked = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # asyncio.run cancels all in order.
    began = datetime.now(UTC)
    plan = Plan(
        seconds=asked.minutes * 60, workers=asked.workers, lives=asked.lives, warm_up=asked.warm_up, seed=asked.seed
    )
    try:
        outcome = asyncio.run(soak(plan, progress=_progress))
    except KeyboardInterrupt:
        print("soak: ended before its time, without a report", file=sys.stderr)
        return 130
    path = asked.json or RESULTS / f"soak-{began:%Y-%m-%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "began": began.isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "load": machine.load(),
    }
    path.write_text(json.dumps({**about, **outcome.as_json()}, indent=1) + "\n")
    print(outcome.text())
    print(f"written to {path}")
    return 0 if outcome.is_sound else 1


def _progress(line: str) -> None:
    print(f"soak: {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Soak `ramet serve`.")
    parser.add_argument("--minutes", type=_positive, default=25.0, help="of load; starts and ends come on top (25)")
    parser.add_argument("--lives", type=int, default=6, help="processes, ended by SIGKILL and SIGTERM in turns (6)")
    parser.add_argument("--workers", type=int, default=4, help="clients that talk at once (4)")
    parser.add_argument("--warm-up", type=int, default=300, help="turns of each process left out of slopes (300)")
    parser.add_argument("--seed", type=int, default=2, help="of what the workers do (2)")
    parser.add_argument("--json", type=Path, help="where to write all of it (benchmarks/results/soak-…)")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
