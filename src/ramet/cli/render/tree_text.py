"""Draw the tree as lines of a given width and height: a pure function, so that the output can be tested."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from ramet.cli.render import formatting as figures
from ramet.cli.render.sanitize import one_line
from ramet.cli.render.tree_model import ENDINGS, Row, TreeModel
from ramet.core.lifecycle import State
from ramet.core.outcome import Status


class Glyphs(NamedTuple):
    """The symbols of the tree, for terminals with and without Unicode."""

    working: str
    waiting: str
    done: str
    failed: str
    stopped: str
    branch: str
    last: str
    trunk: str
    dot: str
    more: str
    spin: str


UNICODE = Glyphs("●", "○", "✓", "✗", "■", "├─ ", "└─ ", "│  ", "·", "…", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
ASCII = Glyphs("*", "o", "+", "x", "#", "|- ", "`- ", "|  ", "-", "...", "|/-\\")


class _Line(NamedTuple):
    lead: Text
    activity: Text
    figures: tuple[str, ...]  #: tokens, money, time


def draw(
    model: TreeModel, *, now: datetime, width: int, height: int, glyphs: Glyphs = UNICODE, tick: int | None = None
) -> list[Text]:
    """Return the tree, one line per run, and a line of totals while it is active (`tick` selects the spinner's frame).

    The lines are at most `width` wide and `height` many: ended runs are omitted first, and counted in one line.
    """
    shown_rows, hidden_rows = _select_rows(model, max(height - (tick is not None) * 2, 3))
    money = width >= 60 and any(row.usage.usd > 0 for row in model.rows.values())
    lines = [_line(row, guide, now, glyphs, typed=width >= 60) for row, guide in _with_branches(shown_rows, glyphs)]
    texts = _arrange(lines, width, columns=(width >= 50, money, width >= 36), ellipsis=glyphs.more)
    if hidden_rows:
        ended = sum(row.is_over for row in hidden_rows)
        active = f", {len(hidden_rows) - ended} active" if ended < len(hidden_rows) else ""
        texts.append(Text(f"{glyphs.more} {len(hidden_rows)} more: {ended} done{active}", "dim", no_wrap=True))
    if tick is not None:
        texts += [Text(), _totals(model, width, now, glyphs, tick)]
    for line in texts:
        line.truncate(width, overflow="crop")
    return texts


def state_symbol(row: Row, glyphs: Glyphs) -> Text:
    """Return the symbol of a run's state."""
    if row.result is not None:
        return status_symbol(row.result.status, glyphs)
    at_work = row.state in (State.RUNNING, State.STOPPING) and not row.living_children
    return Text(glyphs.working, "cyan") if at_work else Text(glyphs.waiting, "cyan dim")


def status_symbol(status: Status, glyphs: Glyphs) -> Text:
    """Return the symbol of a status."""
    match status:
        case Status.COMPLETED:
            return Text(glyphs.done, "green")
        case Status.CANCELLED | Status.TIMEOUT | Status.BUDGET_EXHAUSTED | Status.NEEDS_INPUT | Status.PAUSED:
            return Text(glyphs.stopped, "yellow")
        case _:
            return Text(glyphs.failed, "red")


def _line(row: Row, guide: str, now: datetime, glyphs: Glyphs, *, typed: bool) -> _Line:
    lead = Text(guide, "dim")
    lead.append_text(state_symbol(row, glyphs)).append(" ")
    lead.append(one_line(row.name, 64), "" if row.is_over else "bold")
    if typed and row.agent != row.name:
        lead.append(f" {glyphs.dot} {one_line(row.agent, 64)}", "dim")
    usage = row.usage
    return _Line(
        lead,
        _activity(row),
        (
            figures.tokens(usage.tokens) if usage.tokens else "",
            figures.money(usage.usd) if usage.usd else "",
            figures.duration(row.seconds(now)) if row.started_at else "",
        ),
    )


def _activity(row: Row) -> Text:
    if row.result is None:
        return Text(row.activity(), "" if row.calls and not row.living_children else "dim")
    if row.result.status is Status.COMPLETED:
        if row.depth == 0:
            return Text()  # its answer follows below
        return Text(one_line(_first_words(row.result.text)), "dim")
    stopped_from_above = row.depth > 0 and row.result.status is Status.CANCELLED
    reason = row.result.error.message if row.result.error and not stopped_from_above else ""
    return Text(f"{ENDINGS[row.result.status]}: {one_line(reason)}" if reason else ENDINGS[row.result.status], "yellow")


def _first_words(text: str) -> str:
    """Return the first line that is not a heading or a rule, without Markdown characters."""
    plain = text[:4000].replace("*", "").replace("`", "").splitlines()
    lines = (line.strip(" _>-=|\t") for line in plain if not line.lstrip().startswith("#"))
    return next((line for line in lines if line), text[:200].strip(" #*_\n"))


def _arrange(lines: Sequence[_Line], width: int, *, columns: tuple[bool, bool, bool], ellipsis: str) -> list[Text]:
    """Arrange the three columns: the lead as wide as needed, figures on the right, the rest in between."""
    widths = [max((len(line.figures[i]) for line in lines), default=0) if columns[i] else 0 for i in range(3)]
    right = sum(each + 2 for each in widths if each)
    lead = min(max((line.lead.cell_len for line in lines), default=0), max(width * 9 // 20, width - right - 40))
    middle = width - lead - right - 2
    texts = []
    for line in lines:
        text = _truncate(line.lead, lead, ellipsis)
        text.pad_right(max(lead - text.cell_len, 0))
        activity = _truncate(line.activity, middle, ellipsis) if middle >= 8 else Text()
        text.append("  ").append_text(activity)
        text.pad_right(max(width - right - text.cell_len, 0))
        for i, column_width in enumerate(widths):
            if column_width:
                text.append("  " + line.figures[i].rjust(column_width), "dim")
        text.no_wrap = True
        text.rstrip()
        texts.append(text)
    return texts


def _truncate(text: Text, width: int, ellipsis: str) -> Text:
    """Return at most `width` cells, with the ellipsis symbol if the text was cut."""
    text = text.copy()
    if text.cell_len > width:
        text.truncate(max(width - cell_len(ellipsis), 0), overflow="crop")
        text.rstrip()
        if text.plain.endswith("…"):  # a part of the text was cut before
            text.right_crop(1)
        text.append(ellipsis)
    return text


def _select_rows(model: TreeModel, height: int) -> tuple[list[Row], list[Row]]:
    """Return the runs to show in `height` lines, and the others: living ones and ancestors first, then latest ends."""
    rows = list(model.walk())
    if len(rows) <= height:
        return rows, []
    needed: set[str] = set()
    for row in rows:
        each: Row | None = row if not row.is_over else None
        while each is not None and each.run not in needed:
            needed.add(each.run)
            each = model.rows.get(each.parent or "")
    first = [row for row in rows if row.run in needed or row.depth == 0][: height - 1]
    shown_ids = {row.run for row in first}
    ended = sorted(
        ((row.ended_at, i) for i, row in enumerate(rows) if row.ended_at and row.run not in shown_ids), reverse=True
    )
    for _, i in ended:  # a parent ends after its children, so it comes before them here
        if len(shown_ids) < height - 1 and rows[i].parent in shown_ids:
            shown_ids.add(rows[i].run)
    return [row for row in rows if row.run in shown_ids], [row for row in rows if row.run not in shown_ids]


def _with_branches(rows: Sequence[Row], glyphs: Glyphs) -> list[tuple[Row, str]]:
    """Return each row with the branch symbols that lead to it."""
    shown = {row.run for row in rows}
    last = {row.parent: row.run for row in rows}
    trunk: dict[str, str] = {}
    guided = []
    for row in rows:
        prefix = trunk.get(row.parent or "")
        if prefix is None or row.parent not in shown:
            trunk[row.run], guide = "", ""
        else:
            is_last = last[row.parent] == row.run
            guide = prefix + (glyphs.last if is_last else glyphs.branch)
            trunk[row.run] = prefix + (" " * len(glyphs.trunk) if is_last else glyphs.trunk)
        guided.append((row, guide))
    return guided


def _totals(model: TreeModel, width: int, now: datetime, glyphs: Glyphs, tick: int) -> Text:
    """Return the totals as a line; the last ones are omitted if the line is short."""
    total = model.totals(now)
    done = total.agents - total.living
    parts = [
        figures.duration(total.seconds),
        figures.count(total.agents, "agent") + (f", {done} done" if done else ""),
        f"{figures.tokens(total.usage.tokens)} tokens",
        figures.money(total.usage.usd),
        figures.count(total.usage.model_calls, "model call"),
    ]
    joint = f" {glyphs.dot} "
    while len(parts) > 1 and len(joint.join(parts)) > width - 2:
        parts.pop()
    line = Text(no_wrap=True).append(glyphs.spin[tick % len(glyphs.spin)], "cyan").append(" ")
    return line.append(joint.join(parts), "dim")
