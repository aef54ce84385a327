"""Addresses: which are public, and which belong to this machine."""

from __future__ import annotations

import ipaddress

import pytest

from ramet.core.addresses import objection
from ramet.host.egress.addresses import is_own, look_up


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("0.0.0.0", id="unspecified"),
        pytest.param("0.1.2.3", id="this network"),
        pytest.param("10.1.2.3", id="private 10/8"),
        pytest.param("100.64.0.1", id="shared by carriers"),
        pytest.param("100.100.100.200", id="metadata of Alibaba"),
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("127.255.255.254", id="the end of loopback"),
        pytest.param("168.63.129.16", id="host of Azure"),
        pytest.param("169.254.169.254", id="metadata"),
        pytest.param("169.254.0.1", id="link-local"),
        pytest.param("172.16.0.1", id="private 172.16/12"),
        pytest.param("172.31.255.255", id="the end of 172.16/12"),
        pytest.param("192.0.0.9", id="protocol assignments"),
        pytest.param("192.0.0.192", id="metadata of Oracle"),
        pytest.param("192.0.2.1", id="documentation"),
        pytest.param("192.88.99.1", id="6to4 relays"),
        pytest.param("192.168.1.1", id="private 192.168/16"),
        pytest.param("198.18.0.1", id="benchmarks"),
        pytest.param("224.0.0.1", id="multicast"),
        pytest.param("239.255.255.250", id="multicast of a site"),
        pytest.param("240.0.0.1", id="reserved"),
        pytest.param("255.255.255.255", id="broadcast"),
        pytest.param("::", id="IPv6 unspecified"),
        pytest.param("::1", id="IPv6 loopback"),
        pytest.param("::7f00:1", id="IPv4-compatible"),
        pytest.param("::808:808", id="IPv4-compatible, public"),
        pytest.param("::ffff:127.0.0.1", id="mapped"),
        pytest.param("::ffff:8.8.8.8", id="mapped, public"),
        pytest.param("64:ff9b::7f00:1", id="NAT64 of loopback"),
        pytest.param("64:ff9b::a9fe:a9fe", id="NAT64 of metadata"),
        pytest.param("64:ff9b:1::808:808", id="NAT64 of a site"),
        pytest.param("100::1", id="discard"),
        pytest.param("2001::1", id="Teredo"),
        pytest.param("2001:10::1", id="ORCHID"),
        pytest.param("2001:db8::1", id="IPv6 documentation"),
        pytest.param("2002:7f00:1::", id="6to4 of loopback"),
        pytest.param("2002:808:808::", id="6to4, public"),
        pytest.param("3fff::1", id="IPv6 documentation, new"),
        pytest.param("5f00::1", id="segment routing"),
        pytest.param("fc00::1", id="unique local"),
        pytest.param("fd00:ec2::254", id="IPv6 metadata"),
        pytest.param("fe80::1", id="IPv6 link-local"),
        pytest.param("fe80::1%lo", id="IPv6 link-local with a zone"),
        pytest.param("2606:4700::1%lo", id="a zone"),
        pytest.param("fec0::1", id="site-local"),
        pytest.param("ff02::1", id="IPv6 multicast"),
        pytest.param("ff0e::1", id="IPv6 multicast, global"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    """Any notation of the address is recognised."""
    assert objection(ipaddress.ip_address(address)) == "its address is not public"


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "9.255.255.255", "11.0.0.0", "128.0.0.1", "223.255.255.255", "2606:4700::1111", "2a00::1"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    """NAT64 of a public address passes too: a machine without IPv4 reaches it so."""
    assert objection(ipaddress.ip_address(address)) is None
    if "." in address:
        nat64 = int(ipaddress.IPv6Address("64:ff9b::")) + int(ipaddress.IPv4Address(address))
        assert objection(ipaddress.IPv6Address(nat64)) is None


@pytest.mark.parametrize(("address", "expected"), [("127.0.0.1", True), ("127.1.2.3", True), ("192.0.2.254", False)])
def test_an_address_of_this_machine_is_recognised(address: str, expected: bool) -> None:
    """Services that listen on all addresses would be reachable there."""
    assert is_own(ipaddress.ip_address(address)) is expected


def test_a_name_is_looked_up_as_this_machine_does() -> None:
    """Each address appears once; an unknown name raises OSError."""
    assert "127.0.0.1" in (addresses := look_up("localhost", 80))
    assert len(addresses) == len(set(addresses))
    with pytest.raises(OSError, match=r".+"):
        look_up("a" * 63 + ".invalid", 80)
