"""The requests of a client, as data that the async and the synchronous client share."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Raw

from ramet.core.errors import InvalidValue, MissingExtra
from ramet.core.policy.policy import Policy
from ramet.services.contract import (
    AgentInfo,
    CreatedTeam,
    CreateTeam,
    Delegate,
    DelegatedKey,
    Right,
    SpawnAgent,
    SpawnedAgent,
    SupplyValues,
    TeamInfo,
)
from ramet.services.http.schemas import AgentList, BundleList, History, ImageList, Interrupted, Mail, Rotated, TeamList
from ramet.services.idempotency.attempts import HEADER
from ramet.services.idempotency.attempts import checked_key as checked_idempotency_key
from ramet.services.packaging.contract import BundleInfo, CreateImage, ImageInfo, Job

T = TypeVar("T")
TOKEN = "operator-token"  #: the name of the key's file beside a server's socket


@dataclass(frozen=True)
class RequestSpec(Generic[T]):
    """A request. `answers` is the structure of its answer, None for an empty one."""

    method: str
    path: str
    answers: Any
    body: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        """Return the body as it is sent."""
        return self.body if self.body is None or isinstance(self.body, bytes) else msgspec.json.encode(self.body)

    @property
    def is_repeatable(self) -> bool:
        """Return whether the request has an `Idempotency-Key`, so that repeating it has no further effect."""
        return HEADER in self.headers

    def with_idempotency_key(self, idempotency_key: str | None) -> Self:
        """Return the request with an `Idempotency-Key`, if one is given: the server executes it once.

        Raises InvalidValue.
        """
        if idempotency_key is None:
            return self
        return replace(self, headers={**self.headers, HEADER: checked_idempotency_key(idempotency_key)})

    def answer(self, data: bytes) -> T:
        """Decode the body of an answer. Raises msgspec.DecodeError for an invalid body."""
        if self.answers is bytes:
            return data  # type: ignore[return-value]  # T is bytes then
        if self.answers is None:
            return None  # type: ignore[return-value]  # T is None then
        answer: T = msgspec.json.decode(data, type=self.answers)
        return answer


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server: a socket or a URL."""

    url: str
    socket: str | None
    key: str

    def options(self) -> dict[str, Any]:
        """Return the options for a client of httpx2."""
        return {"base_url": self.url, "trust_env": False}


def place_of(address: str | os.PathLike[str], key: str | None) -> ServerAddress:
    """Parse the address of a server. Without a key, use the operator's key from beside a socket, if the file exists."""
    text = os.fspath(address)
    if text.startswith(("http://", "https://")):
        if not _is_address(text):
            raise InvalidValue("address", text, "a URL of http or https with a host, and a port if it has one")
        return ServerAddress(text.rstrip("/"), None, checked_key(key or ""))
    if "://" in text or not text:
        raise InvalidValue("address", text, "the path of a socket, or a URL of http or https")
    path = pathlib.Path(text.removeprefix("unix:")).absolute()
    if key is None:
        key = _operators(path.with_name(TOKEN))
    return ServerAddress("http://ramet", str(path), checked_key(key))


def checked_key(key: str) -> str:
    """Return a key that a header can hold. Raises InvalidValue, which does not show the key."""
    if not key.isascii() or not key.isprintable():
        raise InvalidValue("key", f"{len(key)} characters", "printable ones of ASCII")
    return key


def _operators(token: pathlib.Path) -> str:
    """Return the operator's key from its file; "" if this user cannot read it."""
    try:
        return token.read_text(encoding="ascii").strip() if token.is_file() else ""
    except (OSError, UnicodeError):
        return ""


def _is_address(url: str) -> bool:
    """Return whether a URL names a host, and a valid port if it has one."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and url.isprintable() and " " not in url and parts.port != 0
    except ValueError:
        return False


def http() -> Any:
    """Return the module of the HTTP client. Raises MissingExtra."""
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("a client of a server", "server") from None
    return httpx2


def agent_path(agent: str, *rest: str) -> str:
    """Return the path of an agent, or of a part of it."""
    return "/".join(["/v1/agents", *(quote(each, safe="") for each in (agent, *rest))])


# ---- teams


def create_team(
    resources: Mapping[str, float],
    name: str,
    config: Any,
    labels: Mapping[str, str] | None,
    defaults: Mapping[str, float] | None,
) -> RequestSpec[CreatedTeam]:
    request = CreateTeam(
        resources=dict(resources),
        name=name,
        config=_raw(config),
        labels=dict(labels or {}),
        defaults=dict(defaults or {}),
    )
    return RequestSpec("POST", "/v1/teams", CreatedTeam, request)


def list_teams() -> RequestSpec[TeamList]:
    return RequestSpec("GET", "/v1/teams", TeamList)


def get_team(team: str) -> RequestSpec[TeamInfo]:
    return RequestSpec("GET", f"/v1/teams/{quote(team, safe='')}", TeamInfo)


def delete_team(team: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", f"/v1/teams/{quote(team, safe='')}", None)


# ---- agents


def spawn_agent(
    team: str,
    name: str,
    agent_type: str,
    spawn_info: Any,
    image: str,
    transport_format: str,
    policy: Policy | None,
    limits: Mapping[str, float] | None,
    metadata: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    wait_s: float,
    keep_failed_s: float | None,
) -> RequestSpec[SpawnedAgent]:
    request = SpawnAgent(
        team=team,
        name=name,
        agent_type=agent_type,
        spawn_info=_raw(spawn_info),
        image=image,
        transport_format=transport_format,
        policy=policy,
        limits=dict(limits or {}),
        metadata=dict(metadata or {}),
        labels=dict(labels or {}),
        env=dict(env or {}),
        wait_s=wait_s,
        keep_failed_s=keep_failed_s,
    )
    return RequestSpec("POST", "/v1/agents", SpawnedAgent, request)


def list_agents(team: str, state: str, under: str, labels: Mapping[str, str] | None) -> RequestSpec[AgentList]:
    query = {"team": team, "state": state, "under": under, "label": [f"{k}={v}" for k, v in (labels or {}).items()]}
    return RequestSpec("GET", "/v1/agents", AgentList, params={name: value for name, value in query.items() if value})


def get_agent(agent: str) -> RequestSpec[AgentInfo]:
    return RequestSpec("GET", agent_path(agent), AgentInfo)


def supply_values(
    agent: str, env: Mapping[str, str] | None, env_vars: Mapping[str, str] | None, secrets: Mapping[str, str] | None
) -> RequestSpec[AgentInfo]:
    request = SupplyValues(env=dict(env or {}), env_vars=dict(env_vars or {}), secrets=dict(secrets or {}))
    return RequestSpec("POST", agent_path(agent, "values"), AgentInfo, request)


def kill_agent(agent: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", agent_path(agent), None)


def delegate(agent: str, rights: Sequence[Right], owner: bool, seconds: float | None) -> RequestSpec[DelegatedKey]:
    return RequestSpec(
        "POST", agent_path(agent, "keys"), DelegatedKey, Delegate(rights=list(rights), owner=owner, seconds=seconds)
    )


def revoke(agent: str, key_id: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", agent_path(agent, "keys", key_id), None)


def rotate(agent: str) -> RequestSpec[Rotated]:
    return RequestSpec("POST", agent_path(agent, "rotate"), Rotated)


# ---- turns


def turn(agent: str, body: bytes, format: str, on_leave: str) -> RequestSpec[None]:
    query = {"format": format, "on_leave": on_leave}
    params = {name: value for name, value in query.items() if value}
    return RequestSpec(
        "POST", agent_path(agent, "turns"), None, body, params, {"content-type": "application/octet-stream"}
    )


def read_turn(agent: str, turn: str, after: int) -> RequestSpec[None]:
    return RequestSpec("GET", agent_path(agent, "turns", turn), None, params={"after": after})


def interrupt(agent: str, turn: str) -> RequestSpec[Interrupted]:
    params = {"turn": turn} if turn else {}
    return RequestSpec("POST", agent_path(agent, "interrupt"), Interrupted, params=params)


def control(agent: str, operation: Mapping[str, Any]) -> RequestSpec[Any]:
    return RequestSpec("POST", agent_path(agent, "control"), Any, dict(operation))


def history(agent: str, last: int | None = None) -> RequestSpec[History]:
    params = {"last": last} if last is not None else {}
    return RequestSpec("GET", agent_path(agent, "history"), History, params=params)


def events(agent: str, after: int) -> RequestSpec[None]:
    return RequestSpec("GET", agent_path(agent, "events"), None, params={"after": after})


def mail(agent: str, text: str, dedupe_s: float | None = None) -> RequestSpec[None]:
    return RequestSpec("POST", agent_path(agent, "mail"), None, Mail(text=text, dedupe_s=dedupe_s))


# ---- packaging


def upload_bundle(data: bytes) -> RequestSpec[BundleInfo]:
    return RequestSpec("POST", "/v1/bundles", BundleInfo, data, headers={"content-type": "application/x-tar"})


def list_bundles() -> RequestSpec[BundleList]:
    return RequestSpec("GET", "/v1/bundles", BundleList)


def delete_bundle(bundle: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", f"/v1/bundles/{quote(bundle, safe='')}", None)


def delete_image(image: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", f"/v1/images/{quote(image, safe='')}", None)


def create_image(bundles: Sequence[str], base: str) -> RequestSpec[Job]:
    return RequestSpec("POST", "/v1/images", Job, CreateImage(bundles=list(bundles), base=base))


def list_images() -> RequestSpec[ImageList]:
    return RequestSpec("GET", "/v1/images", ImageList)


def get_image(image: str) -> RequestSpec[ImageInfo]:
    return RequestSpec("GET", f"/v1/images/{quote(image, safe='')}", ImageInfo)


def job(id: str) -> RequestSpec[Job]:
    return RequestSpec("GET", f"/v1/jobs/{quote(id, safe='')}", Job)


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
