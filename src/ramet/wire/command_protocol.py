"""What a program that is an agent and its host tell each other on the program's stdin and stdout.

Each is a line of a frame (`ramet.wire.stdio_frames`): its `type`, its fields, and the `size` of its body. A program is
told `start` first, and says `ready` before anything else. It gets one turn at a time, and ends each with `done` or
`error`. `body` in a docstring is the frame's body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ramet.core.errors import ProtocolError
from ramet.wire.frames import Frame

VERSION = 1
_MAX_TEXT = 10_000  #: bytes of an error's text that are kept

Number = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]

# ---- to the program ------------------------------------------------------------------------------------------------


class ToProgram(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything a program is told."""


class Start(ToProgram, frozen=True, kw_only=True, tag="start"):
    """Who it is. Body: the conversation before it was started, JSON: a list of `role` and `content`, oldest first."""

    protocol: int
    agent: str  #: id
    name: str
    path: str


class Turn(ToProgram, frozen=True, kw_only=True, tag="turn"):
    """Answer this. Body: the message; plain text where `format` is "text", else as the caller sent it."""

    turn: int
    format: str


class Interrupt(ToProgram, frozen=True, kw_only=True, tag="interrupt"):
    """Bring this turn to its end now."""

    turn: int


class Mail(ToProgram, frozen=True, kw_only=True, tag="mail"):
    """Body: text to be read at the next step. Nothing is said to it."""


class Control(ToProgram, frozen=True, kw_only=True, tag="control"):
    """Do one of the operations that were named in `ready`, and say `answer` or `refusal`. Body: its arguments, JSON."""

    id: int
    operation: str


# ---- from the program ----------------------------------------------------------------------------------------------


class FromProgram(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Anything a program says."""

    size: int = 0


class Ready(FromProgram, frozen=True, kw_only=True, tag="ready"):
    """It takes turns from now on; `mail` says that it reads mail, `operations` what it does besides."""

    mail: bool = False
    operations: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class Chunk(FromProgram, frozen=True, kw_only=True, tag="chunk"):
    """Body: the next piece of an answer."""

    turn: Number


class Done(FromProgram, frozen=True, kw_only=True, tag="done"):
    """The answer is whole."""

    turn: Number


class Error(FromProgram, frozen=True, kw_only=True, tag="error"):
    """The turn has failed. Body: why, text."""

    turn: Number


class Answer(FromProgram, frozen=True, kw_only=True, tag="answer"):
    """An operation is done. Body: what came of it, JSON; none is null."""

    id: Number


class Refusal(FromProgram, frozen=True, kw_only=True, tag="refusal"):
    """An operation is not done. Body: why, text."""

    id: Number


Heard = Ready | Chunk | Done | Error | Answer | Refusal
_DECODER: msgspec.json.Decoder[Heard] = msgspec.json.Decoder(Heard)


def encode(told: ToProgram, body: bytes = b"") -> bytes:
    """A frame. The type stands first in its line, the size last: for those who read it without a reader of JSON."""
    return msgspec.json.encode({**msgspec.to_builtins(told), "size": len(body)}) + b"\n" + body


def decode(frame: Frame, masked: Callable[[str], str] = str) -> Heard:
    """What a program said. Raises ProtocolError for what is not in its vocabulary; its text is `masked`."""
    try:
        return _DECODER.decode(frame.control)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        shown = masked(frame.control.decode(errors="replace"))[:80]
        raise ProtocolError(f"{shown!r} is nothing that a program says: {masked(str(problem))}") from None


def error_text(body: bytes) -> str:
    """The text of an error or a refusal, bounded, and harmless on a terminal and in a log."""
    text = body[:_MAX_TEXT].decode(errors="replace").strip() or "it failed without a word"
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)
