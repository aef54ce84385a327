"""The client for programs without an event loop: the same methods, but blocking."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from ramet.core.errors import RametError
from ramet.host.loop_thread import RuntimeLoop, refuse_in_loop
from ramet.services.client.blocking import blocking, iterating
from ramet.services.client.client import Client
from ramet.services.client.sync_operator import SyncKernel

T = TypeVar("T")


class SyncClient:
    """A connection to a server, open within `with`. Raises RametError inside an event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._loop = RuntimeLoop("this client is not open: use it inside `with`")
        #: The operator's view of the server.
        self.kernel = SyncKernel(client.kernel, self.call)

    def __enter__(self) -> Self:
        _refuse_in_loop()
        self._loop.start(self.client.__aenter__, is_running=False)
        return self

    def __exit__(self, *_: object) -> None:
        _refuse_in_loop()
        self._loop.stop(self.client.__aexit__)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's own loop, and wait.

        Raises RametError inside an event loop, or if it is not open.
        """
        try:
            _refuse_in_loop()
        except RametError:
            work.close()
            raise
        return self._loop.call(work)

    create_team = blocking(Client.create_team)
    list_teams = blocking(Client.list_teams)
    get_team = blocking(Client.get_team)
    delete_team = blocking(Client.delete_team)
    spawn_agent = blocking(Client.spawn_agent)
    list_agents = blocking(Client.list_agents)
    get_agent = blocking(Client.get_agent)
    supply_values = blocking(Client.supply_values)
    kill_agent = blocking(Client.kill_agent)
    delegate = blocking(Client.delegate)
    revoke = blocking(Client.revoke)
    rotate = blocking(Client.rotate)
    turn = iterating(Client.turn)
    read_turn = iterating(Client.read_turn)
    say = blocking(Client.say)
    interrupt = blocking(Client.interrupt)
    control = blocking(Client.control)
    history = blocking(Client.history)
    events = iterating(Client.events)
    mail = blocking(Client.mail)
    upload_bundle = blocking(Client.upload_bundle)
    list_bundles = blocking(Client.list_bundles)
    delete_bundle = blocking(Client.delete_bundle)
    delete_image = blocking(Client.delete_image)
    create_image = blocking(Client.create_image)
    list_images = blocking(Client.list_images)
    get_image = blocking(Client.get_image)
    job = blocking(Client.job)


def _refuse_in_loop() -> None:
    refuse_in_loop("a client of `with ramet.connect(…)`", "use `async with ramet.connect(…)` here")
