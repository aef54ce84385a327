"""Types of a measurement: a process that prints figures, each with its unit and perhaps a goal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A number of a measurement. `key` is its name in the output of the process."""

    key: str
    label: str
    unit: str
    at_most: float | None = None
    exactly: float | None = field(default=None, kw_only=True)
    ours_only: bool = field(default=False, kw_only=True)  #: no peer does what this figure measures

    @property
    def goal(self) -> str:
        """Return the goal as a table shows it."""
        if self.exactly is not None:
            return f"{self.exactly:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    def is_met(self, value: float) -> bool | None:
        """Return whether `value` meets the goal; None if there is none."""
        if self.exactly is not None:
            return value == self.exactly
        return None if self.at_most is None else value <= self.at_most


Kind = Literal["import", "harness", "durable", "measure"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A process that prints figures. It is run `rounds` times, or fewer times if it takes long."""

    name: str
    title: str
    kind: Kind  #: a bare import; our adapter in `peers/`, without and with a journal; `benchmarks.measures`
    arguments: tuple[str, ...]
    figures: tuple[Figure, ...]
    most_rounds: int = 100
    on_cluster: bool = False  #: needs a Kubernetes, by KUBECONFIG and REGISTRY
    peers: tuple[str, ...] = ()  #: names of the peers that do the same work, with the same arguments
    table: str = ""  #: heading of the table that shows them side by side
