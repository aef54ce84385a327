"""Attempts to deliver a notification to a webhook: a signed POST to an address that was checked.

The name is looked up once, and the connection goes to an address that passed the check. Nothing is redirected, no proxy
is used, and the body of the answer is not read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import re
import ssl
from typing import Final
from urllib.parse import urlsplit

from ramet.concurrency.clock import Clock
from ramet.concurrency.threads import in_thread
from ramet.host.egress.addresses import look_up
from ramet.host.egress.dial import Dialer, Lookup, connect
from ramet.host.notifications.attempt import Attempt
from ramet.host.notifications.notification import Notification
from ramet.host.notifications.targets import WebhookTarget, canonical_host, webhook_key
from ramet.wire.http_connect import ConnectRefusal, Target

_CONNECT_S: Final = 5.0  #: for the lookup and the connection; at most the time of the attempt
_MAX_HEAD: Final = 64 * 1024  #: bytes of the head of an answer
_MAX_INTERIM: Final = 8  #: answers 1xx before the final one
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: |\r)")
_ALL_NETWORKS: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


class WebhookClient:
    """A webhook target: each attempt is one connection and one request."""

    def __init__(self, target: WebhookTarget, clock: Clock, *, lookup: Lookup = look_up) -> None:
        parts = urlsplit(target.url)
        host = canonical_host(parts.hostname or "")
        self._target, self._clock = target, clock
        self._is_encrypted = parts.scheme == "https"
        self._address = Target(host, parts.port or (443 if self._is_encrypted else 80), _is_ip(host))
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._host_field = f"[{host}]" if ":" in host else host
        if parts.port is not None:
            self._host_field += f":{parts.port}"
        self._key = None if target.secret is None else webhook_key(target.secret)
        self._tls: ssl.SSLContext | None = None
        # A listed host may have any address. Of another one, only public addresses pass, also if the URL has a number.
        is_listed = target.is_private_allowed(parts)
        self._dialer = Dialer(
            {self._address.authority} if is_listed else {"*"},
            lookup=lookup,
            private_networks=_ALL_NETWORKS if is_listed else (),
        )

    async def deliver(self, notification: Notification) -> Attempt:
        """Post the notification."""
        body = notification.as_slack() if self._target.format == "slack" else notification.as_json()
        try:
            async with asyncio.timeout(self._target.timeout_s):
                status = await self._post(self._head(notification.id, body) + body)
        except TimeoutError:
            return Attempt(f"it did not answer within {self._target.timeout_s:g} s")
        except ssl.SSLCertVerificationError as problem:
            return Attempt(f"its certificate is not accepted: {problem.verify_message}")
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as problem:
            return Attempt(f"the connection failed: {type(problem).__name__}")
        if isinstance(status, str):
            return Attempt(status)
        if 200 <= status < 300:
            return Attempt()
        if 300 <= status < 400:
            return Attempt(f"it answered {status}, and redirects are not followed")
        return Attempt(f"it answered {status}", is_gone=status == 410)

    async def _post(self, request: bytes) -> int | str:
        """Return the status of the answer, or why nothing was sent."""
        end = asyncio.get_running_loop().time() + min(_CONNECT_S, self._target.timeout_s)
        async with asyncio.timeout_at(end):
            addresses = await self._dialer.find(self._address)
        if isinstance(addresses, ConnectRefusal):
            return addresses.reason
        sock = await connect(addresses, self._address.port, end=end)
        if isinstance(sock, ConnectRefusal):
            return sock.reason
        try:
            if self._is_encrypted and self._tls is None:
                self._tls = await in_thread(ssl.create_default_context, name="ramet-tls")
            reader, writer = await asyncio.open_connection(
                sock=sock,
                limit=_MAX_HEAD,
                ssl=self._tls,
                server_hostname=self._address.host if self._is_encrypted else None,
            )
        except BaseException:
            sock.close()
            raise
        try:
            writer.write(request)
            # The answer may come before the whole request was read.
            return await _read_status(reader)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _head(self, id: str, body: bytes) -> bytes:
        fields = {
            "host": self._host_field,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": "ramet",
            "connection": "close",
            **self._signature(id, body),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self._path} HTTP/1.1\r\n{lines}\r\n".encode("ascii")

    def _signature(self, id: str, body: bytes) -> dict[str, str]:
        """Return the fields of Standard Webhooks. The time is that of the attempt, the id is always the same."""
        timestamp = str(int(self._clock.now().timestamp()))
        fields = {"webhook-id": id, "webhook-timestamp": timestamp}
        if self._key is None:
            return fields
        digest = hmac.digest(self._key, f"{id}.{timestamp}.".encode("ascii") + body, hashlib.sha256)
        return {**fields, "webhook-signature": f"v1,{base64.b64encode(digest).decode('ascii')}"}


async def _read_status(reader: asyncio.StreamReader) -> int:
    """Return the status of the final answer. Raises ValueError, EOFError and LimitOverrunError."""
    for _ in range(_MAX_INTERIM):
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            raise ValueError("the answer is not HTTP/1.1")
        if (status := int(found[1])) >= 200:
            return status
    raise ValueError("the final answer does not come")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
