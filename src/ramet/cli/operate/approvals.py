"""`ramet approvals`: the questions, and the runs at limits, that wait for a person."""

from __future__ import annotations

from argparse import Namespace

import msgspec

from ramet.cli.errors import report_damage
from ramet.cli.operate.ps import print_table
from ramet.cli.render import formatting
from ramet.cli.render.console import print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import format_arguments, one_line
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.contract import Question
from ramet.core.outcome import Usage
from ramet.host.control.run_queries import INTERRUPTED


async def approvals(options: Namespace) -> int:
    """List the questions and the runs at limits, and the commands to answer them."""
    async with source_of(options) as source:
        questions, errors = await source.questions(), source.damage_errors
    if options.json:
        for each in questions:
            print_json(msgspec.json.encode(each))
        return report_damage(errors)
    columns = ("ID", "KIND", "PATH", "STATE", "COST", "TOOL", "QUESTION", "ARGUMENTS OR COMMAND", "--for-run")
    print_table(columns, [_line(each) for each in questions])
    hint = "ramet approve ID, or ramet deny ID" if questions else "no call waits for an approval"
    if any(each.state == INTERRUPTED for each in questions):
        hint += "; first resume interrupted runs: ramet resume"
    print_note(hint)
    return report_damage(errors)


def _line(question: Question) -> tuple[str, ...]:
    return (
        one_line(question.id),
        one_line(question.kind, 40),
        one_line(question.path, 80),
        question.state,
        _cost(question.usage),
        one_line(question.tool, 40) or "-",
        one_line(question.question, 200),
        format_arguments(question.args) if question.limit is None else one_line(_command(question), 200),
        one_line(question.for_run, 200) or "-",
    )


def _command(question: Question) -> str:
    """Return the command for a run at a limit: one that was interrupted is resumed, and its limit raised by that."""
    assert question.limit is not None, "the caller looked"
    command = question.limit.command
    return command.replace("ramet raise", "ramet resume", 1) if question.state == INTERRUPTED else command


def _cost(usage: Usage) -> str:
    """Return what the run and all runs below it have used so far."""
    return f"{formatting.tokens(usage.tokens)} tokens, {formatting.money(usage.usd)}"
