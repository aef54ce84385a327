"""`ramet ps`, `tree` and `show`: the state of runs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import datetime

import msgspec
from rich.console import Console
from rich.text import Text

from ramet.cli.errors import report_damage
from ramet.cli.render import formatting
from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import console, glyphs_for, is_live, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.live import LiveTree
from ramet.cli.render.sanitize import one_line, question_text
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.tree_text import draw
from ramet.cli.render.views import JsonView, LineView, View
from ramet.cli.sources.choose import full_id, source_of
from ramet.cli.sources.contract import Source
from ramet.concurrency.clock import SystemClock
from ramet.core.errors import InvalidValue
from ramet.core.replay.reported_agents import ReportedAgent
from ramet.host.control.run_queries import INTERRUPTED, RunRow

_NO_TERMINAL = 120  #: columns of a tree if the width is unknown


async def ps(options: Namespace) -> int:
    """List runs; return 1 if some trees cannot be read."""
    async with source_of(options) as source:
        rows, errors = await source.runs(ended=options.all), source.damage_errors
    if options.json:
        print_rows(rows)
        return report_damage(errors)
    now = SystemClock().now()
    lines = list[tuple[str, ...]]()
    for row in rows:
        usage = f"{formatting.tokens(row.usage.tokens)} tokens, {formatting.money(row.usage.usd)}"
        lines.append(
            (
                row.id,
                one_line(row.shown_path, 80),
                one_line(row.agent, 40),
                _state(row),
                formatting.duration(row.seconds(now)),
                _last_event(row, now),
                _context(row),
                usage,
            )
        )
        lines += [_reported_line(row, each, now) for each in row.reported_agents if options.all or not each.is_over]
    print_table(("ID", "PATH", "AGENT", "STATE", "AGE", "LAST EVENT", "CONTEXT", "USAGE"), lines)
    if not (rows or errors):
        hint = "no active run here; ramet ps --all lists ended runs"
        print_note("no run is recorded here" if options.all else hint)
    return report_damage(errors)


async def tree(options: Namespace) -> int:
    """Show trees; return 1 if some trees cannot be read."""
    async with source_of(options) as source:
        if options.id is not None:
            roots = [await source.root_of(await full_id(source, options.id))]
        else:
            roots = list(dict.fromkeys(row.root for row in await source.runs()))
        if options.follow:
            if len(roots) != 1:
                raise InvalidValue(
                    "ID", options.id, f"the id of one run, to follow its tree: {len(roots)} trees are active"
                )
            return await _follow(source, roots[0], as_json=options.json)
        for number, root in enumerate(roots):
            rows = await source.tree(root)
            if options.json:
                print_rows(rows)
            else:
                await _draw(source, rows, console(sys.stdout), blank_line=number > 0)
        if not (roots or source.damage_errors):
            print_note("no active tree here; ramet ps --all lists ended runs")
        return report_damage(source.damage_errors)


async def _draw(source: Source, rows: Sequence[RunRow], out: Console, *, blank_line: bool) -> None:
    root, model = rows[0].root, TreeModel()
    async with aclosing(source.events(root, tree=True)) as events:
        async for event in events:
            model.apply(event)
    if any(row.state == INTERRUPTED for row in rows):
        _interrupt(model)
    width = out.width if out.is_terminal else _NO_TERMINAL
    if blank_line:
        out.print()
    out.print(Text(root, "dim"), soft_wrap=True)
    height = max(len(model.rows), 1)
    for line in draw(model, now=SystemClock().now(), width=width, height=height, glyphs=glyphs_for(out)):
        out.print(line, soft_wrap=True)


async def _follow(source: Source, root: str, *, as_json: bool) -> int:
    out, model, clock = console(sys.stdout), TreeModel(), SystemClock()
    view: View
    if as_json:
        view = JsonView(sys.stdout.buffer)
    else:
        view = LiveTree(out, model, clock) if is_live(out) else LineView(out, model)
    async with view, aclosing(source.events(root, tree=True, follow=True)) as events:
        async for event in events:
            model.apply(event)
            view.show_event(event)
        is_over = all(row.is_over for row in model.rows.values())
        if not is_over:
            _interrupt(model)
    if isinstance(view, JsonView):
        view.finish()
    if not is_over:
        print_note(f"{root} was interrupted: {source.interrupted_hint}")
    return 0


def _interrupt(model: TreeModel) -> None:
    """Mark active runs as interrupted: their process has ended."""
    for row in model.rows.values():
        if not row.is_over:
            row.calls.clear()
            row.state, row.phase = INTERRUPTED, INTERRUPTED


async def show(options: Namespace) -> int:
    """Show one run."""
    async with source_of(options) as source:
        row = await source.run(await full_id(source, options.id))
    if options.json:
        print_json(msgspec.json.encode(row))
        return 0
    out, now = console(sys.stdout), SystemClock().now()
    for name, value in _facts(row, now):
        for text in [value] if isinstance(value, str) else value:
            out.print(Text(f"{name:10} ", "dim").append(text, "none"), soft_wrap=True)
            name = ""
    if row.result is not None and text_of(row.result).strip():
        out.print()
        print_text(out, text_of(row.result))
    return 0


def _reported_line(row: RunRow, agent: ReportedAgent, now: datetime) -> tuple[str, ...]:
    """Return the line of an agent that a program runs by itself: without an id, as it is no run, and without usage."""
    path = f"{one_line(row.shown_path, 80)}/{one_line(agent.id, 40)}"
    return ("-", path, one_line(agent.name, 40), agent.state, formatting.duration(_age(agent, now)), "-", "-", "-")


def _age(agent: ReportedAgent, now: datetime) -> float:
    return 0.0 if agent.born is None else ((agent.ended or now) - agent.born).total_seconds()


def _state(row: RunRow) -> str:
    """Return the state of a run, what it waits for, and until when it waits, if that is known."""
    if row.frozen_mb is not None:
        return f"{row.state} ({formatting.frozen(row.frozen_mb)})"
    until = f" until {row.waits_until:%Y-%m-%d %H:%M:%S} UTC" if row.waits_until is not None else ""
    return f"{row.state} ({row.waits_for}{until})" if row.waits_for else row.state


def _last_event(row: RunRow, now: datetime) -> str:
    """Return how long ago a run that has not ended showed a sign of life."""
    if row.is_over or row.last_event_at is None:
        return "-"
    return f"{formatting.duration((now - row.last_event_at).total_seconds())} ago"


def _context(row: RunRow) -> str:
    """Return how full the context window of a run's model is."""
    if not row.context_tokens:
        return "-"
    if not row.context_window:
        return formatting.tokens(row.context_tokens)
    share = row.context_tokens / row.context_window
    return f"{formatting.tokens(row.context_tokens)} of {formatting.tokens(row.context_window)} ({share:.0%})"


def _facts(row: RunRow, now: datetime) -> Iterable[tuple[str, str | list[str]]]:
    """Yield the facts of a run, by name; several lines as a list."""
    error = f": {one_line(row.result.error.message, 400)}" if row.result is not None and row.result.error else ""
    yield "run", f"{one_line(row.shown_path)} ({row.id})"
    yield "agent", one_line(row.agent) + (f", model {one_line(row.model)}" if row.model else "")
    yield "state", _state(row) + error
    yield (
        "age",
        formatting.duration(row.seconds(now)) + (f", since {row.born:%Y-%m-%d %H:%M:%S} UTC" if row.born else ""),
    )
    if row.last_event_at is not None and not row.is_over:
        yield "last event", f"{_last_event(row, now)}, at {row.last_event_at:%Y-%m-%d %H:%M:%S} UTC"
    if row.context_tokens:
        yield "context", f"{_context(row)} tokens"
    if row.description:
        yield "about", one_line(row.description, 400)
    usage, subtree = row.usage, row.usage_subtree
    for name, each in (("usage", usage), ("subtree", subtree)) if row.children else (("usage", usage),):
        yield (
            name,
            f"{formatting.count(each.model_calls, 'model call')}, {formatting.count(each.tool_calls, 'tool call')}, "
            f"{'~' if each.estimated else ''}{formatting.tokens(each.tokens)} tokens, {formatting.money(each.usd)}",
        )
    if row.root != row.id:
        yield "tree", row.root
    if row.children:
        yield "children", list(row.children)
    if row.reported_agents:
        yield (
            "its own",
            [
                f"{one_line(each.name, 80)} ({one_line(each.id, 40)}): {each.state}, "
                f"{formatting.duration(_age(each, now))}"
                for each in row.reported_agents
            ],
        )
    if row.calls:
        yield "open calls", [f"{one_line(each.tool)} ({one_line(each.call_id)})" for each in row.calls]
    if row.ports:
        yield "ports", ", ".join(f"{one_line(name)}={port}" for name, port in row.ports.items())
    if row.unread:
        yield "unread", formatting.count(row.unread, "message")
    if row.approvals:
        yield (
            "approvals",
            [
                f"{one_line(each.approval_id)}: {question_text(each.tool, each.args, each.question)}"
                for each in row.approvals
            ],
        )


def print_rows(rows: Iterable[RunRow]) -> None:
    """Print each run as a line of JSON, without its result, which `show` prints."""
    for row in rows:
        data = msgspec.to_builtins(row)
        del data["result"]
        print_json(msgspec.json.encode(data))


def print_table(heads: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    """Print a table with columns as wide as needed; print nothing without lines."""
    out = console(sys.stdout)
    widths = [max(len(each[i]) for each in (heads, *lines)) for i in range(len(heads))]
    for number, line in enumerate((heads, *lines) if lines else ()):
        text = "  ".join(each.ljust(width) for each, width in zip(line, widths, strict=True)).rstrip()
        out.print(Text(text, "none" if number else "dim"), soft_wrap=True)
