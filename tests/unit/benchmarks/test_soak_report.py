"""Report of a soak: slopes by least squares, each process from its own level, without its warm-up."""

from __future__ import annotations

import pytest

from benchmarks.soak.report import Point, as_json, rows, slope, table
from benchmarks.soak.server import Sample


def sample(life: int, turns: int, *, rss_mb: float = 100.0, cpu_ms: float = 0.0) -> Sample:
    """Return a sample in which other values do not change."""
    return Sample(
        life=life,
        at_s=float(turns),
        turns=turns,
        rss_mb=rss_mb,
        descriptors=20,
        threads=4,
        cpu_ms=cpu_ms,
        wal_mb=1.0,
        journal_mb=2.0,
        folders=3,
    )


def test_each_process_starts_at_its_own_level() -> None:
    """Two that grow alike have one slope, however different they are; their difference is no growth."""
    points = [Point(life, turns, level + turns * 0.004) for life, level in ((0, 90.0), (1, 10.0))
              for turns in range(life * 500, life * 500 + 500, 50)]  # fmt: skip

    result = slope(points)

    assert result == pytest.approx(4.0)


def test_too_few_points_have_no_slope() -> None:
    """Two samples of one process and constant points give no slope."""
    assert slope([]) is None
    assert slope([Point(0, 1, 1.0), Point(0, 2, 9.0)]) is None
    assert slope([Point(0, 1, each) for each in (1.0, 2.0, 3.0)]) is None


def test_the_first_turns_of_each_process_are_omitted() -> None:
    """A process that grows only while it warms up does not grow."""
    samples = [
        sample(life, 1_000 * life + turns, rss_mb=min(turns, 300) / 3, cpu_ms=10.0 * turns)
        for life in (0, 1)
        for turns in range(0, 1_000, 50)
    ]

    by_name = {each.name: each for each in rows(samples, warm_up=300)}
    memory, cpu = by_name["resident memory"], by_name["processor time of a turn"]

    assert (memory.slope, memory.first, memory.last) == pytest.approx((0.0, 100.0, 100.0))
    assert memory.reached is True
    assert (cpu.first, cpu.slope) == pytest.approx((10.0, 0.0))
    assert cpu.reached is True


def test_growth_beyond_the_goal_is_reported() -> None:
    """The table and the JSON say so; values without a goal and short soaks are not judged."""
    grows = [sample(0, turns, rss_mb=100 + turns * 0.006, cpu_ms=turns**2 / 100) for turns in range(0, 3_000, 100)]

    figures = {each["name"]: each for each in as_json(rows(grows, warm_up=0))}
    lines = table(rows(grows, warm_up=0)).splitlines()

    assert figures["resident memory"]["slope_per_1000_turns"] == pytest.approx(6.0)
    assert figures["resident memory"]["reached"] is False
    assert figures["processor time of a turn"]["reached"] is False
    assert figures["descriptors"]["reached"] is True
    assert figures["WAL"]["reached"] is None
    assert [line for line in lines if line.endswith(": no")] == [lines[1], lines[7]]
    assert [each.reached for each in rows(grows[:2], warm_up=0)] == [None] * 7
