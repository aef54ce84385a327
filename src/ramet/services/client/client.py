"""`Client`: the services of a server as methods, with the names, structures and errors of the services themselves."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from ramet.core.errors import Gone, ProtocolError, RametError
from ramet.core.policy.policy import Policy
from ramet.services.client import requests
from ramet.services.client.errors import error_of
from ramet.services.client.operator import OperatorClient
from ramet.services.client.peer_credentials import verify_peer
from ramet.services.client.requests import RequestSpec, request_to
from ramet.services.client.retry import Lost, RetryingReader, follow_events, number_of
from ramet.services.contract import AgentInfo, Chunk, CreatedTeam, DelegatedKey, Right, SpawnedAgent, TeamInfo
from ramet.services.http import endpoints
from ramet.services.http.schemas import Interrupted
from ramet.services.packaging.contract import BundleInfo, ImageInfo, Job
from ramet.wire.sse import Parser, ServerSentEvent

T = TypeVar("T")
TIMEOUT_S = 60.0
#: The read timeout of a stream: more than twice a server's interval of keep-alive messages.
SILENCE_S = 40.0
_WATCHED = {"trace": verify_peer}


class AgentEvent(NamedTuple):
    """An event of an agent's tree, as JSON. A reader resumes after the `cursor`."""

    cursor: int
    data: bytes


class Client:
    """A connection to a server, open within `async with`.

    Every method takes a `key`, which replaces the client's own key. Methods that create or send something take an
    `idempotency_key`. The server executes such a request once, and the client repeats it after a lost answer.

    Methods raise the errors of the services, by the same types, as far as the server reports them. In addition, they
    raise Gone if no server answers, and ProtocolError for an invalid answer. They raise Denied if a process of another
    user listens at the socket; no key is sent to it.
    """

    def __init__(self, address: str | os.PathLike[str], key: str | None = None) -> None:
        """Prepare a connection; see `ramet.connect`."""
        self._place = requests.place_of(address, key)
        self._http: Any = None
        #: The operator's view of the server.
        self.kernel = OperatorClient(self)

    async def __aenter__(self) -> Self:
        http = requests.http()
        # Reading the certificates of this machine takes longer than a request, and only https needs them.
        verify = self._place.url.startswith("https://")
        transport = http.AsyncHTTPTransport(uds=self._place.socket, trust_env=False, verify=verify)
        timeout = http.Timeout(TIMEOUT_S, pool=None)
        self._http = http.AsyncClient(transport=transport, timeout=timeout, **self._place.options())
        self._transport_error = http.TransportError
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    # ---- teams

    async def create_team(
        self,
        resources: Mapping[str, float],
        *,
        name: str = "",
        config: Any = None,
        labels: Mapping[str, str] | None = None,
        defaults: Mapping[str, float] | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> CreatedTeam:
        """Reserve a team, with the operator's key. `defaults` are limits for its agents that do not state them."""
        request = request_to(
            endpoints.CREATE_TEAM,
            idempotency_key=idempotency_key,
            resources=resources,
            name=name,
            config=config,
            labels=labels,
            defaults=defaults,
        )
        return await self.send(request, key)

    async def list_teams(self, *, key: str | None = None) -> Sequence[TeamInfo]:
        """Return the teams that the key opens."""
        return (await self.send(request_to(endpoints.LIST_TEAMS), key)).teams

    async def get_team(self, team: str, *, key: str | None = None) -> TeamInfo:
        """Return the resources of a team: what it has, holds and has left."""
        return await self.send(request_to(endpoints.GET_TEAM, team), key)

    async def delete_team(self, team: str, *, key: str | None = None) -> None:
        """Delete a team: end all its agents, and wait until they have ended."""
        await self.send(request_to(endpoints.DELETE_TEAM, team), key, waits=True)

    # ---- agents

    async def spawn_agent(
        self,
        team: str,
        name: str,
        agent_type: str,
        spawn_info: Any = None,
        *,
        image: str = "",
        transport_format: str = "",
        policy: Policy | None = None,
        limits: Mapping[str, float] | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        keep_failed_s: float | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> SpawnedAgent:
        """Start an agent in a team, with the team's key. `spawn_info` is plain data or a structure."""
        request = request_to(
            endpoints.SPAWN_AGENT,
            idempotency_key=idempotency_key,
            team=team,
            name=name,
            agent_type=agent_type,
            spawn_info=spawn_info,
            image=image,
            transport_format=transport_format,
            policy=policy,
            limits=limits,
            metadata=metadata,
            labels=labels,
            env=env,
            wait_s=wait_s,
            keep_failed_s=keep_failed_s,
        )
        return await self.send(request, key, waits=True)

    async def list_agents(
        self,
        team: str = "",
        *,
        state: str = "",
        under: str = "",
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Sequence[AgentInfo]:
        """Return the agents of a team, or all agents that the key opens."""
        label = [f"{name}={value}" for name, value in (labels or {}).items()]
        request = request_to(endpoints.LIST_AGENTS, team=team, state=state, under=under, label=label)
        return (await self.send(request, key)).agents

    async def get_agent(self, agent: str, *, key: str | None = None) -> AgentInfo:
        """Return the definition and the state of an agent."""
        return await self.send(request_to(endpoints.GET_AGENT, agent), key)

    async def supply_values(
        self,
        agent: str,
        *,
        env: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> AgentInfo:
        """Supply all values that an agent waits for; the agent then continues.

        Needs its owner's key or the operator's key.
        """
        return await self.send(
            request_to(
                endpoints.SUPPLY_VALUES,
                agent,
                idempotency_key=idempotency_key,
                env=env,
                env_vars=env_vars,
                secrets=secrets,
            ),
            key,
            waits=True,
        )

    async def kill_agent(self, agent: str, *, key: str | None = None) -> None:
        """Delete an agent: end it and all runs below it, and wait until they have ended."""
        await self.send(request_to(endpoints.KILL_AGENT, agent), key, waits=True)

    async def delegate(
        self,
        agent: str,
        rights: Sequence[Right] = (),
        *,
        owner: bool = False,
        seconds: float | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> DelegatedKey:
        """Create a key with fewer rights, or transfer the ownership."""
        return await self.send(
            request_to(
                endpoints.DELEGATE, agent, idempotency_key=idempotency_key, rights=rights, owner=owner, seconds=seconds
            ),
            key,
        )

    async def revoke(self, agent: str, key_id: str, *, key: str | None = None) -> None:
        """Revoke a delegated key."""
        await self.send(request_to(endpoints.REVOKE, agent, key_id), key)

    async def rotate(self, agent: str, *, idempotency_key: str | None = None, key: str | None = None) -> str:
        """Return a new key for the owner; the old key becomes invalid."""
        return (await self.send(request_to(endpoints.ROTATE, agent, idempotency_key=idempotency_key), key)).nonce

    # ---- turns

    async def turn(
        self,
        agent: str,
        body: bytes,
        *,
        format: str = "",
        on_leave: str = "",
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Send a message, and yield its answer as it arrives. The last chunk is of the kind `done` or `error`.

        The client resumes the answer after a lost connection, and while no server can answer. Closing the iteration
        does not affect the turn, unless `on_leave` is "interrupt".
        """
        request = request_to(
            endpoints.TURN, agent, idempotency_key=idempotency_key, body=body, format=format, on_leave=on_leave
        )
        turn, number, kind, reader = "", 0, "chunk", RetryingReader()
        error: RametError

        def take_headers(headers: Mapping[str, str]) -> None:
            nonlocal turn  # The turn may wait in line, and the connection may be lost before its first chunk.
            turn = headers.get("ramet-turn", turn)

        while True:
            try:
                async with aclosing(self.stream(request, key, take_headers)) as events:
                    async for event in events:
                        if kind != "chunk":
                            continue  # Read to the end of the stream, so that the connection can be reused.
                        chunk = _chunk(event)
                        turn, number, kind = chunk.turn, chunk.number, chunk.kind
                        reader.reset()
                        yield chunk
                error = Lost(f"the answer broke off after chunk {number} of turn {turn!r}")
            except RametError as problem:
                error = problem
            if kind != "chunk" and isinstance(error, Gone):
                return
            if not turn and not request.is_repeatable:
                raise error
            await reader.wait_to_retry(error)
            if turn:
                request = request_to(endpoints.READ_TURN, agent, turn, after=number)

    async def read_turn(
        self, agent: str, turn: str, after: int = 0, *, key: str | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a turn after a number, and then the new ones."""
        async with aclosing(self.stream(request_to(endpoints.READ_TURN, agent, turn, after=after), key)) as events:
            async for event in events:
                yield _chunk(event)

    async def say(
        self, agent: str, body: bytes, *, format: str = "", idempotency_key: str | None = None, key: str | None = None
    ) -> bytes:
        """Send a message, and return the whole answer. Raises the error that the turn failed with."""
        pieces = []
        async with aclosing(self.turn(agent, body, format=format, idempotency_key=idempotency_key, key=key)) as chunks:
            async for chunk in chunks:
                if chunk.kind == "error":
                    raise error_of(chunk.body, 0)
                pieces.append(chunk.body)
        return b"".join(pieces)

    async def interrupt(
        self, agent: str, turn: str = "", *, idempotency_key: str | None = None, key: str | None = None
    ) -> Interrupted:
        """Interrupt the active turn, or the turn of that id. The agent and its history remain."""
        return await self.send(request_to(endpoints.INTERRUPT, agent, idempotency_key=idempotency_key, turn=turn), key)

    async def control(
        self, agent: str, operation: Mapping[str, Any], *, idempotency_key: str | None = None, key: str | None = None
    ) -> Any:
        """Execute `{"@type": name, …}`, an operation of the agent's type."""
        return await self.send(
            request_to(endpoints.CONTROL, agent, idempotency_key=idempotency_key, **operation), key, waits=True
        )

    async def history(
        self, agent: str, *, last: int | None = None, key: str | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the conversation so far, or its `last` messages."""
        return (await self.send(request_to(endpoints.HISTORY, agent, last=last), key)).messages

    async def events(self, agent: str, after: int = 0, *, key: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events of the agent's tree after a cursor, and then the new ones, until the tree has ended.

        A broken stream is resumed where it broke.
        """
        stream = follow_events(lambda last: self.stream(request_to(endpoints.EVENTS, agent, after=last), key), after)
        async with aclosing(stream):
            async for each in stream:
                yield AgentEvent(*each)

    async def mail(
        self,
        agent: str,
        text: str,
        *,
        dedupe_s: float | None = None,
        idempotency_key: str | None = None,
        key: str | None = None,
    ) -> None:
        """Send a message, which the agent reads at its next step.

        With `dedupe_s`, the server drops a message that equals one of the last `dedupe_s` seconds. Raises InvalidValue
        if the agent cannot do that.
        """
        await self.send(
            request_to(endpoints.MAIL, agent, idempotency_key=idempotency_key, text=text, dedupe_s=dedupe_s), key
        )

    # ---- packaging

    async def upload_bundle(
        self, data: bytes, *, idempotency_key: str | None = None, key: str | None = None
    ) -> BundleInfo:
        """Store the contents of a tar file, plain or compressed with gzip."""
        return await self.send(request_to(endpoints.UPLOAD_BUNDLE, idempotency_key=idempotency_key, body=data), key)

    async def list_bundles(self, *, key: str | None = None) -> Sequence[BundleInfo]:
        """Return the bundles of the key's team and of the operator; for the operator, all bundles."""
        return (await self.send(request_to(endpoints.LIST_BUNDLES), key)).bundles

    async def delete_bundle(self, bundle: str, *, key: str | None = None) -> None:
        """Delete a bundle. Raises InUse if an image contains it or a living agent has loaded it."""
        await self.send(request_to(endpoints.DELETE_BUNDLE, bundle), key)

    async def delete_image(self, image: str, *, key: str | None = None) -> None:
        """Delete an image. Raises InUse if a living agent was spawned from it."""
        await self.send(request_to(endpoints.DELETE_IMAGE, image), key)

    async def create_image(
        self, bundles: Sequence[str], *, base: str = "", idempotency_key: str | None = None, key: str | None = None
    ) -> Job:
        """Start a job that builds an image from bundles, on top of another image."""
        return await self.send(
            request_to(endpoints.CREATE_IMAGE, idempotency_key=idempotency_key, bundles=bundles, base=base), key
        )

    async def list_images(self, *, key: str | None = None) -> Sequence[ImageInfo]:
        """Return the images that agents of the key's team can be spawned from; for the operator, all images."""
        return (await self.send(request_to(endpoints.LIST_IMAGES), key)).images

    async def get_image(self, image: str, *, key: str | None = None) -> ImageInfo:
        """Return an image by its id."""
        return await self.send(request_to(endpoints.GET_IMAGE, image), key)

    async def job(self, id: str, *, key: str | None = None) -> Job:
        """Return the progress of building an image."""
        return await self.send(request_to(endpoints.GET_JOB, id), key)

    # ---- any request

    async def send(self, ask: RequestSpec[T], key: str | None = None, *, waits: bool = False) -> T:
        """Send any request. Set `waits` for a request without a time limit.

        A request with an `Idempotency-Key` is repeated after a lost answer, or while no server can answer.
        """
        reader = RetryingReader()
        while True:
            try:
                return await self._send_once(ask, key, waits)
            except RametError as problem:
                if not ask.is_repeatable:
                    raise
                await reader.wait_to_retry(problem)

    async def _send_once(self, ask: RequestSpec[T], key: str | None, waits: bool) -> T:
        options, http = {"timeout": None} if waits else {}, self._require_http()
        try:
            response = await http.request(
                ask.endpoint.method,
                ask.path,
                content=ask.body,
                params=ask.params,
                headers=self._headers(ask, key),
                extensions=_WATCHED,
                **options,
            )
        except self._transport_error as problem:
            raise self._unreachable(problem) from None
        if response.status_code >= 400:
            raise error_of(response.content, response.status_code)
        return _answer(ask, response.content)

    async def stream(
        self,
        ask: RequestSpec[None],
        key: str | None = None,
        on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield the events of any answer that is a stream. `on_headers` is called with the answer's headers."""
        http = self._require_http()
        try:
            async with http.stream(
                ask.endpoint.method,
                ask.path,
                content=ask.body,
                params=ask.params,
                headers=self._headers(ask, key),
                extensions=_WATCHED,
                timeout=requests.http().Timeout(TIMEOUT_S, read=SILENCE_S, pool=None),
            ) as response:
                if response.status_code >= 400:
                    raise error_of(await response.aread(), response.status_code)
                on_headers(response.headers)
                parser = Parser()
                async for piece in response.aiter_raw():
                    for event in parser.feed(piece):
                        yield event
        except self._transport_error as problem:
            raise self._unreachable(problem) from None

    def _headers(self, ask: RequestSpec[Any], key: str | None) -> dict[str, str]:
        key_text = self._place.key if key is None else requests.checked_key(key)
        return {**ask.headers, **({"authorization": f"Bearer {key_text}"} if key_text else {})}

    def _require_http(self) -> Any:
        if self._http is None:
            raise RametError("this client is not open: use `async with`")
        return self._http

    def _unreachable(self, problem: Exception) -> Gone:
        address = self._place.socket or self._place.url
        reason = re.sub(r"^\[Errno \d+\] ", "", str(problem)) or type(problem).__name__
        hint = "; is `ramet serve` running there?" if self._place.socket else ""
        return Lost(f"no server answers at {address}: {reason}{hint}")


def _answer(ask: RequestSpec[T], data: bytes) -> T:
    try:
        return ask.answer(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise ProtocolError(f"the answer to {ask.endpoint.method} {ask.path} is not valid: {problem}") from None


def _chunk(event: ServerSentEvent) -> Chunk:
    turn, _, number = event.id.rpartition(":")
    if event.event not in ("chunk", "error", "done"):
        raise ProtocolError(f"an event that is not a chunk: {event.event!r}")
    if not number:  # an error of the server itself: the reader was too slow
        raise error_of(event.data, 0)
    return Chunk(turn, number_of(number), event.event, event.data)  # type: ignore[arg-type]  # one of the three
