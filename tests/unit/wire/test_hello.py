"""Tests of the first bytes of a tunnel: whether they are TLS, and which server they name."""

from __future__ import annotations

import pytest

from ramet.core.errors import ProtocolError
from ramet.wire.client_hello import MAX_HELLO, ClientHelloParser, TunnelStart
from tests.support.tls import client_hello, handshake, hello_body, record, server_name


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x00", b"\x13", b"\x19", b"\x80\x2e\x01"])
def test_a_stream_without_tls_is_recognized_by_its_first_byte(first: bytes) -> None:
    """A stream that is not TLS passes."""
    assert ClientHelloParser().feed(first[:1]) == TunnelStart(is_tls=False)


def test_a_hello_of_a_real_client_names_its_server() -> None:
    """The name is in lower case and known once the hello is whole; the parser holds all its bytes."""
    hello = client_hello("Example.ORG")
    reader = ClientHelloParser()

    assert reader.feed(hello[:-1]) is None
    assert reader.feed(hello[-1:]) == TunnelStart(is_tls=True, server_name="example.org")
    assert reader.buffer == hello


def test_a_hello_for_an_address_names_no_server() -> None:
    """Clients send no server name for an address."""
    assert ClientHelloParser().feed(client_hello("127.0.0.1")) == TunnelStart(is_tls=True)


def test_a_hello_may_be_spread_over_records() -> None:
    """Some clients split the hello to hide the name from readers of a single record."""
    message = handshake(hello_body(server_name(b"example.org")))
    records = b"".join(record(message[at : at + 7]) for at in range(0, len(message), 7))

    assert ClientHelloParser().feed(records) == TunnelStart(is_tls=True, server_name="example.org")


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(record(b"\x01\x5a", kind=21) + client_hello("example.org"), id="an alert first"),
        pytest.param(record(b"\x01", kind=20) + client_hello("example.org"), id="change_cipher_spec first"),
        pytest.param(record(b"\x02\x00\x00\x00"), id="a ServerHello"),
        pytest.param(record(b""), id="an empty record"),
        pytest.param(b"\x16\x02\x00\x00\x10", id="another version of records"),
        pytest.param(b"\x16\x03\x01\x40\x01", id="a record that is too long"),
        pytest.param(record(handshake(b"")), id="an empty hello"),
        pytest.param(record(handshake(hello_body() + b"\0")), id="something behind the hello's end"),
        pytest.param(record(handshake(hello_body()[:-1])), id="a hello that is cut off inside"),
        pytest.param(record(handshake(hello_body(server_name(b"a.org"), server_name(b"b.org")))), id="two names"),
        pytest.param(record(handshake(hello_body(server_name(b"a.org", b"b.org")))), id="two names in one list"),
        pytest.param(record(handshake(hello_body(server_name()))), id="an empty list of names"),
        pytest.param(record(handshake(hello_body(server_name(b"")))), id="an empty name"),
        pytest.param(record(handshake(hello_body(server_name(b"a\0.org")))), id="NUL in the name"),
        pytest.param(record(handshake(hello_body(server_name("bücher.de".encode())))), id="non-ASCII in the name"),
        pytest.param(record(handshake(hello_body(server_name(b"a.org", kind=1)))), id="a name of another kind"),
        pytest.param(record(handshake(hello_body())[:4] + b"x") + record(b"\x01\x5a", kind=21), id="an alert inside"),
        pytest.param(record(b"\x01\xff\xff\xff" + b"x" * 16380) * 4, id="a hello without end"),
    ],
)
def test_tls_that_cannot_be_read_is_an_error(opening: bytes) -> None:
    """The parser does not guess how a server would read it."""
    reader = ClientHelloParser()

    with pytest.raises(ProtocolError):
        reader.feed(opening)
    assert len(opening) <= MAX_HELLO + 32


def test_a_hello_without_extensions_names_no_server() -> None:
    """The oldest clients send no extensions."""
    assert ClientHelloParser().feed(record(handshake(hello_body(extensions=False)))) == TunnelStart(is_tls=True)
