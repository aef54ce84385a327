"""The views of a tree: live, line by line, as JSON, or none. All take the same events."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout
from types import TracebackType
from typing import BinaryIO, Self

from rich.console import Console
from rich.text import Text

from ramet.cli.render import formatting
from ramet.cli.render.json_output import escape_json
from ramet.cli.render.progress import describe
from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import Event, Notice, RunEnded, encode


class View:
    """A view, entered before the first event, and left after the last. This one shows nothing."""

    shows_deltas = False  #: whether it shows that an agent is writing
    is_output = False  #: whether it is the requested output, so that continuing without a reader is useless

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

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


class LineView(View):
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


class JsonView(View):
    """A view that writes every event as a line of JSON on `out`, in UTF-8 for any locale; the root's end comes last.

    While entered, other output to stdout goes to stderr. A closed reader raises BrokenPipeError.
    """

    is_output = True

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._root_end: RunEnded | None = None
        self._redirect: AbstractContextManager[object] = redirect_stdout(sys.stderr)

    async def __aenter__(self) -> Self:
        self._redirect.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redirect.__exit__(kind, error, trace)

    def show_event(self, event: Event) -> None:
        """Write one event; the root's end is held back until `finish`, or until the root continues and ends again."""
        if isinstance(event, RunEnded) and event.run == event.root:
            self.finish()
            self._root_end = event
        else:
            self._write(event)

    def finish(self) -> None:
        """Write the end that was held back."""
        if self._root_end is not None:
            self._write(self._root_end)
            self._root_end = None

    def finish_paused(self, end: RunEnded) -> None:
        """Write a last line for a tree that is paused: the root has not ended, so its journal has no such event."""
        self._write(end)

    def _write(self, event: Event) -> None:
        try:
            line = encode(event)
        except (TypeError, ValueError) as error:  # a tool's data in an event must not end the stream
            fields = {name: getattr(event, name) for name in Event.__struct_fields__}
            line = encode(Notice(**fields, text=f"event omitted: {error}"))
        self._out.write(escape_json(line) + b"\n")
        self._out.flush()
