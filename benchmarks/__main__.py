"""`python -m benchmarks [name …] [--peers] [--rounds N] [--json OUT] [--plots FOLDER] [--write]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, plots, tables
from benchmarks.arguments import positive
from benchmarks.catalogue import CATALOGUE, named
from benchmarks.machine import ROOT
from benchmarks.measurement import Measurement
from benchmarks.projects import PEERS, Peer
from benchmarks.sitting import Sitting, sit
from benchmarks.venvs import interpreters_of

PAGE = ROOT / "docs" / "design" / "performance.md"
PLOTS = ROOT / "docs" / "plots"
RESULTS = ROOT / "benchmarks" / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return 0 only if every measurement of ours succeeded: a peer that fails is left out."""
    asked = _parser().parse_args(argv)
    if asked.list:
        print("\n".join(f"{each.name:<16} {each.title}" for each in CATALOGUE))
        return 0
    try:
        chosen = named(asked.names)
    except LookupError as problem:
        print(problem.args[0], file=sys.stderr)
        return 2
    left_out = [each.name for each in chosen if each.on_cluster] if not machine.has_cluster() else []
    if left_out and asked.names:
        print(f"{', '.join(left_out)}: on a cluster only, by KUBECONFIG and REGISTRY (tests/cluster)", file=sys.stderr)
        return 2
    if asked.write and (asked.names or not asked.peers):
        print("--write keeps whole sittings only: with --peers, without names", file=sys.stderr)
        return 2
    if left_out:
        print(f"left out, without KUBECONFIG and REGISTRY: {', '.join(left_out)}", file=sys.stderr)
        chosen = tuple(each for each in chosen if each.name not in left_out)
    about, sitting = _measure(chosen, asked)
    _show(about, chosen, sitting, PEERS if asked.peers else ())
    data = tables.as_data(about, chosen, sitting)
    if asked.json:
        _save(asked.json, data)
    if asked.plots:
        plots.write_all(data, asked.plots)
    for (name, peer), reason in sitting.left_out.items():
        print(f"left out: {peer}, {name}: {reason}", file=sys.stderr)
    if sitting.failures:
        print("\n".join(["", "could not be measured:", *sitting.failures]), file=sys.stderr)
        if not sitting.is_whole(chosen):
            return 1  # and a sitting without some of its figures is not kept
    if asked.write:
        _save(RESULTS / f"{about['began'][:10]}-{about['commit']}.json", data)
        plots.write_all(data, PLOTS)
        PAGE.write_text(tables.put_into(PAGE.read_text(), tables.for_page(about, chosen, sitting, PEERS)))
    return 1 if sitting.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what ramet costs.")
    parser.add_argument("names", nargs="*", help="which measurements; all without")
    parser.add_argument("--list", action="store_true", help="list the measurements")
    parser.add_argument(
        "--peers", action="store_true", help="measure the peers in the same sitting (installs them once)"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="processes for each measurement (default: 5)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every value to a file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw what peers took part in, as SVG files")
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the sitting in benchmarks/results, docs/design/performance.md and docs/plots",
    )
    return parser


def _measure(chosen: Sequence[Measurement], asked: argparse.Namespace) -> tuple[dict[str, Any], Sitting]:
    needed = {name for each in chosen for name in each.peers} if asked.peers else set()
    interpreters, problems = interpreters_of([peer for peer in PEERS if peer.name in needed])
    switches = [f"--{name}" for name in ("peers", "write") if getattr(asked, name)]
    about: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks", *asked.names, *switches]),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "rounds": asked.rounds,
        "peers": {peer.name: peer.packages for peer in PEERS if peer.name in interpreters},
        "load_before": machine.load(),
    }
    began = time.monotonic()
    sitting = sit(chosen, rounds=asked.rounds, peers=interpreters)
    for each in chosen:
        for name in sorted(problems.keys() & set(each.peers)):
            sitting.leave_out(each, name, f"cannot be installed: {problems[name]}")
    return {**about, "took_s": round(time.monotonic() - began, 1), "load_after": machine.load()}, sitting


def _show(about: dict[str, Any], chosen: Sequence[Measurement], sitting: Sitting, peers: Sequence[Peer]) -> None:
    hardware = about["machine"]
    print(f"{hardware['cores']} cores of {hardware['cpu']}, {hardware['system']}, Python {hardware['python']}")
    print(f"commit {about['commit']}, {about['rounds']} rounds in {about['took_s']:.0f} s")
    print(f"load average {about['load_before']} before, {about['load_after']} after\n")
    print(tables.for_terminal(chosen, sitting, peers))


def _save(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
