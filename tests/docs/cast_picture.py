"""Picture of a cast: an SVG that plays the session once by CSS, without a script, and then shows its last screen.

Attributes hold that last screen, and the style only hides what comes later and shows what has gone. So a renderer
without animations or styles, and a reader who wants less motion, see it at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape

from tests.docs.cast_recorder import Cast
from tests.docs.terminal_screen import BLANK, Cell, Screen, Style

CHAR, LINE, MARGIN, BAR = 8.4, 19, 16, 34  # pixels: width of a character, height of a line, room around, title bar
_COLORS = ("#6e7681", "#ff7b72", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#e6edf3")
_FONT = "font-family='ui-monospace,DejaVu Sans Mono,Menlo,Consolas,monospace' font-size='14'"
_TITLE = "font-family='system-ui,sans-serif' font-size='13'"
_STYLE = f"""\
{"".join(f".c{number}{{fill:{color}}}" for number, color in enumerate(_COLORS))}
.b{{font-weight:bold}}.d{{fill-opacity:.68}}.i{{font-style:italic}}.u{{text-decoration:underline}}
.n{{animation-name:later;animation-duration:var(--t)}}
.x{{animation:then var(--d) var(--t)}}
@keyframes later{{from,to{{visibility:hidden}}}}
@keyframes then{{from,to{{visibility:visible}}}}
@media (prefers-reduced-motion:reduce){{*{{animation:none!important}}}}
"""


@dataclass
class _Segment:
    """Characters of one style that come at a time. `ends` is None if the last screen still has them."""

    row: int
    column: int
    text: str
    style: Style
    begins: float
    ends: float | None = None


@dataclass
class _Film:
    """Screens of a cast as segments, and the lines that have scrolled out by which time."""

    segments: list[_Segment] = field(default_factory=list)
    scrolls: list[tuple[float, int]] = field(default_factory=list)
    lines: list[list[Cell]] = field(default_factory=list)

    def add(self, screen: Screen, seconds: float) -> None:
        """Compare a screen with the one before, and add what has changed."""
        lines = [_trimmed(line) for line in screen.lines]
        self.lines += [[] for _ in range(len(lines) - len(self.lines))]
        lines += [[] for _ in range(len(self.lines) - len(lines))]
        for row, (old, new) in enumerate(zip(self.lines, lines, strict=True)):
            if new[: len(old)] == old:
                self._append(row, len(old), new[len(old) :], seconds)
            else:
                for each in self.segments:
                    if each.row == row and each.ends is None:
                        each.ends = seconds
                self._append(row, 0, new, seconds)
        self.lines = lines
        if screen.top != (self.scrolls[-1][1] if self.scrolls else 0):
            self.scrolls.append((seconds, screen.top))

    def _append(self, row: int, column: int, cells: list[Cell], seconds: float) -> None:
        for style, group in groupby(cells, key=lambda cell: cell.style):
            text = "".join(cell.char for cell in group)
            for words in re.finditer(r"\S+(?: \S+)*", text):  # SVG joins two spaces to one
                self.segments.append(_Segment(row, column + words.start(), words[0], style, seconds))
            column += len(text)


def _trimmed(line: list[Cell]) -> list[Cell]:
    """Return a line without the blanks at its end."""
    size = len(line)
    while size and line[size - 1].char == BLANK.char:
        size -= 1
    return line[:size]


def draw(cast: Cast) -> str:
    """Return the picture of a cast. Raises ValueError for output that the screen does not know."""
    screen, film = Screen(cast.columns, cast.rows), _Film()
    for seconds, text in cast.events:
        screen.write(text)
        film.add(screen, seconds)
    rows = min(cast.rows, len(screen.lines))
    last_top = film.scrolls[-1][1] if film.scrolls else 0
    width = round(cast.columns * CHAR) + 2 * MARGIN
    height = BAR + rows * LINE + MARGIN
    shown = [each for each in film.segments if each.ends is None or each.ends > each.begins]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img">',
        f"<title>{escape(cast.title)}</title>",
        f"<style>{_STYLE}{_scrolling(film, cast)}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
        *(f'<circle cx="{18 + 18 * at}" cy="17" r="5.5" fill="#484f58"/>' for at in range(3)),
        f'<text x="{width / 2:g}" y="21.5" fill="#9da7b3" {_TITLE} text-anchor="middle">{escape(cast.title)}</text>',
        f'<svg x="{MARGIN}" y="{BAR}" width="{width - MARGIN}" height="{rows * LINE + 4}">',
        f'<g class="s" fill="#e6edf3" {_FONT} transform="translate(0,{-LINE * last_top})">',
        *(_text(each) for each in shown),
        "</g></svg>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(segment: _Segment) -> str:
    style = segment.style
    names = [
        name for name, on in zip("bdiu", (style.bold, style.dim, style.italic, style.underline), strict=True) if on
    ]
    if style.color is not None:
        names.append(f"c{style.color}")
    times = []
    if segment.ends is not None:
        names.append("x")
        times = [f"--t:{segment.begins:g}s", f"--d:{segment.ends - segment.begins:.3g}s"]
    elif segment.begins:
        names.append("n")
        times = [f"--t:{segment.begins:g}s"]
    x, y = segment.column * CHAR, segment.row * LINE + 14
    kind = f' class="{" ".join(names)}"' if names else ""
    when = f' style="{";".join(times)}"' if times else ""
    if segment.ends is not None:
        when += ' visibility="hidden"'
    size = f' textLength="{len(segment.text) * CHAR:g}" lengthAdjust="spacingAndGlyphs"'
    return f'<text{kind}{when} x="{x:g}" y="{y}"{size}>{escape(segment.text)}</text>'


def _scrolling(film: _Film, cast: Cast) -> str:
    """Return the rules that move the lines up as the session scrolls, and leave them at the last screen."""
    if not film.scrolls:
        return ""
    whole = cast.events[-1][0]
    steps = "".join(f"{100 * at / whole:.3f}%{{transform:translateY({-LINE * top}px)}}" for at, top in film.scrolls)
    return f".s{{animation:scroll {whole:g}s step-end}}\n@keyframes scroll{{0%{{transform:none}}{steps}}}\n"
