"""Ask a person at the terminal whether a limit at which a tree is paused is raised."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from ramet.cli.pauses.pause_watch import PauseWatch
from ramet.cli.render.approvals import Questions
from ramet.cli.render.sanitize import one_line
from ramet.cli.values import parse_int, parse_number
from ramet.core.errors import RametError
from ramet.core.limits import Limits
from ramet.host.trees.exhausted_limits import ExhaustedLimit, end_at_limit
from ramet.host.trees.factory import OpenTree

LATER = ("later", "l")
END = ("end", "e")


def parse_raise(paused: ExhaustedLimit, text: str) -> Limits:
    """Return what is added to a limit. Raises argparse.ArgumentTypeError if the text is no such amount."""
    amount = parse_number(text) if paused.resource == "usd" else parse_int(1)(text)
    if not amount:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; expected a number above 0")
    fields: dict[str, Any] = {paused.resource: amount}
    return Limits(**fields)


class PauseQuestions:
    """The questions about the paused limits of one tree.

    With `leave` a person may also leave the tree as it is, for `ramet resume`; it must not wait.
    """

    def __init__(
        self, tree: OpenTree, watch: PauseWatch, questions: Questions, err: Console, leave: Callable[[], None] | None
    ) -> None:
        self._tree, self._watch, self._questions, self._err, self._leave = tree, watch, questions, err, leave
        self._asked: dict[str, ExhaustedLimit] = {}

    async def serve(self) -> None:
        """Ask about each limit while nothing else in the tree goes on, until cancelled."""
        try:
            while True:
                await self._watch.wait_paused()
                self._ask_about({each.key: each for each in self._watch.limits})
                await self._watch.wait_changed()
                paused = {each.key for each in self._watch.limits}
                for key in [each for each in self._asked if each not in paused]:
                    self._withdraw(key)
        finally:
            for key in list(self._asked):
                self._withdraw(key)

    def _ask_about(self, paused: dict[str, ExhaustedLimit]) -> None:
        for key, limit in paused.items():
            if key not in self._asked:
                self._asked[key] = limit
                self._questions.add(key, partial(self._print, limit), partial(self._take, limit))

    def _withdraw(self, key: str) -> None:
        del self._asked[key]
        self._questions.withdraw(key)

    def _print(self, limit: ExhaustedLimit) -> None:
        show = self._err.print
        more = f" and {len(limit.waiting) - 1} more" if len(limit.waiting) > 1 else ""
        show()
        heading = Text(one_line(limit.waiting[0], 200), "bold").append(f"{more} paused at the limit of ", "none")
        show(heading.append(one_line(limit.scope, 200)), soft_wrap=True)
        used = f"{limit.used:.12g} of {limit.limit:.12g} used"
        show(Text(f"  {limit.resource}: {used}, the next request needs {limit.asked:.12g}"), soft_wrap=True)
        others = "end" if self._leave is None else "end, later"
        show(Text(f"Raise it by how much? [{limit.suggestion:.12g}, or {others}] ", "bold"), end="")

    async def _take(self, limit: ExhaustedLimit, typed: str) -> bool:
        """Do what was typed; return False if that was not possible. An empty line accepts the suggested amount."""
        word = typed.strip().lower()
        is_at_end = not typed.endswith("\n")  # The terminal has no more input.
        if word in END or (is_at_end and self._leave is None):
            end_at_limit(self._tree.tree.register, limit)
            return True
        if self._leave is not None and (word in LATER or is_at_end):
            self._leave()
            return True
        try:
            add = parse_raise(limit, word or f"{limit.suggestion:.12g}")
            await self._tree.tree.handle(self._tree.tree.register.find(limit.run)).raise_limits(add, key=limit.key)
        except (argparse.ArgumentTypeError, RametError) as problem:
            self._err.print(Text(one_line(str(problem), 400), "yellow"), soft_wrap=True)
            return False
        return True
