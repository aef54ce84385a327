"""A strict reader of the text exposition format of Prometheus, 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_VALUE = r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|Inf)|NaN"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\n|\\")*)"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL},?)*)\}})? ({_VALUE})")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\"": '"'}

Labels = frozenset[tuple[str, str]]


class Scrape(NamedTuple):
    """The metrics that a server reported."""

    kinds: Mapping[str, str]  #: by family
    values: Mapping[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float:
        """Return one value; 0 if there is none yet."""
        return self.values.get((name, frozenset(labels.items())), 0.0)


def scrape(text: str) -> Scrape:
    """Read the metrics in a text. Raises AssertionError with the line that is not valid."""
    kinds, helped, values = dict[str, str](), set[str](), dict[tuple[str, Labels], float]()
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped, line
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, line
            assert kind in ("counter", "gauge", "histogram", "summary"), line
            kinds[name] = kind
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            name = found[1]
            family = list(kinds)[-1]  # a family's lines are together, below its type
            suffixes = _SUFFIXES.get(kinds[family], ("",))
            assert name in {family + suffix for suffix in suffixes}, line
            labels = frozenset((label, _plain(value)) for label, value in re.findall(_LABEL, found[2] or ""))
            assert (name, labels) not in values, line
            values[name, labels] = float(found[found.lastindex or 0])
    assert helped == set(kinds)
    return Scrape(kinds, values)


def _plain(value: str) -> str:
    return re.sub(r'\\[\\n"]', lambda found: _ESCAPES[found[0]], value)
