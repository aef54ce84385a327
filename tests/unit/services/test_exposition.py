"""Metrics in Prometheus's text format, whatever a label contains."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.concurrency.clock import FakeClock
from ramet.core.events import ToolEnded
from ramet.host.journal.recorder import Recorder
from ramet.host.observability.counters import OTHER, Counts, Histogram
from ramet.services.operator.prometheus import Family, Sample, buckets, exposition, samples_by
from tests.support.context import run_info
from tests.support.prometheus import scrape


def test_the_text_has_prometheus_format() -> None:
    """Each family has its help and type once, then its samples; a family without samples is omitted."""
    families = [
        Family("a_total", "counter", "What\nis\\counted.", samples_by("status", Counter(ok=2, bad=1))),
        Family("b", "gauge", "Now.", [Sample(0.25)]),
        Family("c", "gauge", "Never.", []),
    ]

    assert exposition(families) == (
        "# HELP a_total What\\nis\\\\counted.\n# TYPE a_total counter\n"
        'a_total{status="bad"} 1\na_total{status="ok"} 2\n'
        "# HELP b Now.\n# TYPE b gauge\nb 0.25\n"
    )


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_value_are_read_back(label: str, value: float) -> None:
    """Any text stays within its label and on one line."""
    text = exposition([Family("a", "gauge", "It.", [Sample(value, {"label": label})])])

    assert scrape(text).values == {("a", frozenset({("label", label)})): value}


@given(st.lists(st.floats(min_value=0, max_value=10)))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    """The last bucket holds all values, and each bucket holds the values up to its bound."""
    histogram = Histogram([0.5, 1.0, 5.0])
    for value in values:
        histogram.observe(value)

    metrics = scrape(exposition([Family("a", "histogram", "It.", buckets(histogram))]))

    for bucket_bound, label in ((0.5, "0.5"), (1.0, "1"), (5.0, "5"), (math.inf, "+Inf")):
        assert metrics.value("a_bucket", le=label) == sum(value <= bucket_bound for value in values)
    assert metrics.value("a_count") == len(values)
    assert metrics.value("a_sum") == pytest.approx(sum(values))


def test_statuses_from_guests_do_not_fill_the_memory() -> None:
    """Statuses are counted by name up to 50; later ones count as "other"."""
    counts, clock = Counts(FakeClock().now), FakeClock()
    recorder = Recorder(clock)
    listening = counts.attach(recorder)

    for number in range(1_000):
        recorder.append(ToolEnded(**run_info().stamp, tool="t", status=f"made up {number}"))
    listening.close()

    assert len(counts.tools) == 51
    assert counts.tools[OTHER] == 950
    recorder.close()
