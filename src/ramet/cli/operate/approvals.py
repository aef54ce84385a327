"""`ramet approvals`: the questions that wait for a person's approval."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Sequence

import msgspec
from rich.text import Text

from ramet.cli.errors import report_damage
from ramet.cli.operate.ps import print_table
from ramet.cli.render.console import console
from ramet.cli.render.sanitize import format_arguments, one_line
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.contract import Question
from ramet.core.errors import Damaged
from ramet.host.control.run_queries import INTERRUPTED


def approvals(options: Namespace) -> int:
    """List the questions, and the commands to answer them."""
    questions, errors = asyncio.run(_questions(options))
    if options.json:
        for each in questions:
            print(msgspec.json.encode(each).decode())
        return report_damage(errors)
    print_table(("ID", "PATH", "STATE", "TOOL", "QUESTION", "ARGUMENTS"), [_line(each) for each in questions])
    hint = "ramet approve ID, or ramet deny ID" if questions else "no call waits for an approval"
    if any(each.state == INTERRUPTED for each in questions):
        hint += "; first resume interrupted runs: ramet resume"
    console(sys.stderr).print(Text(hint, "dim"), soft_wrap=True)
    return report_damage(errors)


async def _questions(options: Namespace) -> tuple[list[Question], Sequence[Damaged]]:
    async with source_of(options) as source:
        return await source.questions(), source.damage_errors


def _line(question: Question) -> tuple[str, ...]:
    return (
        one_line(question.id),
        one_line(question.path, 80),
        question.state,
        one_line(question.tool, 40),
        one_line(question.question, 200),
        format_arguments(question.args),
    )
