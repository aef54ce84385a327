"""Attacks 55 to 62: connections to addresses that are not allowed."""

from __future__ import annotations

import os
import socket
import time

from tests.security.attacks.trying import Tried, attempt, syscall

#: Families that lead to the kernel, to other machines or to the hypervisor, by number: Python lacks some names.
FAMILIES = {
    "ax25": 3, "ipx": 4, "appletalk": 5, "x25": 9, "key": 15, "netlink": 16, "packet": 17, "rds": 21, "pppox": 24,
    "llc": 26, "can": 29, "tipc": 30, "bluetooth": 31, "phonet": 35, "ieee802154": 36, "caif": 37, "alg": 38,
    "nfc": 39, "vsock": 40, "kcm": 41, "qipcrtr": 42, "smc": 43, "xdp": 44, "mctp": 45,
}  # fmt: skip


def connect(addresses: list[tuple[str, int]], seconds: float = 0.5) -> Tried:
    """Connect by TCP, and send by UDP, to addresses given as (host, port)."""
    tried: Tried = {}
    for host, port in addresses:
        tried[f"tcp {host} {port}"] = attempt(_tcp, host, port, seconds)
        tried[f"udp {host} {port}"] = attempt(_udp, host, port)
    return tried


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tcp(host: str, port: int, seconds: float) -> None:
    with socket.socket(_family(host), socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect((host, port))
        connection.sendall(b"hello from inside")


def _udp(host: str, port: int) -> None:
    with socket.socket(_family(host), socket.SOCK_DGRAM) as connection:
        connection.sendto(b"hello from inside", (host, port))


def listen(host: str = "127.0.0.1") -> Tried:
    """Listen on a TCP port to which other sandboxes or the host could connect."""

    def tcp() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((host, 0))
            listener.listen()

    return {"listen": attempt(tcp)}


def resolve(names: list[str]) -> Tried:
    """Resolve names."""
    return {name: attempt(_address, name) for name in names}


def _address(name: str) -> str:
    return str(socket.getaddrinfo(name, 80)[0][4][0])


def other_families() -> Tried:
    """Open sockets of each family that leads outside, by each type, and with high bits set."""
    tried: Tried = {}
    for name, number in FAMILIES.items():
        for kind, shown in (
            (socket.SOCK_STREAM, "stream"),
            (socket.SOCK_DGRAM, "dgram"),
            (socket.SOCK_RAW, "raw"),
            (socket.SOCK_SEQPACKET, "seqpacket"),
        ):
            tried[f"{name} {shown}"] = attempt(_open_socket, number, kind)
            tried[f"{name} {shown} high"] = attempt(_open_socket, number | 1 << 32, kind)
    for name, number in (("ipv4", socket.AF_INET), ("ipv6", socket.AF_INET6)):
        tried[f"{name} raw"] = attempt(_open_socket, number, socket.SOCK_RAW, 1)
    tried["socketpair of netlink"] = attempt(socket.socketpair, socket.AF_NETLINK, socket.SOCK_DGRAM)
    return tried


def _open_socket(family: int, kind: int, protocol: int = 0) -> None:
    os.close(syscall("socket", family, kind, protocol))


def unix_sockets(paths: list[str], abstract: list[str]) -> Tried:
    """Connect to services of the host by path and by abstract name."""
    tried: Tried = {}
    for shown, address in [(path, path) for path in paths] + [(f"@{name}", f"\0{name}") for name in abstract]:
        for kind, number in (("stream", socket.SOCK_STREAM), ("dgram", socket.SOCK_DGRAM)):
            tried[f"{kind} {shown}"] = attempt(_call, address, number)
    return tried


def _call(address: str, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(2)
        connection.connect(address)
        connection.send(b"hello from inside")


def squat(name: str, path: str) -> Tried:
    """Listen under an abstract name and on a path, as a service of the host would."""

    def listen_at(address: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address)
        listener.listen()
        _kept.append(listener)

    return {"abstract": attempt(listen_at, f"\0{name}"), "path": attempt(listen_at, path)}


_kept: list[socket.socket] = []


def squat_and_wait(name: str, seconds: float) -> None:
    """Listen as `squat` does, and wait for callers."""
    squat(name, "/tmp/squatted.sock")
    print("ready", flush=True)  # noqa: T201
    time.sleep(seconds)


def through_the_proxy(targets: list[str]) -> dict[str, str]:
    """Request a tunnel to each host:port from the proxy of the environment, and send a greeting through it."""
    outcomes: dict[str, str] = {}
    for target in targets:
        outcomes[target] = attempt(_open_tunnel, target)
    return outcomes


def proxy_address() -> str:
    """Return the address of the proxy from the environment."""
    return next(
        (os.environ[key] for key in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy") if key in os.environ), ""
    )


def _open_tunnel(target: str) -> str:
    host, _, port = proxy_address().rpartition("://")[2].rstrip("/").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(4096)):
            answer += piece
        status = answer.split(b" ", 2)[1].decode() if b" " in answer else "closed"
        if status != "200":
            return status
        connection.sendall(b"hello from inside")
        return f"{status} {connection.recv(100).decode()}"


def proxy_by_library(host: str, port: int) -> str:
    """Request a page as ordinary code with a proxy does: by the tunnel of http.client."""
    import http.client

    proxy = http.client.HTTPConnection(proxy_address().rpartition("://")[2].rstrip("/"), timeout=5)
    proxy.set_tunnel(host, port)
    try:
        proxy.request("GET", "/")
        reply = proxy.getresponse()
        return f"{reply.status} {reply.read(100).decode()}"
    except OSError as refusal:
        return str(refusal)
    finally:
        proxy.close()
