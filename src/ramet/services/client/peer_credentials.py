"""The identity of the process at a Unix socket: a key is sent only to a process of this user or of root."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from ramet.core.errors import Denied

_PEER = struct.Struct("3i")  #: process, user, group
_CONNECTED = "connection.connect_unix_socket.complete"


async def verify_peer(event: str, info: dict[str, Any]) -> None:
    """Check each new connection of httpx2, as its extension `trace`, before any data is sent.

    Raises Denied if a process of another user listens; the connection is closed then.
    """
    if event != _CONNECTED:
        return
    stream = info["return_value"]
    user = user_of(stream.get_extra_info("socket"))
    if user not in (os.geteuid(), 0):
        await stream.aclose()
        raise Denied("a key for the server at this socket", f"a process of user {user} listens there, not of this one")


def user_of(connection: socket.socket) -> int:
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])
