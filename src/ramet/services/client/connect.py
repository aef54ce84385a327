"""`ramet.connect`: a connection to a server, for programs with and without an event loop."""

from __future__ import annotations

import os

from ramet.services.client.client import Client
from ramet.services.client.sync import SyncClient


class Connection:
    """A connection to a server: `async with` returns a `Client`, `with` a `SyncClient`. Nothing is opened before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sync: SyncClient | None = None

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__()

    def __enter__(self) -> SyncClient:
        self._sync = SyncClient(self._client).__enter__()
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.__exit__()
            self._sync = None


def connect(address: str | os.PathLike[str], key: str | None = None) -> Connection:
    """Prepare a connection to a server at the path of its socket, or at a URL. Raises InvalidValue.

    `key` is sent with every request without a key of its own: the key of an operator, a team or an agent. Without
    `key`, the operator's key is read from the file next to the socket, if this user may read it.
    """
    return Connection(Client(address, key))
