"""ramet: a Session with a scripted model; delegation through the Agent tool to a definition of one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import main  # type: ignore[import-not-found]  # the harness beside the peers

if TYPE_CHECKING:
    from ramet import AgentRuntime, Result


class A:
    """The adapter that the harness times."""

    # As with the peers: what one needs to begin. `import ramet` alone loads nothing, and is measured elsewhere.
    IMPORTS = "from ramet import Session, Agent"

    async def setup(self) -> None:
        """Make the parts that every run shares."""
        from fake_lc import FakeModel  # type: ignore[import-not-found]  # the harness
        from langchain_core.tools import tool

        from ramet import Agent

        @tool
        async def add(a: int, b: int) -> int:
            "add"
            return a + b

        targs = {"prompt": "do", "subagent_type": "worker"}
        self.tools = [add]
        self.child = Agent(
            name="worker", description="w", instructions="child", tools=["add"], model=FakeModel(script="final")
        )
        self.models = {
            "turn": FakeModel(script="tool", tname="add", targs={"a": 1, "b": 2}),
            "spawn": FakeModel(script="tool", tname="Agent", targs=targs),
            "fan": FakeModel(script="fan", tname="Agent", targs=targs),
        }
        self.runtime: AgentRuntime | None = None  #: each session's own, in memory

    async def _run(self, kind: str, k: int, lat: float = 0.0) -> Result:
        from fake_lc import LAT, K

        from ramet import Session, SpawnLimits

        K.set(k)
        LAT.set(lat)
        async with Session(
            self.models[kind],
            self.tools,
            system_prompt="p",
            agents=[self.child],
            spawn_limits=SpawnLimits(children=2000, runs=3000, running=None),
            max_turns=10_000,
            runtime=self.runtime,
        ) as session:
            result = await session.ask("go")
            births = session.usage.agents
        assert (result.value, births) == ("done", 0 if kind == "turn" else k), (result, births)
        return result

    async def turns(self, k: int) -> Any:
        """Run k turns with one tool call each, then the answer."""
        return await self._run("turn", k)

    async def spawns(self, k: int) -> Any:
        """Run k turns with one child each, then the answer."""
        return await self._run("spawn", k)

    async def fanout(self, n: int, lat: float) -> Any:
        """Run one turn with n concurrent children, each of which asks a model that takes `lat` seconds."""
        return await self._run("fan", n, lat)


if __name__ == "__main__":
    main(A)
