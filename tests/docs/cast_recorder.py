"""Recorder of terminal sessions: a shell at a real pty, whose output becomes an asciicast (version 2)."""

from __future__ import annotations

import codecs
import json
import os
import platform
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROMPT = "$ "
IDLE_S = 0.7  # a longer silence is shortened to this
READING_S = 1.8  # after a command and before an answer
TYPED_AT_ONCE, TYPING_S = 3, 0.09
MERGED_S = 0.03  # output that comes within this time is one event
PATIENCE_S = 300.0
#: What differs between machines and says nothing to a reader.
_NEUTRAL = [(re.compile(r"(Linux \d+\.\d+\.\d+)[-+~.\w]+"), r"\1")]


@dataclass
class Cast:
    """Recorded session. `events` are moments in seconds with the output that came then."""

    title: str
    columns: int
    rows: int
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def output(self) -> str:
        """The whole output, with its control sequences."""
        return "".join(text for _, text in self.events)

    def encode(self) -> str:
        """Return the cast as JSON lines."""
        header = {"version": 2, "width": self.columns, "height": self.rows, "title": self.title}
        lines: list[object] = [header, *([seconds, "o", text] for seconds, text in self.events)]
        return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)

    @classmethod
    def decode(cls, text: str) -> Cast:
        """Return a cast that was encoded."""
        header, *events = map(json.loads, text.splitlines())
        if header["version"] != 2 or any(kind != "o" for _, kind, _ in events):
            raise ValueError("not an asciicast of version 2 that holds output only")
        shown = [(seconds, text) for seconds, _, text in events]
        return cls(header["title"], header["width"], header["height"], shown)


class Terminal:
    """Shell at a pty. Its clock stands while nothing is written, so that a reader waits for no program."""

    def __init__(self, cast: Cast, descriptor: int) -> None:
        self.cast = cast
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._clock, self._last = 0.0, time.monotonic()

    def run(self, command: str) -> str:
        """Type a command, wait until the prompt is back, and return the plain output."""
        begin = len(self.cast.output)
        self.type(command)
        self.wait_for(rf"\n{re.escape(PROMPT)}$", begin)
        self.pause()
        return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.cast.output[begin:])

    def pause(self) -> None:
        """Let a reader of the cast read."""
        self._clock += READING_S

    def type(self, text: str) -> None:
        """Type a line, at the speed of a person, and press Enter."""
        for at in range(0, len(text), TYPED_AT_ONCE):
            piece = text[at : at + TYPED_AT_ONCE]
            begin = len(self.cast.output)
            os.write(self._descriptor, piece.encode())
            self.wait_for(re.escape(piece), begin)
            self._clock += TYPING_S
        os.write(self._descriptor, b"\n")

    def wait_for(self, pattern: str, begin: int = 0) -> None:
        """Record until the output from `begin` on matches. Raises TimeoutError if it does not within 300 s."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.cast.output[begin:]):
            if not select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no {pattern!r} in {self.cast.output[begin:]!r}")
            self._record(self._decoder.decode(os.read(self._descriptor, 65536)))

    def _record(self, text: str) -> None:
        now = time.monotonic()
        self._clock += min(IDLE_S, now - self._last)
        self._last = now
        events = self.cast.events
        if events and self._clock - events[-1][0] < MERGED_S:
            events[-1] = (events[-1][0], events[-1][1] + text)
        else:
            events.append((round(self._clock, 2), text))


@contextmanager
def recording(title: str, folder: Path, *, columns: int, rows: int) -> Iterator[Terminal]:
    """Give a terminal in a folder, and end its shell afterwards. Its cast names neither machine, user nor folder.

    Raises ValueError if the output holds one of them all the same.
    """
    cast = Cast(title, columns, rows)
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    names = {"PATH": programs, "HOME": str(folder), "PS1": PROMPT, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    keyboard, line = pty.openpty()
    termios.tcsetwinsize(line, (rows, columns))
    # With setsid the shell has the terminal as its own, and Ctrl-C at the terminal of this program does not reach it.
    command = ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting"]
    try:
        shell = subprocess.Popen(command, cwd=folder, env=names, stdin=line, stdout=line, stderr=line)
    finally:
        os.close(line)
    try:
        terminal = Terminal(cast, keyboard)
        terminal.wait_for(re.escape(PROMPT))
        yield terminal
    finally:
        os.close(keyboard)  # the shell ends with its terminal
        shell.wait()
    for at, (seconds, text) in enumerate(cast.events):
        for pattern, neutral in _NEUTRAL:
            text = pattern.sub(neutral, text)
        cast.events[at] = (seconds, text.replace(str(folder), "~/project"))
    for private in {str(folder), str(Path.cwd()), sys.prefix, platform.node()} - {"localhost"}:
        if private in cast.output:
            raise ValueError(f"the cast {title!r} holds {private!r}")
