"""Authentication at a registry: with a name and a password, with an identity token, or anonymous."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import httpx2

from ramet.core.errors import RametError

MAX_TOKEN = 256 * 1024  #: bytes of a token server's answer
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: A parameter of a challenge, or a scheme, with which a challenge begins. No character is read twice: the next part
#: begins where this one ends, and nothing is read after one that does not match.
_PART = re.compile(
    r"""[\s,]*+(?P<name>[^\s,="]++)(?P<value>\s*+=\s*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s,"]++)))?+""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLIENT = "ramet"


class RegistryFailed(RametError):
    """A request that a registry did not fulfil. `status` is its HTTP status, 0 if the registry could not be reached."""

    def __init__(self, registry: str, what: str, status: int, reason: str) -> None:
        self.registry, self.what, self.status = registry, what, status
        self.reason = " ".join(reason.split())[:500]
        super().__init__(f"{registry}: {what} failed" + (f" (HTTP {status})" if status else "") + f": {self.reason}")


class Login(NamedTuple):
    """The credentials for a registry. They are never shown."""

    username: str = ""
    password: str = ""
    identity_token: str = ""  #: replaces name and password, where a token server accepts it

    def __repr__(self) -> str:
        return "Login(…)" if self else "Login()"

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)

    @property
    def basic(self) -> str:
        """The value of an HTTP header with name and password."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"


NOBODY = Login()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, so that data does not leave it."""
    return host in _LOOPBACK


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the parameters of each scheme in a `WWW-Authenticate` header; all names are in lower case.

    A scheme that is named twice has the parameters of its first challenge.
    """
    challenges: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    at = 0
    while (part := _PART.match(header, at)) is not None:
        at, name = part.end(), part["name"].lower()
        if part["value"] is None:
            parameters = {}
            challenges.setdefault(name, parameters)
        else:
            parameters[name] = part["plain"] or _ESCAPED.sub(r"\1", part["quoted"] or "")
    return challenges


async def authorization(
    client: httpx2.AsyncClient, registry: httpx2.URL, challenge: str, login: Login, scopes: Sequence[str]
) -> str:
    """Return the header that answers a challenge, or "" if no answer is possible. Raises RegistryFailed, HTTPError."""
    challenges = parse_challenges(challenge)
    if "bearer" not in challenges:
        return login.basic if "basic" in challenges and login.username else ""
    name, parameters = registry.netloc.decode(), challenges["bearer"]
    realm = httpx2.URL(parameters.get("realm", ""))
    if realm.scheme != "https" and not (realm.scheme == "http" == registry.scheme and _is_same(realm, registry)):
        address = str(realm.copy_with(query=None, userinfo=b""))
        raise RegistryFailed(name, "authentication", 401, f"its tokens come unencrypted, from {address or 'nowhere'}")
    service = parameters.get("service", "")
    if login.identity_token:
        token_query = {
            "grant_type": "refresh_token",
            "service": service,
            "client_id": _CLIENT,
            "scope": " ".join(scopes),
            "refresh_token": login.identity_token,
        }
        request = client.build_request("POST", realm, data=token_query)
    else:
        query = (("service", service), *(("scope", each) for each in scopes))
        headers = {"authorization": login.basic} if login else {}
        request = client.build_request("GET", realm.copy_merge_params(query), headers=headers)
    response = await client.send(request, stream=True)
    try:
        data = bytearray()
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > MAX_TOKEN:
                raise RegistryFailed(name, "authentication", response.status_code, f"more than {MAX_TOKEN} bytes")
    finally:
        await response.aclose()
    token = _token(data) if response.status_code == 200 else ""
    if not token:  # The body of the answer may repeat the credentials.
        raise RegistryFailed(name, "authentication", response.status_code, "it gave no token")
    return f"Bearer {token}"


def _is_same(one: httpx2.URL, other: httpx2.URL) -> bool:
    return one.host == other.host or (is_loopback(one.host) and is_loopback(other.host))


def _token(data: bytearray) -> str:
    try:
        document = json.loads(data)
        token = document.get("token") or document.get("access_token")
    except (ValueError, RecursionError, AttributeError):
        return ""
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""
