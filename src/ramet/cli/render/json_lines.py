"""`--json`: every event of the tree as one line of JSON, the root's `run_ended` last, and nothing else."""

from __future__ import annotations

from typing import BinaryIO

from ramet.core.events import Event, Notice, RunEnded, encode


class Lines:
    """Writes events as they come, in UTF-8 whatever the locale. A reader that leaves raises BrokenPipeError."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._last: RunEnded | None = None

    def take(self, event: Event) -> None:
        """Write one event; the root's end is kept back until `finish`, or until the root goes on and ends again."""
        if isinstance(event, RunEnded) and event.run == event.root:
            self.finish()
            self._last = event
        else:
            self._write(event)

    def finish(self) -> None:
        """Write the end that was kept back."""
        if self._last is not None:
            self._write(self._last)
            self._last = None

    def _write(self, event: Event) -> None:
        try:
            line = encode(event)
        except (TypeError, ValueError) as error:  # what a tool put into an event must not end the stream
            fields = {name: getattr(event, name) for name in Event.__struct_fields__}
            line = encode(Notice(**fields, text=f"left out: {error}"))
        self._out.write(line + b"\n")
        self._out.flush()
