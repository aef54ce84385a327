"""Hosts as browsers name them."""

from __future__ import annotations

import pytest

from ramet.core.errors import InvalidValue
from ramet.wire.authority import checked_authority


def test_a_host_may_have_a_port_and_nothing_else() -> None:
    """Names and addresses are returned in lower case; anything beside host and port is refused, naming the field."""
    right = ["agents.Example.org", "agents.example.org:8123", "10.0.0.7:1", "[::1]:65535", "a_b-c"]
    wrong = [
        "",
        "http://a",
        "a/b",
        "a:b",
        "a:0",
        "a:65536",
        "u@a",
        "a.",
        ".a",
        "a b",
        "[::1",
        "::1",
        "a\n",
        "é.org",
        "*.a",
    ]

    assert [checked_authority("hosts", each) for each in right] == [each.lower() for each in right]
    for each in [*wrong, "", "a" * 300]:
        with pytest.raises(InvalidValue, match="hosts"):
            checked_authority("hosts", each)
