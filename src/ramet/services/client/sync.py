"""The client for programs without an event loop: the same methods, which block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ramet.host.portal import OwnLoop, refuse_in_loop
from ramet.services.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(method(self.client, *args, **kwargs))

    return wraps(method)(call)  # type: ignore[return-value]  # the same, but for `self`


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[SyncClient, P], Iterator[T]]:
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self.client, *args, **kwargs)

        async def following() -> tuple[T, ...]:
            async for each in items:
                return (each,)
            return ()

        try:
            while got := self.call(following()):
                yield from got
        finally:
            self.call(items.aclose())

    return wraps(method)(call)  # type: ignore[return-value]  # the same, but for `self`


class SyncClient:
    """A server, from `with` on. Raises RametError inside an event loop."""

    def __init__(self, client: Client) -> None:
        self.client, self._loop = client, OwnLoop()

    def __enter__(self) -> Self:
        refuse_in_loop("connect")
        self._loop.begin(self.client.__aenter__, is_running=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.end(self.client.__aexit__)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the client's own loop, and wait."""
        return self._loop.call(work)

    create_team = _blocking(Client.create_team)
    list_teams = _blocking(Client.list_teams)
    get_team = _blocking(Client.get_team)
    delete_team = _blocking(Client.delete_team)
    spawn_agent = _blocking(Client.spawn_agent)
    list_agents = _blocking(Client.list_agents)
    get_agent = _blocking(Client.get_agent)
    kill_agent = _blocking(Client.kill_agent)
    delegate = _blocking(Client.delegate)
    revoke = _blocking(Client.revoke)
    rotate = _blocking(Client.rotate)
    turn = _iterating(Client.turn)
    read_turn = _iterating(Client.read_turn)
    say = _blocking(Client.say)
    interrupt = _blocking(Client.interrupt)
    control = _blocking(Client.control)
    history = _blocking(Client.history)
    events = _iterating(Client.events)
    mail = _blocking(Client.mail)
    upload_bundle = _blocking(Client.upload_bundle)
    create_image = _blocking(Client.create_image)
    list_images = _blocking(Client.list_images)
    get_image = _blocking(Client.get_image)
    job = _blocking(Client.job)
