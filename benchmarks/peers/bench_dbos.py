"""DBOS: workflows whose steps are recorded in SQLite; a model request and a tool's call are a step each.

There is no agent and no model loop in DBOS: the loop is the workflow, and a child is a workflow that the first one
starts. Nothing is sent anywhere: neither Conductor nor OpenTelemetry is configured.
"""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from typing import Any

from adapter import main
from common import alat


class A:
    """The adapter that the harness times."""

    IMPORTS = "from dbos import DBOS"

    async def setup(self) -> None:
        """Define the workflows, and open their database; the sitting removes its folder."""
        from dbos import DBOS

        folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-bench-"))
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{folder / 'system.sqlite'}",
                "log_level": "ERROR",
                "enable_otlp": False,
            }
        )

        @DBOS.step()
        async def ask_model(is_over: bool) -> str:
            await asyncio.sleep(0)
            return "done" if is_over else "call"

        @DBOS.step()
        async def ask_model_of_child(latency_s: float) -> str:
            await alat(latency_s)
            return "done"

        @DBOS.step()
        async def add(a: int, b: int) -> int:
            return a + b

        @DBOS.workflow()
        async def turns(k: int) -> str:
            for _ in range(k):
                assert await ask_model(False) == "call"
                assert await add(1, 2) == 3
            return await ask_model(True)

        @DBOS.workflow()
        async def child(latency_s: float) -> str:
            return await ask_model_of_child(latency_s)

        @DBOS.workflow()
        async def spawns(k: int) -> str:
            for _ in range(k):
                assert await ask_model(False) == "call"
                handle = await DBOS.start_workflow_async(child, 0.0)
                assert await handle.get_result() == "done"
            return await ask_model(True)

        @DBOS.workflow()
        async def fan(n: int, latency_s: float) -> str:
            assert await ask_model(False) == "call"
            handles = [await DBOS.start_workflow_async(child, latency_s) for _ in range(n)]
            assert [await each.get_result() for each in handles] == ["done"] * n
            return await ask_model(True)

        self._turns, self._spawns, self._fan = turns, spawns, fan
        DBOS.launch()

    async def turns(self, k: int) -> Any:
        """Run a workflow of k turns with two steps each, then the step of the answer."""
        return await self._turns(k)

    async def spawns(self, k: int) -> Any:
        """Run a workflow that k times asks its model and starts a workflow of one step, then the answer."""
        return await self._spawns(k)

    async def fanout(self, n: int, latency_s: float) -> Any:
        """Run a workflow that starts n workflows, one after the other, and then waits for all of them."""
        return await self._fan(n, latency_s)


if __name__ == "__main__":
    main(A)
