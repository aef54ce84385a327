"""Report of a soak: what grows with the number of turns, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

from benchmarks.soak.server import Sample

LEAST: Final = 3  #: points of one process, below which nothing is said of it


class Goal(NamedTuple):
    """The largest growth in 1,000 turns that is acceptable; with `of_mean`, as a share of the mean."""

    most: float
    of_mean: bool = False


class Row(NamedTuple):
    """A line of the table: a slope for each 1,000 turns, and whether it meets its goal."""

    name: str
    unit: str
    first: float | None
    last: float | None
    slope: float | None
    goal: Goal | None

    @property
    def reached(self) -> bool | None:
        """Return whether the goal is met; None without a goal, or with too few values."""
        if self.goal is None or self.slope is None or self.first is None or self.last is None:
            return None
        most = self.goal.most * ((self.first + self.last) / 2 if self.goal.of_mean else 1)
        return self.slope <= most


class Point(NamedTuple):
    """A value of one process after so many turns."""

    life: int
    turns: float
    value: float


_VALUES: Final[Sequence[tuple[str, str, Callable[[Sample], float], Goal | None]]] = (
    ("resident memory", "MB", lambda each: each.rss_mb, Goal(5.0)),
    ("descriptors", "", lambda each: each.descriptors, Goal(1.0)),
    ("threads", "", lambda each: each.threads, Goal(1.0)),
    ("WAL", "MB", lambda each: each.wal_mb, None),
    ("journal", "MB", lambda each: each.journal_mb, None),
    ("folders of runs", "", lambda each: each.folders, None),
)


def rows(samples: Sequence[Sample], warm_up: int) -> list[Row]:
    """Return the lines of the table, without the first `warm_up` turns of each process."""
    warm = _warm(samples, warm_up)
    found = [_row(name, unit, [Point(each.life, each.turns, value(each)) for each in warm], goal)
             for name, unit, value, goal in _VALUES]  # fmt: skip
    return [*found, _row("processor time of a turn", "ms", _cpu(warm), Goal(0.05, of_mean=True))]


def slope(points: Sequence[Point]) -> float | None:
    """Return the growth in 1,000 turns by least squares, with an offset for each process; None for too few points."""
    above = below = 0.0
    count = 0
    for _, group in groupby(points, key=lambda each: each.life):
        of_life = list(group)
        if len(of_life) < LEAST:
            continue
        turns = sum(each.turns for each in of_life) / len(of_life)
        value = sum(each.value for each in of_life) / len(of_life)
        above += sum((each.turns - turns) * (each.value - value) for each in of_life)
        below += sum((each.turns - turns) ** 2 for each in of_life)
        count += len(of_life)
    return 1_000 * above / below if count and below else None


def table(lines: Iterable[Row]) -> str:
    """Return the lines as text for a terminal."""
    head = f"{'':<26} {'first':>10} {'last':>10} {'in 1,000 turns':>15}  goal"
    return "\n".join([head, *(_line(each) for each in lines)])


def as_json(lines: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the lines as plain data."""
    return [
        {
            "name": each.name,
            "unit": each.unit,
            "first": each.first,
            "last": each.last,
            "slope_per_1000_turns": each.slope,
            "goal": each.goal._asdict() if each.goal is not None else None,
            "reached": each.reached,
        }
        for each in lines
    ]


def _warm(samples: Sequence[Sample], warm_up: int) -> list[Sample]:
    begun: dict[int, int] = {}
    for each in samples:
        begun.setdefault(each.life, each.turns)
    return [each for each in samples if each.turns - begun[each.life] >= warm_up]


def _cpu(samples: Sequence[Sample]) -> list[Point]:
    """Return the CPU time of a turn, from each pair of samples of one process with turns between them."""
    return [
        Point(one.life, (one.turns + other.turns) / 2, (other.cpu_ms - one.cpu_ms) / (other.turns - one.turns))
        for one, other in pairwise(samples)
        if one.life == other.life and other.turns > one.turns
    ]


def _row(name: str, unit: str, points: Sequence[Point], goal: Goal | None) -> Row:
    """Return a line whose `first` and `last` are means of the first and last fifth of the points."""
    fifth = max(1, len(points) // 5)
    first = sum(each.value for each in points[:fifth]) / fifth if points else None
    last = sum(each.value for each in points[-fifth:]) / fifth if points else None
    return Row(name, unit, first, last, slope(points), goal)


def _line(row: Row) -> str:
    numbers = ["-" if each is None else f"{each:.3f}" for each in (row.first, row.last, row.slope)]
    name = f"{row.name}{f', {row.unit}' if row.unit else ''}"
    goal = ""
    if row.goal is not None:
        most = f"{row.goal.most:.0%} of it" if row.goal.of_mean else f"{row.goal.most:g}"
        goal = f"<= {most}: {'too short to say' if row.reached is None else 'yes' if row.reached else 'no'}"
    return f"{name:<26} {numbers[0]:>10} {numbers[1]:>10} {numbers[2]:>15}  {goal}".rstrip()
