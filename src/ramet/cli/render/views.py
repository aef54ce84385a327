"""The views of a tree: live, line by line, as JSON, or none. All take the same events."""

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
    """A view, entered before the first event, and left after the last."""

    shows_deltas: bool  #: whether it shows that an agent is writing
    is_output: bool  #: whether it is the requested output, so that continuing without a reader is useless

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show_event(self, event: Event) -> None:
        """Show an event that the model already has."""

    def show_message(self, text: str) -> None:
        """Show a line about the whole work."""

    def pause(self) -> None:
        """Make room for a question."""

    def resume(self) -> None:
        """Continue after a question was answered."""

    def restore(self) -> None:
        """Restore the terminal at once, from a signal handler."""


class QuietView:
    """A view that shows nothing."""

    shows_deltas = False
    is_output = False

    async def __aenter__(self) -> QuietView:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show_event(self, event: Event) -> None:
        """Ignore the event."""

    def show_message(self, text: str) -> None:
        """Ignore the line."""

    def pause(self) -> None:
        """Do nothing: no output is in the way."""

    def resume(self) -> None:
        """Do nothing: no output was in the way."""

    def restore(self) -> None:
        """Do nothing: the terminal was not changed."""


class LineView(QuietView):
    """A view with one line per notable event and the time since the start: for logs and plain terminals."""

    def __init__(self, err: Console, model: TreeModel) -> None:
        self._err, self._model = err, model

    def show_event(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        line = describe(event, self._model)
        if line is not None:
            root = self._model.root
            since = root.seconds(event.at) if root is not None and event.at is not None else 0.0
            self._err.print(Text(f"{formatting.duration(since):>6} {line.text}"), soft_wrap=True)

    def show_message(self, text: str) -> None:
        """Print a line among the others."""
        self._err.print(Text(text), soft_wrap=True)


class JsonView(QuietView):
    """A view that writes every event as a line of JSON on `out`.

    While entered, other output to stdout goes to stderr.
    """

    is_output = True

    def __init__(self, out: BinaryIO) -> None:
        self._lines = Lines(out)
        self._redirect: AbstractContextManager[object] = redirect_stdout(sys.stderr)
        self._stack = ExitStack()

    async def __aenter__(self) -> JsonView:
        self._stack.enter_context(self._redirect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show_event(self, event: Event) -> None:
        """Write the event. Raises BrokenPipeError if the reader has closed the stream."""
        self._lines.write_event(event)

    def finish(self) -> None:
        """Write the root's end, which comes last."""
        self._lines.finish()
