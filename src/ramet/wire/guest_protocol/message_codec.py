"""Encode and decode the messages between a guest and its host."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ramet.core.errors import ProtocolError
from ramet.wire.guest_protocol.guest_to_host import FromGuest, GuestMessage
from ramet.wire.guest_protocol.host_to_guest import FromHost, HostMessage
from ramet.wire.values.json_object import decode_json

M = TypeVar("M")

_encoder = msgspec.json.Encoder()
_guest_decoder: msgspec.json.Decoder[GuestMessage] = msgspec.json.Decoder(FromGuest)
_host_decoder: msgspec.json.Decoder[HostMessage] = msgspec.json.Decoder(FromHost)


def encode(message: Struct) -> bytes:
    """Return the control part of a frame, or the data of an answer, as JSON."""
    return _encoder.encode(message)


def raw(data: Any) -> msgspec.Raw:
    """Return the encoded data of an answer."""
    return msgspec.Raw(_encoder.encode(data))


def from_guest(control: bytes) -> GuestMessage:
    """Return a guest's message. Raises ProtocolError if the message is unknown or malformed."""
    return _decode(_guest_decoder, control)


def from_host(control: bytes) -> HostMessage:
    """Return a host's message. Raises ProtocolError if the message is unknown or malformed."""
    return _decode(_host_decoder, control)


def _decode(decoder: msgspec.json.Decoder[M], control: bytes) -> M:
    try:
        return decode_json(control, decoder.decode)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"a frame that is not a message: {str(problem)[:200]}") from None
