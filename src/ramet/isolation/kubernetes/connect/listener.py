"""The listener that all pods of a kernel dial, as one object to begin and to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.manifest import SECRET
from ramet.isolation.kubernetes.connect.dial import DialConnection, DialTransport, egress_to
from ramet.isolation.transport.certificates import ServerIdentity
from ramet.isolation.transport.listener import PATH, PodListener


class SharedListener:
    """A `PodTransport` for the backends of all namespaces. It does not listen before `start`."""

    module = DialTransport.module

    def __init__(
        self,
        address: tuple[str, int],
        *,
        listen: tuple[str, int],
        identify: Callable[[], ServerIdentity],
        patience_s: float = 60.0,
    ) -> None:
        """Configure the listener.

        `address` is the IP address and the port at which pods reach the socket of `listen`. `identify` may read and
        write files.
        """
        self._address, self._listen, self._identify, self._patience_s = address, listen, identify, patience_s
        self._listener: PodListener | None = None
        self._dial: DialTransport | None = None
        self.arguments, self.outlives_s = (SECRET, f"{patience_s:g}"), patience_s

    @property
    def egress(self) -> Mapping[str, Any]:
        return egress_to(*self._address)

    async def start(self) -> None:
        """Listen. Idempotent.

        Raises InvalidValue for an address that cannot be used and for an invalid identity; MissingExtra.
        """
        if self._dial is not None:
            return
        identity = await in_thread(self._identify, name="ramet-pod-listener")
        listener = PodListener(*self._listen, identity.context)
        try:
            await listener.__aenter__()
        except OSError as problem:
            address = "{}:{}".format(*self._listen)
            raise InvalidValue("pods.listen", address, f"a free address of this machine ({problem.strerror})") from None
        host, port = self._address
        url = f"wss://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
        self._listener, self._dial = (
            listener,
            DialTransport(listener, url=url, ca=identity.ca, patience_s=self._patience_s),
        )

    async def stop(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        listener, self._listener, self._dial = self._listener, None, None
        if listener is not None:
            await listener.__aexit__()

    def secret(self, pod: str) -> Mapping[str, str]:
        return self._open.secret(pod)

    def open(self, api: Api, pod: str, uid: str) -> DialConnection:
        return self._open.open(api, pod, uid)

    def reconnect(self, api: Api, pod: str, uid: str) -> DialConnection:
        return self._open.reconnect(api, pod, uid)

    def forget(self, pod: str) -> None:
        if self._dial is not None:
            self._dial.forget(pod)

    @property
    def _open(self) -> DialTransport:
        assert self._dial is not None, "begin() was called before"
        return self._dial
