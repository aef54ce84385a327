"""Ask a person at the terminal, one question at a time. Any answer to an approval except yes is no."""

from __future__ import annotations

import asyncio
import json
import os
import termios
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ramet.cli.render.sanitize import one_line, sanitize
from ramet.cli.render.views import View
from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event, RunEnded

MAX_SHOWN = 4_000  #: characters of one argument; a truncation is stated, because the rest could hide something


class _OpenQuestion(NamedTuple):
    show: Callable[[], None]
    take: Callable[[str], Awaitable[bool]]
    run: str
    withdrawn: asyncio.Future[None]  #: done when no run waits for the answer any more


class Questions:
    """The questions of a tree at the terminal: approvals from its events, and those that others add.

    Each answer to an approval is passed to `answer(approval_id, allowed, reason)`; None asks for no approval.
    """

    def __init__(
        self, err: Console, view: View, answer: Callable[[str, bool, str], object] | None, stdin_fd: int
    ) -> None:
        self._err, self._view, self._answer, self._fd = err, view, answer, stdin_fd
        self._open: dict[str, _OpenQuestion] = {}
        self._change_event = asyncio.Event()

    def handle_event(self, event: Event) -> None:
        """Note a question, or that one was answered elsewhere, timed out, or lost its run."""
        match event:
            case ApprovalAsked() if self._answer is not None:
                self.add(event.approval_id, partial(self._print, event), partial(self._take, event), run=event.run)
            case ApprovalAnswered():
                self.withdraw(event.approval_id)
            case RunEnded():
                for key in [key for key, each in self._open.items() if each.run == event.run]:
                    self.withdraw(key)
            case _:
                pass

    def add(self, key: str, show: Callable[[], None], take: Callable[[str], Awaitable[bool]], *, run: str = "") -> None:
        """Add a question, which the end of its `run` withdraws.

        `show` prints it. `take` gets the typed line with its line end, or an empty text at the end of the input, and
        returns False to be asked again.
        """
        self._open[key] = _OpenQuestion(show, take, run, asyncio.get_running_loop().create_future())
        self._change_event.set()

    def withdraw(self, key: str) -> None:
        """Ask a question no longer, if it is open."""
        question = self._open.pop(key, None)
        if question is not None and not question.withdrawn.done():
            question.withdrawn.set_result(None)

    async def serve(self) -> None:
        """Ask the questions as they arrive, until cancelled."""
        while True:
            await self._change_event.wait()
            self._change_event.clear()
            if not self._open:
                continue
            self._view.pause()
            try:
                while self._open:
                    await self._ask(*next(iter(self._open.items())))
            finally:
                self._view.resume()

    async def _ask(self, key: str, question: _OpenQuestion) -> None:
        # First, so that the answer to a visible question is not confused with an earlier key.
        with self._next_line() as line:
            question.show()
            await asyncio.wait((line, question.withdrawn), return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                self._err.print(Text("\n(no longer asked)", "dim"))
                return
        if await question.take(line.result()) and self._open.get(key) is question:
            del self._open[key]

    async def _take(self, event: ApprovalAsked, typed: str) -> bool:
        assert self._answer is not None, "it was asked"
        allowed = typed.strip().lower() in ("y", "yes")
        self._answer(event.approval_id, allowed, "" if allowed else "denied at the terminal")
        return True

    def _print(self, event: ApprovalAsked) -> None:
        show = self._err.print
        show()
        heading = (
            Text(one_line(event.path, 200), "bold").append(" asks to use ", "none").append(one_line(event.tool, 64))
        )
        show(heading, soft_wrap=True)
        if event.question.strip():
            show(Text("  " + one_line(event.question, 1_000), "dim"), soft_wrap=True)
        for key, value in event.args.items():
            text = sanitize(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
            omitted = f"\n… {len(text) - MAX_SHOWN} more characters, not shown" if len(text) > MAX_SHOWN else ""
            shown = (text[:MAX_SHOWN] + omitted).replace("\n", "\n    ")
            show(Text(f"  {one_line(key, 64)}: {shown}"), soft_wrap=True)
        show(Text("Allow it? [y/N] ", "bold"), end="")

    @contextmanager
    def _next_line(self) -> Iterator[asyncio.Future[str]]:
        """Yield the next typed line. Earlier input is discarded; the end of input is an empty line."""
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str] = loop.create_future()
        typed_bytes = bytearray()

        def read() -> None:
            try:
                data = os.read(self._fd, 4096)
            except OSError:
                data = b""  # the terminal is gone
            typed_bytes.extend(data)
            if (not data or b"\n" in data) and not line.done():
                line.set_result(typed_bytes.decode(errors="replace"))

        termios.tcflush(self._fd, termios.TCIFLUSH)
        loop.add_reader(self._fd, read)
        try:
            yield line
        finally:
            loop.remove_reader(self._fd)
