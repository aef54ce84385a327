"""The turns of a conversation that are over, kept in the agent's own folder: a line each."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from ramet.core.errors import OutputTooLarge

NAME = "turns.jsonl"
MOST_SAID = 16 * 1024 * 1024  #: characters of one answer: all of it is kept, for the history and for the next turn


class Said:
    """The text of one answer while it comes, to be kept: so it has an end."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def take(self, piece: str) -> None:
        """Its next piece. Raises OutputTooLarge."""
        self._size += len(piece)
        if self._size > MOST_SAID:
            raise OutputTooLarge("an answer, in characters", size=self._size, limit=MOST_SAID)
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def ends_a_line(self) -> bool:
        """Whether what is said next begins a line."""
        return not self._pieces or self._pieces[-1].endswith("\n")


class KeptTurn(Struct, frozen=True, kw_only=True):
    """One that is over, as it is kept."""

    asked: str
    said: str


class TurnsFile:
    """All of them, oldest first."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._file = folder / NAME
        self.turns: list[KeptTurn] = []

    def read(self) -> None:
        """Take up what an earlier server kept; a line that it did not come to the end of is dropped."""
        with suppress(FileNotFoundError):
            whole = self._file.read_bytes().rpartition(b"\n")[0].splitlines()
            self.turns = [msgspec.json.decode(line, type=KeptTurn) for line in whole]
            self._file.write_bytes(b"".join(line + b"\n" for line in whole))

    def keep(self, turn: KeptTurn) -> None:
        """Put one on record."""
        self.turns.append(turn)
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(turn) + b"\n")

    def newest(self, most: int) -> bytes:
        """The end of `history` as JSON, of at most so many bytes: whole messages."""
        messages, size = [msgspec.json.encode(each) for each in self.history()], 2
        first = len(messages)
        while first and size + len(messages[first - 1]) + 1 <= most:
            first -= 1
            size += len(messages[first]) + 1
        return b"[" + b",".join(messages[first:]) + b"]"

    def history(self) -> Sequence[dict[str, str]]:
        """What was said: `role` (user, assistant) and `content` of each message."""
        return [
            {"role": role, "content": content}
            for turn in self.turns
            if turn.asked
            for role, content in (("user", turn.asked), ("assistant", turn.said))
        ]
