"""`python -m benchmarks.compare BASE [name …] [--rounds N] [--json OUT]`: this tree and a commit, in turn.

The machine is shared, so a figure of yesterday says little about today. Each round runs a measurement with both trees,
one process after the other; the order changes from round to round. The ratio is taken within each round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.arguments import positive
from benchmarks.base_checkout import Checkout, checkout_of
from benchmarks.catalogue import named
from benchmarks.measurement import Figure, Measurement
from benchmarks.sitting import own_command, run_measurement
from benchmarks.tables import number

ROUNDS = 5
#: Without names: what a user pays for a turn, for a child and for a sandbox, and it takes some minutes.
DEFAULT_NAMES = ["import-session", "turn", "child", "durable-turn", "durable-child", "opening", "isolated"]


@dataclass(kw_only=True)
class Comparison:
    """Pairs of values, base first, by measurement and figure: one pair for each round in which both succeeded."""

    pairs: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, measurement: Measurement, base: Mapping[str, float], ours: Mapping[str, float]) -> None:
        """Add the figures of a round. A figure that the base does not have is left out."""
        for figure in measurement.figures:
            if figure.key in base and figure.key in ours:
                self.pairs.setdefault((measurement.name, figure.key), []).append((base[figure.key], ours[figure.key]))

    def lines(self, measurements: Sequence[Measurement]) -> list[str]:
        """Return the comparison as text: medians of both, and the ratio with its range."""
        lines = [f"{'base':>10} {'now':>10}   now / base"]
        for measurement in measurements:
            figures = [each for each in measurement.figures if (measurement.name, each.key) in self.pairs]
            lines += [f"{measurement.name}: {measurement.title}"] if figures else []
            lines += [self._line(each, self.pairs[measurement.name, each.key]) for each in figures]
        return lines

    def _line(self, figure: Figure, pairs: Sequence[tuple[float, float]]) -> str:
        base, ours = (median(values) for values in zip(*pairs, strict=True))
        found = sorted(now / before for before, now in pairs if before > 0)
        ratio = f"{median(found):6.2f} ({found[0]:.2f} to {found[-1]:.2f})" if found else "     - (a base of 0)"
        return f"{number(base):>10} {number(ours):>10} {ratio}  {figure.unit} {figure.label}".rstrip()


def compare(measurements: Sequence[Measurement], base: Checkout, ours: Checkout, *, rounds: int) -> Comparison:
    """Measure both trees in turn. A failure is noted, and the rest continues."""
    comparison = Comparison()
    for round_number in range(1, rounds + 1):
        for measurement in measurements:
            if round_number > measurement.most_rounds:
                continue
            print(f"round {round_number} of {rounds}: {measurement.name}", file=sys.stderr)
            found: dict[str, dict[str, float]] = {}
            for checkout in (base, ours) if round_number % 2 else (ours, base):
                command = own_command(measurement, checkout.python, checkout.root)
                try:
                    found[checkout.name] = run_measurement(command, checkout.root)
                except (RuntimeError, ValueError) as failure:
                    what = f"{measurement.name}, {checkout.name}, round {round_number}"
                    comparison.failures.append(f"{what}: {failure}")
            if len(found) == 2:
                comparison.add(measurement, found[base.name], found[ours.name])
    return comparison


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return 0 only if every measurement succeeded with both trees."""
    asked = _parser().parse_args(argv)
    try:
        chosen = named(asked.names or DEFAULT_NAMES)
        base = checkout_of(asked.base)
    except (LookupError, RuntimeError) as problem:
        print(problem.args[0], file=sys.stderr)
        return 2
    about: dict[str, Any] = {"base": base.name, "commit": machine.commit(), "machine": machine.machine()}
    about |= {"rounds": asked.rounds, "load_before": machine.load()}
    ours = Checkout(name=f"this tree ({about['commit']})", root=machine.ROOT, python=sys.executable)
    comparison = compare(chosen, base, ours, rounds=asked.rounds)
    about["load_after"] = machine.load()
    print(f"base {base.name}, now {about['commit']}, {asked.rounds} rounds; medians")
    print(f"load average {about['load_before']} before, {about['load_after']} after")
    if base.has_other_measurements:
        print("each tree has been measured by its own benchmarks, and these differ: look at `git diff -- benchmarks`")
    print("\n".join(["", *comparison.lines(chosen)]))
    if asked.json:
        pairs = {f"{name}.{key}": values for (name, key), values in comparison.pairs.items()}
        asked.json.write_text(json.dumps({**about, "pairs": pairs}, indent=1) + "\n")
    if comparison.failures:
        print("\n".join(["", "could not be measured:", *comparison.failures]), file=sys.stderr)
    return 1 if comparison.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Compare this tree to a commit.")
    parser.add_argument("base", help="a commit, branch or tag of this repository")
    parser.add_argument("names", nargs="*", help=f"which measurements; by default {', '.join(DEFAULT_NAMES)}")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help=f"pairs of processes (default: {ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every pair to a file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
