"""The transport in which pods dial the kernel's listener: frames do not pass through the API server."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

from ramet.core.errors import RametError
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Forbidden
from ramet.isolation.kubernetes.api.manifest import SECRET
from ramet.isolation.transport.join_keys import new_key
from ramet.isolation.transport.join_token import JoinToken, format_token, secret_data
from ramet.isolation.transport.listener import PodListener
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine

_JOIN_S = 5.0  #: how long a pod may take to connect before it gets a new join token
_AGAIN_S = 0.25

_log = logging.getLogger("ramet.kubernetes")


def egress_to(address: str, port: int) -> Mapping[str, Any]:
    """Return a NetworkPolicy rule that allows this address and port, and nothing else."""
    to = {"ipBlock": {"cidr": ipaddress.ip_network(address).with_prefixlen}}
    return {"to": [to], "ports": [{"protocol": "TCP", "port": port}]}


class DialTransport:
    """A `PodTransport` that gives each pod a Secret: the kernel's address, the trusted CA, and a one-time key."""

    module = "ramet.isolation.kubernetes.entrypoint.dialing"

    def __init__(
        self, landing: PodListener, *, url: str, ca: str, patience_s: float = 60.0, join_s: float = 600.0
    ) -> None:
        """Configure the transport.

        `url` is the listener's URL as pods reach it, by an IP address; `ca` is the PEM of the authority that signed its
        certificate. A pod must send its first packet within `join_s` of its creation, because its image may have to be
        pulled. It ends after `patience_s` without a connection.
        """
        self._listener, self._url, self._ca, self._join_s = landing, url, ca, join_s
        self._keys: dict[str, str] = {}  #: of pods that have no uid yet
        self._uids: dict[str, str] = {}
        self.arguments, self.outlives_s = (SECRET, f"{patience_s:g}"), patience_s

    @property
    def egress(self) -> Mapping[str, Any]:
        parts = urlsplit(self._url)
        return egress_to(parts.hostname or "", parts.port or 443)

    def secret(self, pod: str) -> Mapping[str, str]:
        key = self._keys[pod] = new_key()
        return secret_data(JoinToken(url=self._url, ca=self._ca, key=key, pod=""))

    def open(self, api: Api, pod: str, uid: str) -> DialConnection:
        return DialConnection(self._expect_pod(pod, uid, self._keys.pop(pod)))

    def reconnect(self, api: Api, pod: str, uid: str) -> DialConnection:
        """Give the pod a token on its standard input.

        Anyone who may attach to the pod can write there.
        """
        invitation = JoinToken(url=self._url, ca=self._ca, key=new_key(), pod=uid)
        line = self._expect_pod(pod, uid, invitation.key)
        return DialConnection(line, _invite(api, pod, invitation, line))

    def _expect_pod(self, pod: str, uid: str, key: str) -> ResumingLine:
        self._uids[pod] = uid
        line = ResumingLine(patience=LineTimeouts(give_up_s=None))
        self._listener.expect(uid, line, join_s=self._join_s, key=key)
        return line

    def forget(self, pod: str) -> None:
        self._keys.pop(pod, None)
        self._listener.forget(self._uids.pop(pod, ""))


class DialConnection:
    """The `PodConnection` of a pod that dials as often as needed. Its line ends with the pod, and not before."""

    def __init__(self, line: ResumingLine, inviting: Coroutine[None, None, None] | None = None) -> None:
        """Create the connection. `inviting` has the pod connect if it would not by itself."""
        self.line = line
        self._inviting = None if inviting is None else asyncio.get_running_loop().create_task(inviting)

    @property
    def last_output(self) -> str:
        """Empty: this transport does not receive standard error; the container's log has it."""
        return ""

    def on_running(self) -> None:
        """Do nothing: the pod connects by itself."""

    async def close(self) -> None:
        self.line.give_up()
        if self._inviting is not None:
            self._inviting.cancel()
            await asyncio.gather(self._inviting, return_exceptions=True)


async def _invite(api: Api, pod: str, token: JoinToken, line: ResumingLine) -> None:
    """Write a token to a pod until it has connected, or its line has ended.

    The pod ignores a token that it already has. The writer cannot know whether the token was read, so it holds the
    stream until the pod has connected.
    """
    while not line.connections and not line.has_ended:
        try:
            async with api.attach(pod, outputs=False) as stream, asyncio.timeout(_JOIN_S):
                await stream.send(format_token(token))
                await line.wait_connected()
        except Forbidden as problem:
            _log.warning("pod %s cannot be invited: %s", pod, problem)
            return line.give_up()
        except (RametError, TimeoutError) as problem:
            _log.debug("pod %s: %s", pod, problem)
            await asyncio.sleep(_AGAIN_S)
