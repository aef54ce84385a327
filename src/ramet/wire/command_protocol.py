"""The messages between the host and a command agent, over the program's stdin and stdout.

Each message is a line of a frame (`ramet.wire.stdio_frames`) with its `type`, its fields, and the `size` of its body.
The host sends `start` first, and the program sends `ready` before anything else. The program receives one turn at a
time, and ends each with `done` or `error`. `body` in a docstring is the frame's body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ramet.core.errors import ProtocolError
from ramet.wire.frames import Frame

VERSION = 1
_MAX_TEXT = 10_000  #: maximum number of bytes of an error text

Number = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]

# ---- to the program ------------------------------------------------------------------------------------------------


class ToProgram(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base class of messages to the program."""


class Start(ToProgram, frozen=True, kw_only=True, tag="start"):
    """Start the program. Body: the earlier conversation as JSON, a list of `role` and `content`, oldest first."""

    protocol: int
    agent: str  #: id
    name: str
    path: str


class Turn(ToProgram, frozen=True, kw_only=True, tag="turn"):
    """Answer this message. Body: the message; plain text if `format` is "text", otherwise as the caller sent it."""

    turn: int
    format: str


class Interrupt(ToProgram, frozen=True, kw_only=True, tag="interrupt"):
    """End this turn now."""

    turn: int


class Mail(ToProgram, frozen=True, kw_only=True, tag="mail"):
    """Deliver mail. Body: text to read at the next step. The program sends no answer."""


class Control(ToProgram, frozen=True, kw_only=True, tag="control"):
    """Perform an operation named in `ready`; the program sends `answer` or `refusal`. Body: the arguments as JSON."""

    id: int
    operation: str


# ---- from the program ----------------------------------------------------------------------------------------------


class FromProgram(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """The base class of messages from the program."""

    size: int = 0


class Ready(FromProgram, frozen=True, kw_only=True, tag="ready"):
    """Report readiness for turns; `mail` says that the program reads mail, `operations` lists further operations."""

    mail: bool = False
    operations: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class Chunk(FromProgram, frozen=True, kw_only=True, tag="chunk"):
    """Send the next part of an answer. Body: the part."""

    turn: Number


class Done(FromProgram, frozen=True, kw_only=True, tag="done"):
    """Report that the answer is complete."""

    turn: Number


class Error(FromProgram, frozen=True, kw_only=True, tag="error"):
    """Report that the turn failed. Body: the reason, as text."""

    turn: Number


class Answer(FromProgram, frozen=True, kw_only=True, tag="answer"):
    """Report that an operation succeeded. Body: the result as JSON; no body means null."""

    id: Number


class Refusal(FromProgram, frozen=True, kw_only=True, tag="refusal"):
    """Report that an operation was not performed. Body: the reason, as text."""

    id: Number


ProgramMessage = Ready | Chunk | Done | Error | Answer | Refusal
_DECODER: msgspec.json.Decoder[ProgramMessage] = msgspec.json.Decoder(ProgramMessage)


def encode(message: ToProgram, body: bytes = b"") -> bytes:
    """Return a frame. The type is first in the line and the size last, for programs without a JSON parser."""
    return msgspec.json.encode({**msgspec.to_builtins(message), "size": len(body)}) + b"\n" + body


def decode(frame: Frame, mask: Callable[[str], str] = str) -> ProgramMessage:
    """Return a program's message. Raises ProtocolError if the message is unknown; the error shows `mask` text."""
    try:
        return _DECODER.decode(frame.control)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        preview = mask(frame.control.decode(errors="replace"))[:80]
        raise ProtocolError(f"{preview!r} is not a message of a program: {mask(str(problem))}") from None


def error_text(body: bytes) -> str:
    """Return the text of an error or a refusal, bounded, and safe for a terminal and a log."""
    text = body[:_MAX_TEXT].decode(errors="replace").strip() or "it failed without a message"
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)
