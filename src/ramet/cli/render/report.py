"""Print the end of a tree: outcome, cost, and findings even without an answer."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ramet.cli.paths import display_path
from ramet.cli.render import formatting
from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import glyphs_for
from ramet.cli.render.sanitize import one_line, sanitize
from ramet.cli.render.tree_model import ENDINGS, Row, TreeModel
from ramet.cli.render.tree_text import status_symbol
from ramet.core.outcome import Result, Status

MAX_FINDING = 4_000  #: characters of each run's finding; the whole is in its transcript


def print_result(out: Console, result: Result, model: TreeModel) -> bool:
    """Print the answer; or, without one, each run's findings, under its path. Return False if there is nothing."""
    if result.status is Status.COMPLETED:
        print_text(out, text_of(result))
        return True
    findings = [(model.root, result.text)] if model.root is not None and result.text.strip() else []
    findings += [(row, text_of(row.result)) for row in model.findings() if row.result]
    if not findings:
        return False
    out.print(Text("No answer. This is what was found so far:", "bold"), soft_wrap=True)
    for row, text in findings:
        out.print()
        out.print(_heading(row), soft_wrap=True)
        print_text(
            out, text if len(text) <= MAX_FINDING else text[:MAX_FINDING] + "\n… (the rest is in the transcript)"
        )
    return True


def print_status(
    err: Console,
    result: Result,
    model: TreeModel,
    *,
    now: datetime,
    transcripts: Path | None,
    is_printed: bool = False,
) -> None:
    """Print the outcome and the usage, on one line if it fits; then the path of the transcripts.

    `is_printed` is whether the line of the root's end, with the reason, was already printed.
    """
    glyphs = glyphs_for(err)
    head = status_symbol(result.status, glyphs).append(" ").append(ENDINGS[result.status], "bold")
    if result.error is not None and not is_printed:
        head.append(f": {one_line(result.error.message, 400)}")
        if result.error.scope and result.error.scope not in result.error.message:
            head.append(f" (limit of {one_line(result.error.scope, 200)})")
    total, usage = model.totals(now), result.usage_subtree
    parts = [
        formatting.count(total.agents, "agent"),
        formatting.count(usage.model_calls, "model call"),
        formatting.count(usage.tool_calls, "tool call"),
        f"{'~' if usage.estimated else ''}{formatting.tokens(usage.tokens)} tokens",
        formatting.money(usage.usd),
        formatting.duration(total.seconds),
        *model.refused_forwards,
    ]
    tail = Text(f" {glyphs.dot} ".join(parts), "dim")
    joint = Text(f" {glyphs.dot} ", "dim")
    if not err.is_terminal or head.cell_len + joint.cell_len + tail.cell_len <= err.width:
        err.print(head + joint + tail, soft_wrap=True)
    else:
        err.print(head)
        err.print(Padding(tail, (0, 0, 0, 2)))
    if transcripts is not None:
        err.print(Text(f"  transcripts: {sanitize(display_path(transcripts))}/", "dim"), soft_wrap=True)


def _heading(row: Row) -> Text:
    ended = f" · {ENDINGS[row.result.status]}" if row.result else ""
    return Text(one_line(row.path, 200), "bold").append(ended, "dim")
