"""Metrics as text: Prometheus' exposition format 0.0.4.

This is a small implementation of our own: the client library takes 95 ms and 14 MB to import, and 1.7 µs to count with
a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from ramet.host.observability.counters import Histogram

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class Sample(NamedTuple):
    """A value, of the family's name and a suffix."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """The values of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    samples: Sequence[Sample]


def samples_by(label: str, values: Mapping[str, float]) -> list[Sample]:
    """Return a sample for each value of a label, in the order of the label's values."""
    return [Sample(value, {label: name}) for name, value in sorted(values.items())]


def buckets(histogram: Histogram) -> list[Sample]:
    count = histogram.count
    samples = [Sample(total, {"le": _number(bound)}, "_bucket") for bound, total in histogram.cumulative()]
    return [
        *samples,
        Sample(count, {"le": "+Inf"}, "_bucket"),
        Sample(histogram.sum, {}, "_sum"),
        Sample(count, {}, "_count"),
    ]


def exposition(families: Iterable[Family]) -> str:
    """Return the text of the families; families without a sample are left out."""
    lines: list[str] = []
    for each in families:
        if each.samples:
            lines += [f"# HELP {each.name} {each.help.translate(_HELP)}", f"# TYPE {each.name} {each.kind}"]
            lines += [_line(each.name, sample) for sample in each.samples]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{label}="{value.translate(_LABEL)}"' for label, value in sample.labels.items())
    return f"{name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
