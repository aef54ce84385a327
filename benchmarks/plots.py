"""Plots of a sitting as SVG: one picture for each measurement in which peers took part, from the sitting's JSON.

The same JSON gives the same bytes. `python -m benchmarks.plots RESULT.json FOLDER` draws a kept sitting once more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.projects import OURS, PEERS
from benchmarks.tables import number

WIDTH, MARGIN, LABELS, BAR_WIDTH, ROW = 760, 20, 160, 430, 26
STYLE = """
  .page { fill: #ffffff; } text { fill: #1f2328; font: 13px system-ui, sans-serif; }
  .title { font-size: 15px; font-weight: 600; } .small { font-size: 11px; fill: #59636e; }
  .ours { fill: #1f6feb; } .peer { fill: #8c959f; } .worst { stroke: #1f2328; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; }
    .ours { fill: #4493f8; } .peer { fill: #6e7681; } .worst { stroke: #e6edf3; }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The values of one project, one for each round."""

    project: str
    values: Sequence[float]

    @property
    def label(self) -> str:
        """Return the name that readers know the project by."""
        return next((peer.label for peer in PEERS if peer.name == self.project), self.project)

    @property
    def does_not(self) -> str:
        """Return what the project does not do of the work that ours does."""
        return next((peer.does_not for peer in PEERS if peer.name == self.project), "")


def draw_all(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the pictures of a sitting's JSON, by the name of their measurement."""
    pictures = {}
    for name, measurement in data["measurements"].items():
        panels = [(figure, bars) for figure in measurement["figures"].values() if len(bars := _bars(figure)) > 1]
        if panels:
            pictures[name] = _picture(measurement["title"], panels, _origin(data))
    return pictures


def write_all(data: Mapping[str, Any], folder: Path) -> None:
    """Write the pictures of a sitting's JSON, as `NAME.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in draw_all(data).items():
        (folder / f"{name}.svg").write_text(picture)


def _bars(figure: Mapping[str, Any]) -> list[Bar]:
    """Return the measured projects: ours, then the peers in their usual order."""
    order = [OURS, *(peer.name for peer in PEERS)]
    measured = {project: values for project, values in figure["values"].items() if values and project in order}
    return [Bar(project=project, values=measured[project]) for project in order if project in measured]


def _origin(data: Mapping[str, Any]) -> str:
    hardware = data["machine"]
    return (
        f"{data['command']}, {data['began'][:10]}, commit {data['commit']}, {data['rounds']} rounds, "
        f"{hardware['cores']} cores of {hardware['cpu']}. A bar is the median, the line ends at the worst round."
    )


def _picture(title: str, panels: Sequence[tuple[Mapping[str, Any], Sequence[Bar]]], origin: str) -> str:
    y, body = MARGIN, []
    for line in wrap(title, 88):
        y += 18
        body.append(_text(MARGIN, y, line, "title"))
    for figure, bars in panels:
        y += 28
        body.append(_text(MARGIN, y, f"{figure['label']}, {figure['unit']} ({_direction(figure)})"))
        y += 8
        body += _rows(bars, y)
        y += ROW * len(bars)
    y += 8
    for line in _notes([bar for _, bars in panels for bar in bars], origin):
        y += 16
        body.append(_text(MARGIN, y, line, "small"))
    height = y + MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    lines = [f'{head} role="img">', f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    lines += [f'<rect class="page" width="{WIDTH}" height="{height}"/>', *body, "</svg>"]
    return "\n".join(lines) + "\n"


def _direction(figure: Mapping[str, Any]) -> str:
    """Return which values are good. A goal that is not a bound is to be met exactly."""
    goal = figure["goal"]
    return f"{goal} is right" if goal and not goal.startswith("≤") else "less is better"


def _rows(bars: Sequence[Bar], top: int) -> Iterator[str]:
    """Yield label, bar, worst round and median of each project, on one scale that begins at 0."""
    most = max(max(bar.values) for bar in bars) or 1.0
    for row, bar in enumerate(bars):
        y, left = top + ROW * row, MARGIN + LABELS
        middle, worst = median(bar.values), max(bar.values)
        length, reach = BAR_WIDTH * middle / most, BAR_WIDTH * worst / most
        kind = "ours" if bar.project == OURS else "peer"
        yield _text(MARGIN, y + 17, bar.label)
        yield f'<rect class="{kind}" x="{left}" y="{y + 4}" width="{max(length, 1):.1f}" height="18"/>'
        if worst > middle:
            yield (
                f'<line class="worst" x1="{left + length:.1f}" y1="{y + 13}" x2="{left + reach:.1f}" y2="{y + 13}"/>'
            )
        yield _text(left + max(reach, 1) + 8, y + 17, number(middle))


def _notes(bars: Sequence[Bar], origin: str) -> Iterator[str]:
    """Yield the lines below the bars: what each peer does not do, and where the numbers come from."""
    for label, does_not in {bar.label: bar.does_not for bar in bars if bar.does_not}.items():
        yield from wrap(f"{label} does not {does_not}.".replace("`", ""), 115)
    yield from wrap(origin, 115)


def _text(x: float, y: int, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y}">{escape(text)}</text>'


def main(argv: Sequence[str]) -> int:
    """Draw a kept sitting."""
    if len(argv) != 2:
        print("python -m benchmarks.plots RESULT.json FOLDER", file=sys.stderr)
        return 2
    write_all(json.loads(Path(argv[0]).read_text()), Path(argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
