"""The client and its `kernel` for programs without an event loop: the same methods, but blocking."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from ramet.core.errors import RametError
from ramet.host.loop_thread import RuntimeLoop, refuse_in_loop
from ramet.services.client.blocking import blocking, iterating
from ramet.services.client.client import Client
from ramet.services.client.operator import OperatorClient

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


class SyncKernel:
    """The operator's view of a server, with blocking methods."""

    def __init__(self, client: OperatorClient, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """Wrap an async client. `call` runs a coroutine in the client's own loop, and waits."""
        self.client, self.call = client, call

    runs = blocking(OperatorClient.runs)
    run = blocking(OperatorClient.run)
    tree = blocking(OperatorClient.tree)
    changes = iterating(OperatorClient.changes)
    events = iterating(OperatorClient.events)
    send = blocking(OperatorClient.send)
    fork = blocking(OperatorClient.fork)
    stop = blocking(OperatorClient.stop)
    raise_limits = blocking(OperatorClient.raise_limits)
    pause = blocking(OperatorClient.pause)
    resume = blocking(OperatorClient.resume)
    read_file = blocking(OperatorClient.read_file)
    diff = blocking(OperatorClient.diff)
    read_blob = blocking(OperatorClient.read_blob)
    keep = blocking(OperatorClient.keep)
    sessions = blocking(OperatorClient.sessions)
    session = blocking(OperatorClient.session)
    remove_session = blocking(OperatorClient.remove_session)
    approvals = blocking(OperatorClient.approvals)
    answer = blocking(OperatorClient.answer)
    kernels = blocking(OperatorClient.kernels)
    boards = blocking(OperatorClient.boards)
    board = blocking(OperatorClient.board)
    keys = blocking(OperatorClient.keys)
    schedules = blocking(OperatorClient.schedules)
    schedule = blocking(OperatorClient.schedule)
    add_schedule = blocking(OperatorClient.add_schedule)
    pause_schedule = blocking(OperatorClient.pause_schedule)
    resume_schedule = blocking(OperatorClient.resume_schedule)
    trigger_schedule = blocking(OperatorClient.trigger_schedule)
    remove_schedule = blocking(OperatorClient.remove_schedule)
    schedule_results = blocking(OperatorClient.schedule_results)
    recipes = blocking(OperatorClient.recipes)
    state = blocking(OperatorClient.state)
    state_versions = blocking(OperatorClient.state_versions)
    policies = blocking(OperatorClient.policies)
    policy = blocking(OperatorClient.policy)
    put_policy = blocking(OperatorClient.put_policy)
    passages = blocking(OperatorClient.passages)
    follow_passages = iterating(OperatorClient.follow_passages)


def _refuse_in_loop() -> None:
    refuse_in_loop("a client of `with ramet.connect(…)`", "use `async with ramet.connect(…)` here")
