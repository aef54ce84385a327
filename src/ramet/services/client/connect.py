"""`ramet.connect`: the way to a server, for programs with an event loop and without."""

from __future__ import annotations

import os

from ramet.services.client.client import Client
from ramet.services.client.sync import SyncClient


class Connection:
    """`async with` gives a `Client`, `with` a `SyncClient`; nothing is opened before."""

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


def connect(where: str | os.PathLike[str], key: str | None = None) -> Connection:
    """A server at the path of its socket, or at a URL. Raises InvalidValue.

    `key` is shown with every request that says no other: an operator's, a team's or an agent's. Without one, that of
    the operator is taken from beside the socket, where this user may read it.
    """
    return Connection(Client(where, key))
