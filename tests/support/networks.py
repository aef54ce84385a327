"""Two hosts and a router between them, as network namespaces: a network that a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

KERNEL, MACHINE = "10.91.1.2", "10.91.2.2"  #: addresses of the hosts; they mean nothing outside


class Network:
    """Two hosts, `kernel` and `machine`. Their namespaces have unique names, so that networks do not collide."""

    def __init__(self, name: str) -> None:
        self._name = name

    def at(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"{self._name}-{host}"

    async def start(self, host: str, program: str, *args: str) -> asyncio.subprocess.Process:
        """Run a Python program on a host."""
        inside = ("ip", "netns", "exec", self.at(host))
        return await asyncio.create_subprocess_exec(
            *inside, sys.executable, "-c", program, *args, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )

    def drop(self, is_dropped: bool) -> None:
        """Make the router drop packets without an error, so that connections are half-open; or forward them again."""
        inside = ("ip", "netns", "exec", self.at("router"))
        value = "0" if is_dropped else "1"
        subprocess.run((*inside, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/ip_forward"), check=True, timeout=180)

    def unplug(self, is_unplugged: bool) -> None:
        """Take the link of the machine down or up. Its route to the kernel is set again when it is up."""
        self._ip("-n", self.at("machine"), "link", "set", "up0", "down" if is_unplugged else "up")
        if not is_unplugged:
            self._ip("-n", self.at("machine"), "route", "replace", "default", "via", "10.91.2.1")

    def _ip(self, *args: str) -> None:
        subprocess.run(("ip", *args), check=True, timeout=180, capture_output=True)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Make a network. Skips the test if this process is not root."""
    if os.geteuid() != 0 or not Path("/usr/sbin/ip").exists():
        pytest.skip("only root makes networks, with `ip`")
    made = Network(f"ramet-{uuid.uuid4().hex[:8]}")
    try:
        for host in ("router", "kernel", "machine"):
            try:
                made._ip("netns", "add", made.at(host))
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network can be made here: {error.stderr.decode().strip()}")
            made._ip("-n", made.at(host), "link", "set", "lo", "up")
        for number, host in enumerate(("kernel", "machine"), 1):
            link = ("link", "add", "up0", "netns", made.at(host), "type", "veth", "peer", "name", f"down{number}")
            made._ip(*link, "netns", made.at("router"))
            for end, name, address in ((host, "up0", 2), ("router", f"down{number}", 1)):
                made._ip("-n", made.at(end), "addr", "add", f"10.91.{number}.{address}/24", "dev", name)
                made._ip("-n", made.at(end), "link", "set", name, "up")
            made._ip("-n", made.at(host), "route", "replace", "default", "via", f"10.91.{number}.1")
        made.drop(False)
        yield made
    finally:
        for host in ("router", "kernel", "machine"):
            subprocess.run(("ip", "netns", "del", made.at(host)), check=False, timeout=180, capture_output=True)
