"""The spawner of a server for tests, with echo agents, and access to its records."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Unknown
from ramet.host.runtime import AgentRuntime
from ramet.isolation.contract import Backend
from ramet.services.contract import (
    PLAIN,
    AgentSpec,
    CreatedTeam,
    CreateTeam,
    Image,
    ImageStore,
    LoadableBundle,
    RunningAgent,
    SpawnAgent,
    SpawnedAgent,
)
from ramet.services.rules import Rules
from ramet.services.teams.service import AgentSpawnerService
from ramet.store.contract import Document, Store
from ramet.store.memory import MemoryStore
from tests.support.echo_agents import Echo, EchoType

OPERATOR = "op_of-this-test"


class Images:
    """An image store with one image in addition to the plain one."""

    async def image(self, id: str, team: str) -> Image:
        if id not in ("", "sha256:1"):
            raise Unknown("image", id, ("sha256:1",))
        return PLAIN._replace(id=id)

    async def bundle(self, id: str, team: str) -> object:
        raise Unknown("bundle", id)

    async def loadable(self, id: str, beside: Sequence[str], team: str) -> LoadableBundle:
        raise Unknown("bundle", id)


class SlowType(EchoType):
    """An agent type that waits in `open` until `go_on` is set; `at_it` counts the calls so far."""

    name = "slow"

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.at_it = self.left = 0

    async def open(self, spec: AgentSpec) -> RunningAgent:
        self.at_it += 1
        try:
            await self.go_on.wait()
            return await super().open(spec)
        finally:
            self.left += 1


class Site:
    """The spawner of a server, with the requests that tests make."""

    def __init__(
        self,
        folder: pathlib.Path,
        store: Store | None = None,
        *,
        rules: Rules | None = None,
        secrets: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        backend: Backend | None = None,
        images: ImageStore | None = None,
    ) -> None:
        self.folder, self.agents = folder, folder / "agents"
        self.clock, self.echo, self.slow = FakeClock(), EchoType(), SlowType()
        self.runtime = AgentRuntime(store=store or MemoryStore(), clock=self.clock, backend=backend)
        types: dict[str, Any] = {"echo": self.echo, "slow": self.slow}
        self.spawner = AgentSpawnerService(
            self.runtime,
            types,
            images or Images(),
            self.agents,
            OPERATOR,
            rules=rules,
            secrets=secrets,
            env_vars=env_vars,
        )

    async def __aenter__(self) -> Site:
        await self.runtime.start()
        await self.spawner.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.spawner.close()
        await self.runtime.stop()

    async def team(self, name: str = "", **resources: float) -> CreatedTeam:
        """Make a team of three agents, unless `resources` say otherwise."""
        return await self.spawner.create_team(CreateTeam(name=name, resources={"agents": 3, **resources}), OPERATOR)

    async def agent(self, team: CreatedTeam, name: str = "a", type: str = "echo", **fields: Any) -> SpawnedAgent:
        """Spawn an agent with that name."""
        asked = SpawnAgent(team=team.team.id, name=name, agent_type=type, **fields)
        return await self.spawner.spawn_agent(asked, team.key)

    async def free(self, team: CreatedTeam, resource: str = "agents") -> float:
        """Return what the team has left of a resource."""
        return (await self.spawner.get_team(team.team.id, team.key)).free[resource]

    def opened(self, agent: SpawnedAgent) -> Echo:
        """Return the agent object itself."""
        return next(each for each in (*self.echo.opened, *self.slow.opened) if each.opening.id == agent.agent.id)

    async def store(self) -> Store:
        """Return the store of the records."""
        return await self.runtime.open_store()

    async def left(self) -> tuple[list[str], list[str]]:
        """Return the ids of agents with a record, and the ids of agents with a folder."""
        records = [each.key for each in await (await self.store()).list("served")]
        return sorted(records), sorted(each.name for each in self.agents.glob("*"))

    async def as_killed(self, folder: pathlib.Path, **asked: Any) -> Site:
        """Return a site that is not started, with the records and folders of this one, as a kill leaves them now."""
        store = await self.store()
        return self.begun_anew(folder, [*await store.list("team"), *await store.list("served")], **asked)

    def begun_anew(
        self, folder: pathlib.Path, records: Sequence[Document], *, store: MemoryStore | None = None, **asked: Any
    ) -> Site:
        """Return a site that is not started, with these records and the folders of this one."""
        store = store or MemoryStore()
        store._tables.all_documents = {(each.kind, each.key): each for each in records}
        if self.agents.exists():
            shutil.copytree(self.agents, folder / "agents")
        return Site(folder, store, **asked)
