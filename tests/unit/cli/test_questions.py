"""Approvals that are asked at the terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from ramet.cli.render.approvals import Questions
from ramet.cli.render.console import console
from ramet.cli.render.views import View
from ramet.core.events import ApprovalAnswered, ApprovalAsked
from ramet.core.outcome import Status, Usage
from tests.unit.cli.story import TreeEventWriter


class Screen(io.StringIO):
    """A screen that reports each write."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def write(self, text: str) -> int:
        """Write and report."""
        self._news.set()
        return super().write(text)

    async def shows(self, text: str, times: int = 1) -> None:
        """Wait until the screen shows `text` so many times."""
        while self.getvalue().count(text) < times:
            self._news.clear()
            await self._news.wait()


class FakeTerminal(View):
    """A terminal with a person, whose keys the test presses."""

    def __init__(self, keyboard: int, line: int) -> None:
        self.keyboard, self.screen = keyboard, Screen()
        self.words: list[tuple[str, bool, str]] = []
        self.has_answered = asyncio.Event()
        self.cleared = 0
        self.questions = Questions(console(self.screen, width=80), self, self._answer, line)

    def _answer(self, approval_id: str, allowed: bool, reason: str) -> None:
        self.words.append((approval_id, allowed, reason))
        self.has_answered.set()

    def pause(self) -> None:
        """Count a pause of the tree."""
        self.cleared += 1

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.keyboard, keys.encode())

    async def wait_asked(self, times: int = 1) -> None:
        """Wait until a question is on the screen: pending keys have been dropped by then."""
        await self.screen.shows("[y/N]", times)


@pytest.fixture
def input_line() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal line."""
    keyboard, end = pty.openpty()
    yield keyboard, end
    os.close(keyboard)
    os.close(end)


@asynccontextmanager
async def open_terminal(line: tuple[int, int]) -> AsyncIterator[FakeTerminal]:
    """Yield a desk that asks its questions."""
    terminal = FakeTerminal(*line)
    serving = asyncio.create_task(terminal.questions.serve())
    yield terminal
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def question(approval_id: str, **args: str) -> ApprovalAsked:
    """Return a question of the run at main/fixer."""
    event = TreeEventWriter().add(
        ApprovalAsked, "main/fixer", 1, approval_id=approval_id, tool="Bash", question="May I?", args=args
    )
    assert isinstance(event, ApprovalAsked)
    return event


@pytest.mark.parametrize(
    ("typed", "allowed"),
    [("y\n", True), (" YES \n", True), ("\n", False), ("n\n", False), ("yesterday\n", False), ("\x04", False)],
)
async def test_only_y_or_yes_allows(input_line: tuple[int, int], typed: str, allowed: bool) -> None:
    """An empty line, the end of input and any other text deny."""
    async with open_terminal(input_line) as terminal:
        terminal.questions.handle_event(question("a1", command="make"))
        await terminal.wait_asked()
        terminal.type(typed)
        await terminal.has_answered.wait()

    assert [word[:2] for word in terminal.words] == [("a1", allowed)]
    assert terminal.cleared == 1


async def test_the_question_shows_the_run_the_tool_and_its_arguments(input_line: tuple[int, int]) -> None:
    """Each argument is shown whole, without terminal sequences."""
    async with open_terminal(input_line) as terminal:
        terminal.questions.handle_event(question("a1", command="make\x1b[2J\nrm -rf /"))
        await terminal.wait_asked()

    assert terminal.screen.getvalue() == (
        "\nmain/fixer asks to use Bash\n  May I?\n  command: make\n    rm -rf /\nAllow it? [y/N] "
    )


async def test_a_cut_argument_says_how_much_is_hidden(input_line: tuple[int, int]) -> None:
    """The question gives the number of hidden characters."""
    async with open_terminal(input_line) as terminal:
        terminal.questions.handle_event(question("a1", command="x" * 5_000))
        await terminal.wait_asked()

    assert "… 1000 more characters, not shown" in terminal.screen.getvalue()


async def test_keys_typed_before_a_question_are_no_answer(input_line: tuple[int, int]) -> None:
    """A key pressed while agents work does not approve a later question."""
    async with open_terminal(input_line) as terminal:
        terminal.type("y\n")
        terminal.questions.handle_event(question("a1", command="make"))
        await terminal.wait_asked()
        terminal.type("n\n")
        await terminal.has_answered.wait()

    assert [word[1] for word in terminal.words] == [False]


async def test_questions_come_one_at_a_time(input_line: tuple[int, int]) -> None:
    """Two agents that ask at once get an answer each."""
    async with open_terminal(input_line) as terminal:
        terminal.questions.handle_event(question("a1", command="one"))
        terminal.questions.handle_event(question("a2", command="two"))
        await terminal.wait_asked()
        assert "two" not in terminal.screen.getvalue()
        terminal.type("y\n")
        await terminal.wait_asked(2)
        terminal.has_answered.clear()
        terminal.type("n\n")
        await terminal.has_answered.wait()

    assert [word[:2] for word in terminal.words] == [("a1", True), ("a2", False)]


async def test_a_question_that_needs_no_answer_is_withdrawn(input_line: tuple[int, int]) -> None:
    """A question answered elsewhere, or of an ended run, gets no answer; the next one is asked."""
    async with open_terminal(input_line) as terminal:
        terminal.questions.handle_event(question("a1", command="one"))
        await terminal.wait_asked()
        terminal.questions.handle_event(question("a2", command="two"))
        writer = TreeEventWriter()
        terminal.questions.handle_event(writer.add(ApprovalAnswered, "main/fixer", 2, approval_id="a1", allowed=False))
        await terminal.wait_asked(2)
        writer.add_end("main/fixer", 3, Status.CANCELLED, "", Usage())
        terminal.questions.handle_event(writer.events[-1])
        await terminal.screen.shows("no longer asked", 2)

    assert terminal.words == []
