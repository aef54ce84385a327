"""Tests of CONNECT requests: accepted targets, refusals with their status, and endpoints that a list allows."""

from __future__ import annotations

import ipaddress

import pytest

from ramet.wire.http_connect import (
    MAX_FIELDS,
    MAX_HEADER_BYTES,
    ConnectRefusal,
    RequestReader,
    Target,
    answer,
    is_allowed,
    parse_target,
)


def read_request(request: bytes) -> Target | ConnectRefusal | None:
    return RequestReader().feed(request)


def status(target: Target | ConnectRefusal | None) -> int:
    return target.status if isinstance(target, ConnectRefusal) else 0


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("example.org:443", Target("example.org", 443, False)),
        ("EXAMPLE.Org.:443", Target("example.org", 443, False)),
        ("localhost:1", Target("localhost", 1, False)),
        ("a_b.example:65535", Target("a_b.example", 65535, False)),
        ("xn--bcher-kva.example:80", Target("xn--bcher-kva.example", 80, False)),
        ("1password.com:443", Target("1password.com", 443, False)),
        ("192.0.2.7:8080", Target("192.0.2.7", 8080, True)),
        ("[2001:DB8:0::1]:443", Target("2001:db8::1", 443, True)),
        ("[::FFFF:127.0.0.1]:80", Target(str(ipaddress.IPv6Address("::ffff:127.0.0.1")), 80, True)),
    ],
)
def test_a_target_is_read_in_canonical_form(text: str, target: Target) -> None:
    """Names are in lower case without a trailing dot, IPv6 without brackets, and punycode is unchanged."""
    assert read_request(f"CONNECT {text} HTTP/1.1\r\n\r\n".encode()) == target
    assert parse_target(target.authority) == target


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("example.org", id="no port"),
        pytest.param("example.org:", id="empty port"),
        pytest.param("example.org:0", id="port 0"),
        pytest.param("example.org:65536", id="port above 65535"),
        pytest.param("example.org:0443", id="port with a leading zero"),
        pytest.param("example.org:+443", id="port with a sign"),
        pytest.param("example.org:-1", id="negative port"),
        pytest.param("example.org:443:443", id="two ports"),
        pytest.param("example.org:4_4_3", id="port with underscores"),
        pytest.param("example.org:\u0664\u0664\u0663", id="port in other digits"),
        pytest.param(":443", id="no host"),
        pytest.param(".:443", id="a dot for a host"),
        pytest.param("example.org..:443", id="two trailing dots"),
        pytest.param("example..org:443", id="an empty label"),
        pytest.param("-example.org:443", id="a label that begins with a hyphen"),
        pytest.param("a" * 64 + ".org:443", id="a label of 64 letters"),
        pytest.param(".".join(["a" * 49] * 5) + ".abcd:443", id="a name of 254 letters"),
        pytest.param("user@example.org:443", id="userinfo"),
        pytest.param("user:password@example.org:443", id="userinfo with a password"),
        pytest.param("example.org%2e:443", id="percent-encoding"),
        pytest.param("%65xample.org:443", id="percent-encoded letter"),
        pytest.param("http://example.org:443", id="a URL"),
        pytest.param("example.org/:443", id="a slash"),
        pytest.param("example.org\\:443", id="a backslash"),
        pytest.param("example.org#:443", id="a fragment"),
        pytest.param("example.org?:443", id="a query"),
        pytest.param("*.example.org:443", id="a wildcard"),
        pytest.param("b\u00fccher.example:443", id="non-ASCII"),
        pytest.param("exam\u212ale.org:443", id="a letter that folds to ASCII"),
        pytest.param("example\u3002org:443", id="an ideographic full stop"),
        pytest.param("2130706433:80", id="decimal IPv4"),
        pytest.param("0x7f000001:80", id="hexadecimal IPv4"),
        pytest.param("0x:80", id="a hexadecimal number without digits"),
        pytest.param("017700000001:80", id="octal IPv4"),
        pytest.param("127.1:80", id="short IPv4"),
        pytest.param("0177.0.0.1:80", id="IPv4 with an octal part"),
        pytest.param("0x7f.0.0.1:80", id="IPv4 with a hexadecimal part"),
        pytest.param("127.0.0.0x1:80", id="IPv4 with a hexadecimal last part"),
        pytest.param("127.0.0.01:80", id="IPv4 with a leading zero"),
        pytest.param("127.0.0.256:80", id="IPv4 with a part above 255"),
        pytest.param("127.0.0.1.:80", id="IPv4 with a trailing dot"),
        pytest.param("1.2.3.4.5:80", id="five numbers"),
        pytest.param("example.1:80", id="a name that ends in a number"),
        pytest.param("::1:80", id="IPv6 without brackets"),
        pytest.param("[::1]", id="IPv6 without a port"),
        pytest.param("[::1]80", id="IPv6 without a colon"),
        pytest.param("[::1:80", id="an open bracket"),
        pytest.param("::1]:80", id="a closing bracket"),
        pytest.param("[[::1]]:80", id="brackets twice"),
        pytest.param("[]:80", id="empty brackets"),
        pytest.param("[127.0.0.1]:80", id="IPv4 in brackets"),
        pytest.param("[example.org]:80", id="a name in brackets"),
        pytest.param("[fe80::1%eth0]:80", id="an IPv6 zone"),
        pytest.param("[fe80::1%25eth0]:80", id="an encoded IPv6 zone"),
        pytest.param("[::1].:80", id="IPv6 with a trailing dot"),
        pytest.param("[v1.fe]:80", id="an address of a future version"),
        pytest.param("[::ffff:0177.0.0.1]:80", id="IPv6 with an octal part"),
    ],
)
def test_an_ambiguous_target_is_refused(text: str) -> None:
    """The status is 400, before any lookup."""
    assert status(parse_target(text)) == 400
    assert status(read_request(f"CONNECT {text} HTTP/1.1\r\n\r\n".encode())) == 400


REQUEST_LINE = b"CONNECT example.org:443 HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        pytest.param(b"CONNECT example.org\0:443 HTTP/1.1\r\n\r\n", 400, id="NUL"),
        pytest.param(b"CONNECT example.org:443\r HTTP/1.1\r\n\r\n", 400, id="a CR alone"),
        pytest.param(b"CONNECT example.org:443 HTTP/1.1\n\n", 400, id="LF alone"),
        pytest.param(REQUEST_LINE + b"A: b\n\r\n", 400, id="LF alone after a field"),
        pytest.param(REQUEST_LINE + b"A: b\rC: d\r\n\r\n", 400, id="a CR alone in a field"),
        pytest.param(REQUEST_LINE + b"A: \x7f\r\n\r\n", 400, id="a control character in a field"),
        pytest.param(REQUEST_LINE + b"A: \xc3\xa9\r\n\r\n", 400, id="non-ASCII in a field"),
        pytest.param(b"\r\n" + REQUEST_LINE + b"\r\n", 400, id="an empty line first"),
        pytest.param(b"CONNECT  example.org:443 HTTP/1.1\r\n\r\n", 400, id="two spaces"),
        pytest.param(b"CONNECT example.org :443 HTTP/1.1\r\n\r\n", 400, id="a space in the target"),
        pytest.param(b"CONNECT\texample.org:443\tHTTP/1.1\r\n\r\n", 400, id="tabs for spaces"),
        pytest.param(b"CONNECT example.org:443 HTTP/1.1 \r\n\r\n", 400, id="a space at the end"),
        pytest.param(b"CONNECT example.org:443\r\n\r\n", 400, id="no version"),
        pytest.param(b"CONNECT example.org:443 HTTP/2.0\r\n\r\n", 400, id="another version"),
        pytest.param(b"CONNECT example.org:443 http/1.1\r\n\r\n", 400, id="a version in lower case"),
        pytest.param(b"\x05\x01\x00", 400, id="SOCKS 5"),
        pytest.param(b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", 400, id="SOCKS 4"),
        pytest.param(b"\x16\x03\x01", 400, id="TLS"),
        pytest.param(REQUEST_LINE + b"A: b\r\n folded\r\n\r\n", 400, id="a folded field"),
        pytest.param(REQUEST_LINE + b" A: b\r\n\r\n", 400, id="a field that begins with a space"),
        pytest.param(REQUEST_LINE + b"A : b\r\n\r\n", 400, id="a space before the colon"),
        pytest.param(REQUEST_LINE + b"no colon\r\n\r\n", 400, id="a line that is no field"),
        pytest.param(REQUEST_LINE + b": b\r\n\r\n", 400, id="a field without a name"),
        pytest.param(REQUEST_LINE + b"Host: a:1\r\nhOST: b:1\r\n\r\n", 400, id="two Hosts that disagree"),
        pytest.param(REQUEST_LINE + b"Host: a:1\r\nHost: a:1\r\n\r\n", 400, id="Host twice"),
        pytest.param(REQUEST_LINE + b"Content-Length: 0\r\n\r\n", 400, id="Content-Length"),
        pytest.param(REQUEST_LINE + b"transfer-ENCODING: chunked\r\n\r\n", 400, id="Transfer-Encoding"),
        pytest.param(b"GET http://example.org/ HTTP/1.1\r\n", 405, id="GET"),
        pytest.param(b"connect example.org:443 HTTP/1.1\r\n", 405, id="another case is another method"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405, id="HTTP/2"),
        pytest.param(REQUEST_LINE + b"A: b\r\n" * (MAX_FIELDS + 1), 431, id="too many fields"),
        pytest.param(b"C" * (MAX_HEADER_BYTES + 1), 431, id="a line without end"),
        pytest.param(REQUEST_LINE + b"A: " + b"b" * MAX_HEADER_BYTES + b"\r\n\r\n", 431, id="too large"),
    ],
)
def test_a_request_that_is_no_plain_connect_is_refused(request_bytes: bytes, expected: int) -> None:
    """The reader refuses at the first wrong byte, before the head has ended."""
    assert status(read_request(request_bytes)) == expected


def test_requests_at_the_limits_are_accepted() -> None:
    """A head may have 64 fields, and exactly 8 KiB."""
    fields = b"A: b\r\n" * (MAX_FIELDS - 1)
    block = REQUEST_LINE + fields + b"B: " + b"c" * (MAX_HEADER_BYTES - len(REQUEST_LINE + fields) - 7) + b"\r\n\r\n"

    assert len(block) == MAX_HEADER_BYTES
    assert read_request(block) == Target("example.org", 443, False)


def test_bytes_behind_the_head_are_kept_for_the_tunnel() -> None:
    """`rest` has the bytes that arrive with the head or later, and is empty until the head has ended."""
    reader = RequestReader()

    assert reader.feed(REQUEST_LINE + b"Host: example.org:443\r\n\r") is None
    assert reader.leftover == b""
    assert reader.feed(b"\n\r\n\x16\x03") == Target("example.org", 443, False)
    reader.feed(b"\x01")
    assert reader.leftover == b"\r\n\x16\x03\x01"


def test_a_plain_http_request_is_answered_with_a_hint_to_connect() -> None:
    """The answer is a whole response with status 405 that any client shows."""
    refusal = read_request(b"GET http://example.org/ HTTP/1.1\r\n")

    assert isinstance(refusal, ConnectRefusal)
    head, _, body = answer(refusal).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nAllow: CONNECT" in head
    assert f"\r\nContent-Length: {len(body)}\r\n".encode() in head
    assert b"use CONNECT" in body


@pytest.mark.parametrize(
    ("entries", "host", "port", "expected"),
    [
        ((), "example.org", 443, False),
        (("",), "example.org", 443, False),
        (("example.org:443",), "example.org", 443, True),
        (("example.org:443",), "example.org", 80, False),
        (("example.org:443",), "www.example.org", 443, False),
        (("example.org:443",), "xample.org", 443, False),
        (("*.example.org:443",), "www.example.org", 443, True),
        (("*.example.org:443",), "a.b.example.org", 443, True),
        (("*.example.org:443",), "example.org", 443, False),
        (("*.example.org:443",), "www.example.org", 80, False),
        (("*.example.org:443",), "badexample.org", 443, False),
        (("*.example.org:443",), "example.org.evil.net", 443, False),
        (("xn--bcher-kva.example:443",), "bucher.example", 443, False),
        (("127.0.0.1:80",), "127.0.0.1", 80, True),
        (("[::1]:80",), "::1", 80, True),
        (("[::1]:80",), "::1", 81, False),
        (("*",), "example.org", 1, True),
        (("*",), "1.1.1.1", 1, True),
        (("*",), "::1", 1, False),
    ],
)
def test_an_entry_of_a_list_allows_host_and_port_together(
    entries: tuple[str, ...], host: str, port: int, expected: bool
) -> None:
    """A wildcard matches whole labels."""
    assert is_allowed(entries, host, port) is expected
