"""deepagents: create_deep_agent with its default middleware; delegation by its `task` tool to a declared sub-agent."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import bench_langchain
from adapter import main


class A(bench_langchain.A):
    """The adapter of LangChain's create_agent, with deep agents instead."""

    IMPORTS = "from deepagents import create_deep_agent"

    async def setup(self) -> None:
        """Make the agents that every run shares."""
        warnings.filterwarnings("ignore")
        from langchain_core.tools import tool

        @tool
        async def add(a: int, b: int) -> int:
            "add"
            return a + b

        self.add = add
        call = {"description": "do", "subagent_type": "worker"}
        self.agent = self._make("tool", "add", {"a": 1, "b": 2})
        self.parent = self._make("tool", "task", call)
        self.fan = self._make("fan", "task", call)

    def _make(self, script: str, tool_name: str, arguments: dict[str, Any], middleware: Sequence[Any] = ()) -> Any:
        from deepagents import create_deep_agent
        from fake_lc import FakeModel

        child = {
            "name": "worker",
            "description": "w",
            "system_prompt": "child",
            "tools": [self.add],
            "model": FakeModel(script="final"),
            "middleware": list(middleware),
        }
        model = FakeModel(script=script, tname=tool_name, targs=arguments)
        return create_deep_agent(
            model=model, tools=[self.add], subagents=[child], system_prompt="p", middleware=list(middleware)
        )

    async def limited(self, n: int, limit: int) -> int:
        """Delegate to n children at once, with LangChain's limit of model calls on parent and child."""
        from langchain_limit import count_requests, limit_of

        call = {"description": "do", "subagent_type": "worker"}
        return await count_requests(self._make("fan", "task", call, [limit_of(limit)]), n)


if __name__ == "__main__":
    main(A)
