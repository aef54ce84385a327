"""Attacks 55 to 62 of the list: reaching addresses that the policy does not name."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from tests.security.attacks import network
from tests.security.kit import Kernel, Raised, as_root, assert_refused, assert_works, has_succeeded

#: What it may be called that there is no way to somebody.
NO_WAY = (
    "EPERM",
    "EACCES",
    "EAFNOSUPPORT",
    "ENETUNREACH",
    "ENETDOWN",
    "EHOSTUNREACH",
    "EADDRNOTAVAIL",
    "EPROTONOSUPPORT",
)
#: Also where the own loopback is up, on which nobody listens.
NOBODY = (*NO_WAY, "ECONNREFUSED")


def own_addresses() -> list[str]:
    """Return the addresses of this machine beyond loopback; none on a machine without network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
            return [asking.getsockname()[0]]
        except OSError:
            return []


@pytest.fixture
def port(kernel: Kernel) -> int:
    """Start a service on the host's loopback, and return its port."""
    found: int = kernel.play("listen", key="service", address="127.0.0.1")
    return found


def test_55_an_agent_reaches_no_ipv4_address(kernel: Kernel, port: int) -> None:
    """55: loopback, the machine's own address, the metadata service and the world are out of reach by TCP and UDP."""
    udp = kernel.play("listen", key="udp", address="127.0.0.1", kind="udp")
    addresses = [("127.0.0.1", port), ("127.0.0.1", udp), ("127.8.8.8", port), ("0.0.0.0", port)]
    addresses += [(own, port) for own in own_addresses()]
    control = kernel.control(network.connect, addresses[:2])
    assert has_succeeded(control[f"tcp 127.0.0.1 {port}"])
    assert has_succeeded(control[f"udp 127.0.0.1 {udp}"])
    before = kernel.play("count_callers", key="service"), kernel.play("count_callers", key="udp")

    tried = kernel.attack(network.connect, [*addresses, ("169.254.169.254", 80), ("192.0.2.1", 80)])

    assert_refused(tried, *NOBODY)
    assert (kernel.play("count_callers", key="service"), kernel.play("count_callers", key="udp")) == before == (1, 1)


def test_56_an_agent_reaches_no_ipv6_address(kernel: Kernel) -> None:
    """56: loopback, link-local and IPv4 addresses in IPv6 form are out of reach."""
    port = kernel.play("listen", key="six", address="127.0.0.1")
    addresses = [("::ffff:127.0.0.1", port), ("::1", port), ("fe80::1", port), ("64:ff9b::7f00:1", port)]
    assert has_succeeded(kernel.control(network.connect, addresses[:1])[f"tcp ::ffff:127.0.0.1 {port}"])

    assert_refused(kernel.attack(network.connect, addresses), *NOBODY)
    assert kernel.play("count_callers", key="six") == 1


def test_55_an_agent_cannot_resolve_names_or_listen(kernel: Kernel) -> None:
    """55: no name service answers, and an agent opens no port to which others could connect."""
    assert has_succeeded(kernel.control(network.resolve, ["localhost"])["localhost"])
    assert_works(kernel.control(network.listen))

    named = kernel.attack(network.resolve, ["example.org", "metadata.google.internal", "kubernetes.default.svc"])
    listening = kernel.attack(network.listen)

    assert [name for name, outcome in named.items() if has_succeeded(outcome)] == []
    if not kernel.has_namespaces:  # with a network of its own, listening there reaches nobody
        assert_refused(listening, *NO_WAY)


def test_58_an_agent_cannot_open_sockets_of_other_families(kernel: Kernel) -> None:
    """58: raw, packet, netlink, AF_ALG, vsock, bluetooth, xdp and other sockets are refused, even with high bits."""
    control = as_root(network.other_families)
    if control is not None:
        for name in ("netlink raw", "packet raw", "ipv4 raw"):
            assert has_succeeded(control[name])

    assert_refused(kernel.attack(network.other_families), "EAFNOSUPPORT", "EPERM", "EACCES")


def test_59_60_an_agent_reaches_no_unix_socket_of_the_host(kernel: Kernel) -> None:
    """59, 60: a service of the host is out of reach by abstract name and by path, as stream and as datagram."""
    path, name = str(kernel.base / "service.sock"), f"ramet-test-{kernel.backend}-{kernel.user}-{os.getpid()}"
    kernel.play("listen", key="by path", address=path)
    kernel.play("listen", key="by name", address=f"@{name}")
    kernel.play("listen", key="by name too", address=f"@{name}-dgram", kind="dgram")
    control = kernel.control(network.unix_sockets, [path], [name, f"{name}-dgram"])
    assert has_succeeded(control[f"stream {path}"])
    assert has_succeeded(control[f"stream @{name}"])
    assert has_succeeded(control[f"dgram @{name}-dgram"])

    paths = [path, "/run/docker.sock", "/run/dbus/system_bus_socket", "/dev/log", str(kernel.base / "agent.sock")]
    tried = kernel.attack(network.unix_sockets, paths, [name, f"{name}-dgram"])

    assert_refused(tried, "ENOENT", "EACCES", "EPERM", "ECONNREFUSED", "EAFNOSUPPORT")


def test_60_an_agent_with_an_endpoint_reaches_no_unix_socket_in_a_mount(kernel: Kernel) -> None:
    """60: a Unix socket in a mount is out of reach, since the kernel's own socket obeys each process of its user."""
    folder = kernel.base / "shared"
    folder.mkdir()
    folder.chmod(0o777)  # The kernel may be another user's.
    path = str(folder / "service.sock")
    kernel.play("listen", key="in a mount", address=path)
    control = kernel.control(network.unix_sockets, [path], [])
    assert has_succeeded(control[f"stream {path}"])

    endpoints = {} if kernel.user == "bare" else {"allowed_endpoints": ["example.org:443"]}  # It can have none.
    tried = kernel.attack(network.unix_sockets, [path], [], readonly_mounts=[str(folder)], **endpoints)

    assert_refused(tried, "EAFNOSUPPORT")


def test_neg_10_a_socket_of_an_agent_impersonates_no_service(kernel: Kernel) -> None:
    """NEG-10: another agent cannot reach a socket that an agent opens. With namespaces the host cannot either."""
    name = f"ramet-squatted-{kernel.backend}-{kernel.user}-{os.getpid()}"
    assert_works(kernel.control(network.squat, name, "squatted.sock"))

    kernel.play("start", key="squatter", agent="tests.security.attacks.network:squat_and_wait", args=[name, 60])
    host = kernel.control(network.unix_sockets, [], [name])
    other = kernel.attack(network.unix_sockets, ["/tmp/squatted.sock"], [name])
    kernel.play("cancel", key="squatter")

    assert not has_succeeded(other[f"stream @{name}"])
    assert not has_succeeded(other["stream /tmp/squatted.sock"])
    if kernel.has_namespaces:  # without a network namespace a name may be taken, but nobody inside reaches it
        assert not has_succeeded(host[f"stream @{name}"])


def assert_no_endpoints_there(kernel: Kernel, policy: dict[str, Any]) -> None:
    """Assert that a run with an allow-list fails by name: without a network namespace nothing enforces the proxy."""
    result = kernel.run(network.proxy_address, **policy)

    assert result["status"] == "failed"
    assert "allowed_endpoints" in result["error"]["message"]


@pytest.mark.parametrize("endpoints", [None, [], [""], ["localhost:1"]])
def test_62_an_agent_without_a_matching_endpoint_reaches_nothing(kernel: Kernel, port: int, endpoints: Any) -> None:
    """62: an agent with an absent, empty or different list of endpoints has no proxy, or the proxy refuses."""
    policy: dict[str, Any] = {} if endpoints is None else {"allowed_endpoints": endpoints}
    if endpoints:
        policy["network"] = "allow_list"
    before = kernel.play("count_callers", key="service")
    if any(endpoints or []) and not kernel.has_namespaces:
        assert_no_endpoints_there(kernel, policy)
        return

    tried = kernel.attack(network.connect, [("127.0.0.1", port)], **policy)
    tunnel = kernel.attack(network.through_the_proxy, [f"127.0.0.1:{port}"], **policy)

    assert_refused({"tcp": tried[f"tcp 127.0.0.1 {port}"]}, *NOBODY)
    assert not tunnel[f"127.0.0.1:{port}"].startswith("done: 200")
    assert kernel.play("count_callers", key="service") == before


@pytest.mark.parametrize(
    "endpoints", [[" "], ["example.org"], ["http://example.org:80"], ["a:b"], ["a:99999"], ["a:0"]]
)
def test_62_an_endpoint_needs_a_host_and_a_port(kernel: Kernel, endpoints: list[str]) -> None:
    """62: an entry that is no host:port gives an error that names the field, and never means "any"."""
    with pytest.raises(Raised) as raised:
        kernel.run(network.proxy_address, network="allow_list", allowed_endpoints=endpoints)

    assert raised.value.error["type"] == "InvalidValue"
    assert "allowed_endpoints" in raised.value.error["field"]


def test_55_62_neg_5_an_agent_reaches_only_its_allowed_endpoint(kernel: Kernel, port: int) -> None:
    """55, 62, NEG-5: the listed host and port answer through the proxy of HTTP_PROXY. Another port is refused."""
    other = kernel.play("listen", key="other", address="127.0.0.1")
    policy: dict[str, Any] = {"network": "allow_list", "allowed_endpoints": [f"127.0.0.1:{port}"]}

    if not kernel.has_namespaces:
        assert_no_endpoints_there(kernel, policy)
        return

    tunnels = kernel.attack(network.through_the_proxy, [f"127.0.0.1:{port}", f"127.0.0.1:{other}"], **policy)
    page = kernel.attack(network.proxy_by_library, "127.0.0.1", port, **policy)
    refused = kernel.attack(network.proxy_by_library, "127.0.0.1", other, **policy)

    assert tunnels[f"127.0.0.1:{port}"] == "done: 200 hello from the host"
    assert tunnels[f"127.0.0.1:{other}"] == "done: 403"
    assert page == "200 hello from the host"
    assert "403" in refused
    assert kernel.play("count_callers", key="other") == 0


def test_55_58_an_agent_with_endpoints_cannot_bypass_the_proxy(kernel: Kernel, port: int) -> None:
    """55, 58: an agent with an allow-list can open sockets.

    Past the proxy it reaches nothing by TCP, UDP or raw sockets.
    """
    udp = kernel.play("listen", key="udp too", address="127.0.0.1", kind="udp")
    assert has_succeeded(kernel.control(network.connect, [("127.0.0.1", udp)])[f"udp 127.0.0.1 {udp}"])
    policy: dict[str, Any] = {"network": "allow_list", "allowed_endpoints": ["127.0.0.1:1"]}
    if not kernel.has_namespaces:
        assert_no_endpoints_there(kernel, policy)
        return
    before = kernel.play("count_callers", key="service")

    tried = kernel.attack(network.connect, [("127.0.0.1", port), ("127.0.0.1", udp), ("::1", port)], **policy)
    families = kernel.attack(network.other_families, **policy)

    assert [name for name, outcome in tried.items() if name.startswith("tcp") and has_succeeded(outcome)] == []
    assert (kernel.play("count_callers", key="service"), kernel.play("count_callers", key="udp too")) == (before, 1)
    assert_refused(families, "EAFNOSUPPORT", "EPERM", "EACCES")
