"""`Client`: the services of a server as methods, with the names, structures and errors of the services themselves."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Self, TypeVar

from ramet.core.errors import Gone, ProtocolError, RametError
from ramet.core.policy.policy import Policy
from ramet.services.client.errors import error_of
from ramet.services.client.operator import OperatorClient
from ramet.services.client.requests import encode, place_of, request_to
from ramet.services.client.retry import Lost, RetryingReader, follow_events, number_of
from ramet.services.client.transport import Transport
from ramet.services.contract import AgentInfo, Chunk, CreatedTeam, DelegatedKey, Right, SpawnedAgent, TeamInfo
from ramet.services.http import endpoints
from ramet.services.http.schemas import Interrupted
from ramet.services.packaging.contract import BundleInfo, ImageInfo, Job
from ramet.wire.sse import ServerSentEvent

T = TypeVar("T")


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
        self._transport = Transport(place_of(address, key))
        #: The operator's view of the server.
        self.kernel = OperatorClient(self._transport)

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

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
        return await self._transport.call(
            endpoints.CREATE_TEAM,
            idempotency_key=idempotency_key,
            resources=resources,
            name=name,
            config=config,
            labels=labels,
            defaults=defaults,
            key=key,
        )

    async def list_teams(self, *, key: str | None = None) -> Sequence[TeamInfo]:
        """Return the teams that the key opens."""
        return (await self._transport.call(endpoints.LIST_TEAMS, key=key)).teams

    async def get_team(self, team: str, *, key: str | None = None) -> TeamInfo:
        """Return the resources of a team: what it has, holds and has left."""
        return await self._transport.call(endpoints.GET_TEAM, team, key=key)

    async def delete_team(self, team: str, *, key: str | None = None) -> None:
        """Delete a team: end all its agents, and wait until they have ended."""
        await self._transport.call(endpoints.DELETE_TEAM, team, key=key, waits=True)

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
        return await self._transport.call(
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
            key=key,
            waits=True,
        )

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
        agents = self._transport.call(endpoints.LIST_AGENTS, key=key, team=team, state=state, under=under, label=label)
        return (await agents).agents

    async def get_agent(self, agent: str, *, key: str | None = None) -> AgentInfo:
        """Return the definition and the state of an agent."""
        return await self._transport.call(endpoints.GET_AGENT, agent, key=key)

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
        return await self._transport.call(
            endpoints.SUPPLY_VALUES,
            agent,
            idempotency_key=idempotency_key,
            env=env,
            env_vars=env_vars,
            secrets=secrets,
            key=key,
            waits=True,
        )

    async def kill_agent(self, agent: str, *, key: str | None = None) -> None:
        """Delete an agent: end it and all runs below it, and wait until they have ended."""
        await self._transport.call(endpoints.KILL_AGENT, agent, key=key, waits=True)

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
        return await self._transport.call(
            endpoints.DELEGATE,
            agent,
            idempotency_key=idempotency_key,
            rights=rights,
            owner=owner,
            seconds=seconds,
            key=key,
        )

    async def revoke(self, agent: str, key_id: str, *, key: str | None = None) -> None:
        """Revoke a delegated key."""
        await self._transport.call(endpoints.REVOKE, agent, key_id, key=key)

    async def rotate(self, agent: str, *, idempotency_key: str | None = None, key: str | None = None) -> str:
        """Return a new key for the owner; the old key becomes invalid."""
        return (await self._transport.call(endpoints.ROTATE, agent, idempotency_key=idempotency_key, key=key)).nonce

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
                async with aclosing(self._transport.stream(request, key, take_headers)) as events:
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
        async with aclosing(
            self._transport.stream(request_to(endpoints.READ_TURN, agent, turn, after=after), key)
        ) as events:
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
        return await self._transport.call(
            endpoints.INTERRUPT, agent, idempotency_key=idempotency_key, turn=turn, key=key
        )

    async def control(
        self, agent: str, operation: Mapping[str, Any], *, idempotency_key: str | None = None, key: str | None = None
    ) -> Any:
        """Execute `{"@type": name, …}`, an operation of the agent's type."""
        body = encode(operation)
        return await self._transport.call(
            endpoints.CONTROL, agent, idempotency_key=idempotency_key, body=body, key=key, waits=True
        )

    async def history(
        self, agent: str, *, last: int | None = None, key: str | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the conversation so far, or its `last` messages."""
        return (await self._transport.call(endpoints.HISTORY, agent, last=last, key=key)).messages

    async def events(self, agent: str, after: int = 0, *, key: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events of the agent's tree after a cursor, and then the new ones, until the tree has ended.

        A broken stream is resumed where it broke.
        """
        stream = follow_events(
            lambda last: self._transport.stream(request_to(endpoints.EVENTS, agent, after=last), key), after
        )
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
        await self._transport.call(
            endpoints.MAIL, agent, idempotency_key=idempotency_key, text=text, dedupe_s=dedupe_s, key=key
        )

    # ---- packaging

    async def upload_bundle(
        self, data: bytes, *, idempotency_key: str | None = None, key: str | None = None
    ) -> BundleInfo:
        """Store the contents of a tar file, plain or compressed with gzip."""
        return await self._transport.call(endpoints.UPLOAD_BUNDLE, idempotency_key=idempotency_key, body=data, key=key)

    async def list_bundles(self, *, key: str | None = None) -> Sequence[BundleInfo]:
        """Return the bundles of the key's team and of the operator; for the operator, all bundles."""
        return (await self._transport.call(endpoints.LIST_BUNDLES, key=key)).bundles

    async def delete_bundle(self, bundle: str, *, key: str | None = None) -> None:
        """Delete a bundle. Raises InUse if an image contains it or a living agent has loaded it."""
        await self._transport.call(endpoints.DELETE_BUNDLE, bundle, key=key)

    async def delete_image(self, image: str, *, key: str | None = None) -> None:
        """Delete an image. Raises InUse if a living agent was spawned from it."""
        await self._transport.call(endpoints.DELETE_IMAGE, image, key=key)

    async def create_image(
        self, bundles: Sequence[str], *, base: str = "", idempotency_key: str | None = None, key: str | None = None
    ) -> Job:
        """Start a job that builds an image from bundles, on top of another image."""
        return await self._transport.call(
            endpoints.CREATE_IMAGE, idempotency_key=idempotency_key, bundles=bundles, base=base, key=key
        )

    async def list_images(self, *, key: str | None = None) -> Sequence[ImageInfo]:
        """Return the images that agents of the key's team can be spawned from; for the operator, all images."""
        return (await self._transport.call(endpoints.LIST_IMAGES, key=key)).images

    async def get_image(self, image: str, *, key: str | None = None) -> ImageInfo:
        """Return an image by its id."""
        return await self._transport.call(endpoints.GET_IMAGE, image, key=key)

    async def job(self, id: str, *, key: str | None = None) -> Job:
        """Return the progress of building an image."""
        return await self._transport.call(endpoints.GET_JOB, id, key=key)


def _chunk(event: ServerSentEvent) -> Chunk:
    turn, _, number = event.id.rpartition(":")
    if event.event not in ("chunk", "error", "done"):
        raise ProtocolError(f"an event that is not a chunk: {event.event!r}")
    if not number:  # an error of the server itself: the reader was too slow
        raise error_of(event.data, 0)
    return Chunk(turn, number_of(number), event.event, event.data)  # type: ignore[arg-type]  # one of the three
