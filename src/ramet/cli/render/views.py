"""How a tree is watched: drawn live, told line by line, as JSON, or not at all. Each takes the same events."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from types import TracebackType
from typing import BinaryIO, Protocol

from rich.console import Console
from rich.text import Text

from ramet.cli.render import formatting
from ramet.cli.render.json_lines import Lines
from ramet.cli.render.progress import describe
from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import Event


class View(Protocol):
    """Entered before the first event, left after the last."""

    wants_text: bool  #: whether it shows that an agent is writing
    is_output: bool  #: whether it is what was asked for, so that without a reader there is no use in going on

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def take(self, event: Event) -> None:
        """An event that the picture has already taken."""

    def say(self, text: str) -> None:
        """A line about the work as a whole."""

    def pause(self) -> None:
        """Make room for a question."""

    def resume(self) -> None:
        """The question is answered."""

    def restore(self) -> None:
        """Leave the terminal as it was, at once, from a signal handler."""


class QuietView:
    """Shows nothing."""

    wants_text = False
    is_output = False

    async def __aenter__(self) -> QuietView:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def take(self, event: Event) -> None:
        """Shows nothing."""

    def say(self, text: str) -> None:
        """Says nothing."""

    def pause(self) -> None:
        """Nothing is in the way."""

    def resume(self) -> None:
        """Nothing was in the way."""

    def restore(self) -> None:
        """Nothing was changed."""


class LineView(QuietView):
    """One line for each notable event, with the time since the start: for logs and plain terminals."""

    def __init__(self, err: Console, picture: TreeModel) -> None:
        self._err, self._picture = err, picture

    def take(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        line = describe(event, self._picture)
        if line is not None:
            root = self._picture.root
            since = root.seconds(event.at) if root is not None and event.at is not None else 0.0
            self._err.print(Text(f"{formatting.duration(since):>6} {line.text}"), soft_wrap=True)

    def say(self, text: str) -> None:
        """Print it among the others."""
        self._err.print(Text(text), soft_wrap=True)


class JsonView(QuietView):
    """Every event as a line of JSON on `out`. While entered, whatever else prints to stdout goes to stderr."""

    is_output = True

    def __init__(self, out: BinaryIO) -> None:
        self._lines = Lines(out)
        self._aside: AbstractContextManager[object] = redirect_stdout(sys.stderr)
        self._stack = ExitStack()

    async def __aenter__(self) -> JsonView:
        self._stack.enter_context(self._aside)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self, event: Event) -> None:
        """Write the event. Raises BrokenPipeError when nobody reads any more."""
        self._lines.take(event)

    def finish(self) -> None:
        """Write the root's end, which comes last."""
        self._lines.finish()
