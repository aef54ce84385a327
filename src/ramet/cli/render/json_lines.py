"""`--json`: every event of the tree as one line of JSON, the root's `run_ended` last, and no other output."""

from __future__ import annotations

from typing import BinaryIO

from ramet.core.events import Event, Notice, RunEnded, encode


class Lines:
    """A writer of events, in UTF-8 for any locale. A closed reader raises BrokenPipeError."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._root_end: RunEnded | None = None

    def write_event(self, event: Event) -> None:
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

    def _write(self, event: Event) -> None:
        try:
            line = encode(event)
        except (TypeError, ValueError) as error:  # a tool's data in an event must not end the stream
            fields = {name: getattr(event, name) for name in Event.__struct_fields__}
            line = encode(Notice(**fields, text=f"event omitted: {error}"))
        self._out.write(line + b"\n")
        self._out.flush()
