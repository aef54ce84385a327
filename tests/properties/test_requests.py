"""Messages of the channel arrive as they were sent; anything else from a guest raises only ProtocolError."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.core.errors import ProtocolError
from ramet.core.policy.policy import Isolation, Policy
from ramet.wire.guest_protocol import guest_to_host, host_to_guest, message_codec
from ramet.wire.guest_protocol.guest_to_host import FromGuest
from ramet.wire.guest_protocol.host_to_guest import FromHost

GUEST: tuple[type[Any], ...] = get_args(FromGuest)
HOST: tuple[type[Any], ...] = get_args(FromHost)

text = st.text(max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(text, plain, max_size=3)
counts = st.integers(0, 2**53)
policies = st.builds(
    Policy,
    memory_mb=st.none() | st.integers(1, 1000),
    timeout_seconds=st.none() | st.floats(0.1, 100),
    allowed_endpoints=st.none() | st.lists(st.sampled_from(["a.org:1", "*"]), max_size=2),
    env_vars=st.none()
    | st.dictionaries(st.sampled_from("AB"), st.text(st.characters(exclude_characters="\0", codec="utf-8"))),
    secrets=st.none() | st.dictionaries(st.sampled_from("ab"), st.none() | st.just("x")),
    isolation=st.none() | st.sampled_from(list(Isolation)),
)
#: By the annotation of a field: a field of a new kind fails here until it has its values.
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    dict[str, Any]: objects,
    dict[str, str]: st.dictionaries(text, text, max_size=3),
    Policy: policies,
    guest_to_host.Count: counts,
    guest_to_host.Line: text,
    guest_to_host.Headers: st.dictionaries(text, text, max_size=3),
    tuple[tuple[str, str], ...]: st.lists(st.tuples(text, text), max_size=3).map(tuple),
    msgspec.Raw: plain.map(msgspec.json.encode).map(msgspec.Raw),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw any value that a field of this annotation can hold."""
    if annotation in VALUES:
        return VALUES[annotation]
    options = get_args(annotation)
    if get_origin(annotation) is Annotated:  # A bound on a length, above what is drawn here.
        return values(options[0])
    if get_origin(annotation) is Literal:
        return st.sampled_from(options)
    if get_origin(annotation) is tuple:
        return st.lists(values(options[0]), max_size=2).map(tuple)
    if type(None) in options:
        (inner,) = (each for each in options if each is not type(None))
        return st.none() | values(inner)
    assert issubclass(annotation, msgspec.Struct), f"no values for {annotation}"
    return structs_of(annotation)


def structs_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{each.name: values(each.type) for each in msgspec.structs.fields(kind)})


def messages(kinds: tuple[type[Any], ...]) -> st.SearchStrategy[Any]:
    """Draw a message of any of these kinds."""
    return st.sampled_from(kinds).flatmap(structs_of)


@given(messages(GUEST))
def test_a_message_of_a_guest_arrives_as_it_was_sent(message: Any) -> None:
    """Every kind of guest message arrives with its type and fields."""
    result = message_codec.from_guest(message_codec.encode(message))

    assert type(result) is type(message)
    assert result == message


@given(messages(HOST))
def test_a_message_of_the_host_arrives_as_it_was_sent(message: Any) -> None:
    """Every kind of host message arrives with its type and fields."""
    result = message_codec.from_host(message_codec.encode(message))

    assert type(result) is type(message)
    for each in msgspec.structs.fields(message):
        mine, theirs = getattr(message, each.name), getattr(result, each.name)
        assert bytes(mine) == bytes(theirs) if each.name == "data" else mine == theirs


@pytest.mark.parametrize("kind", [*GUEST, *HOST], ids=lambda kind: str(kind.__name__))
def test_every_kind_of_message_has_a_tag_of_its_own(kind: type[Any]) -> None:
    """No tag is used twice, by guest and host together. Only messages of guests refuse unknown fields."""
    tags = [each.__struct_config__.tag for each in (*GUEST, *HOST)]

    assert tags.count(kind.__struct_config__.tag) == 1
    assert kind.__struct_config__.tag_field == "type"
    assert kind.__struct_config__.forbid_unknown_fields == (kind in GUEST)


@given(messages(GUEST), text, plain)
def test_a_field_that_a_guest_invents_is_refused(message: Any, name: str, value: Any) -> None:
    """An unknown field is refused in every guest message and in a policy.

    A guest ignores a field that a newer host adds.
    """
    fields = msgspec.json.decode(message_codec.encode(message))
    if name not in (*message.__struct_fields__, "type"):
        with pytest.raises(ProtocolError, match="not a message"):
            message_codec.from_guest(msgspec.json.encode(fields | {name: value}))
    if name not in Policy.__struct_fields__:
        with pytest.raises(ProtocolError, match="not a message"):
            message_codec.from_guest(msgspec.json.encode({"type": "spawn", "id": 1, "policy": {name: value}}))
    stop = {"type": "stop", "reason": "x"}
    if name not in ("type", "reason"):
        assert message_codec.from_host(msgspec.json.encode(stop | {name: value})) == host_to_guest.Stop(reason="x")


@given(messages(HOST) | messages(GUEST), text, st.data())
def test_a_message_of_unknown_or_foreign_type_is_refused(message: Any, name: str, data: st.DataObject) -> None:
    """A message without a type, or with an unknown type or one of the other side, raises ProtocolError."""
    fields = msgspec.json.decode(message_codec.encode(message))
    mine, other = (GUEST, HOST) if isinstance(message, GUEST) else (HOST, GUEST)
    decode = message_codec.from_guest if mine is GUEST else message_codec.from_host
    tags = {each.__struct_config__.tag for each in mine}
    wrong = data.draw(st.sampled_from([name, None, 1, *[each.__struct_config__.tag for each in other]]))
    if wrong in tags:
        return
    with pytest.raises(ProtocolError):
        decode(msgspec.json.encode(fields | {"type": wrong}))
    del fields["type"]
    with pytest.raises(ProtocolError):
        decode(msgspec.json.encode(fields))


DEEP = b'{"type":"done","ok":true,"fields":{"a":' + b"[" * 200_000
HUGE = b'{"type":"list_runs","id":1' + b"0" * 5_000 + b"}"


@given(st.binary(max_size=300) | text.map(str.encode))
@example(b"")
@example(b"null")
@example(b"[]")
@example(b"\xff\xfe{}")
@example(b"\xef\xbb\xbf{}")
@example(DEEP)
@example(DEEP + b"]" * 200_000 + b"}}")
@example(DEEP.replace(b"[", b'{"a":'))
@example(HUGE)
@example(HUGE.replace(b"}", b",}"))
@example(b'{"type":"list_runs","id":1' + b"0" * 30 + b"}")
@example(b'{"type":"list_runs","id":-1}')
@example(b'{"type":"ask_model","id":1,"step":"a","max_tokens":-1}')
@example(b'{"type":"done","ok":true,"json_size":-1}')
@example(b'{"type":"save_checkpoint","id":1,"json_size":1,"version":1' + b"0" * 30 + b"}")
@example(b'{"type":"output","id":1,"target":"a","timeout_s":1' + b"0" * 400 + b"}")
@example(b'{"type":"list_runs","id":1e400}')
@example(b'{"type":"list_runs","id":NaN}')
@example(b'{"type":"list_runs","id":true}')
@example(b'{"type":"approve","id":1,"tool":"a","question":"b","args":{"x":1' + b"0" * 5_000 + b"}}")
@example(b'{"type":"approve","id":1,"tool":"a","question":"b","args":{"x":1e999}}')
@example(b'{"type":"note","text":"\\ud800"}')
@example(b'{"type":"note","text":"\xed\xa0\x80"}')
@example(b'{"type":"note","text":"\\ud800\\ud800"}')
@example(b'{"type":"note","text":"a","type":"done"}')
@example(b'{"type":"note","type":"note"}')
@example(b'{"type":"spawn","id":1,"policy":{"cpu_cores":NaN}}')
@example(b'{"type":"spawn","id":1,"policy":{"memory_mb":-1}}')
@example(b'{"type":"spawn","id":1,"policy":{"env_vars":{"LD_PRELOAD":"x"}}}')
@example(b'{"type":"spawn","id":1,"policy":{"allowed_endpoints":["https://x"]}}')
@example(b'{"type":"spawn","id":1,"policy":{"isolation":"none"}}')
@example(b'{"type":"spawn","id":1,"policy":{"secrets":[1]}}')
@example(b'{"type":"spawn","id":1,"policy":[]}')
@example(b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.")
def test_bytes_that_are_no_message_are_a_protocol_error(control: bytes) -> None:
    """Bytes that are no message raise only ProtocolError in both directions, whatever their depth, size or encoding."""
    for decode in (message_codec.from_guest, message_codec.from_host):
        with pytest.raises(ProtocolError):
            decode(control)


@given(messages(GUEST), st.data())
def test_a_tampered_message_is_a_message_or_a_protocol_error(message: Any, data: st.DataObject) -> None:
    """Changed fields or bytes raise ProtocolError, or are a message that can be encoded again."""
    control = message_codec.encode(message)
    fields = msgspec.json.decode(control)
    fields[data.draw(st.sampled_from(list(fields)))] = data.draw(plain)
    at = data.draw(st.integers(0, len(control)))
    changed = control[:at] + data.draw(st.binary(max_size=3)) + control[data.draw(st.integers(at, len(control))) :]
    for bytes_ in (msgspec.json.encode(fields), changed):
        result = decode_or_none(bytes_)
        if result is not None:
            assert message_codec.from_guest(message_codec.encode(result)) == result


def decode_or_none(control: bytes) -> Any:
    """Decode a guest's message, or return None after a ProtocolError."""
    try:
        return message_codec.from_guest(control)
    except ProtocolError:
        return None


def test_the_last_of_two_equal_keys_counts() -> None:
    """The last of two equal keys counts, as in other JSON readers, and is the one that is checked."""
    assert message_codec.from_guest(b'{"type":"watch","run":"a","run":"b"}') == guest_to_host.Watch(run="b")
    with pytest.raises(ProtocolError):
        message_codec.from_guest(b'{"type":"spawn","id":1,"policy":{"memory_mb":1,"memory_mb":0}}')


@pytest.mark.parametrize(
    "control",
    [
        b'{"type":"watch","run":"a","' + b"x" * 1_000_000 + b'":1}',
        b'{"type":"' + b"x" * 1_000_000 + b'"}',
        b'{"type":"spawn","id":1,"policy":{"isolation":"' + b"x" * 100_000 + b'"}}',
        b'{"type":"spawn","id":1,"policy":{"' + b"x" * 100_000 + b'":1}}',
    ],
    ids=["field", "type", "level", "policy"],
)
def test_an_error_is_short_whatever_the_guest_sent(control: bytes) -> None:
    """Errors of guest messages go into logs and events, and stay below 300 characters."""
    with pytest.raises(ProtocolError) as error:
        message_codec.from_guest(control)

    assert len(str(error.value)) < 300
