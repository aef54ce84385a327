"""pydantic-ai: Agent with a FunctionModel; delegation by a tool that awaits a run of the child with the same usage."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any

from adapter import LATENCY_S, main
from common import alat

K = contextvars.ContextVar("K", default=1)
LATENCY = contextvars.ContextVar("LATENCY", default=0.0)


class A:
    """The adapter that the harness times."""

    IMPORTS = "from pydantic_ai import Agent"

    def __init__(self) -> None:
        self.requests = 0  #: of the model, by every agent

    async def setup(self) -> None:
        """Make the agents that every run shares. The default limit of 50 requests would end the runs too soon."""
        from pydantic_ai import Agent, RunContext
        from pydantic_ai.usage import UsageLimits

        self.limits = UsageLimits(request_limit=None)

        async def add(a: int, b: int) -> int:
            "add"
            return a + b

        child = Agent(self._model("final"), name="child", instructions="c", tools=[add], description="w")

        async def task(context: RunContext[None], description: str) -> str:
            "delegate"
            return (await child.run(description, usage=context.usage, usage_limits=self.limits)).output

        call = {"description": "do"}
        # `RunContext` is known here only, and annotations are texts in this file.
        task.__annotations__["context"] = RunContext[None]
        self.agent = Agent(self._model("tool", "add", {"a": 1, "b": 2}), instructions="p", tools=[add])
        self.parent = Agent(self._model("tool", "task", call), instructions="p", tools=[task])
        self.fan = Agent(self._model("fan", "task", call), instructions="p", tools=[task])

    def _model(self, script: str, tool: str = "", arguments: dict[str, Any] | None = None) -> Any:
        from pydantic_ai.models.function import FunctionModel

        return FunctionModel(self._answer(script, tool, arguments or {}))

    def _answer(self, script: str, tool: str, arguments: dict[str, Any]) -> Callable[..., Any]:
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart

        async def answer(messages: list[Any], _: Any) -> ModelResponse:
            self.requests += 1
            if script == "final":
                await alat(LATENCY.get())
                return ModelResponse(parts=[TextPart("done")])
            done = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
            if done >= K.get():
                return ModelResponse(parts=[TextPart("done")])
            calls = K.get() if script == "fan" else 1
            return ModelResponse(parts=[ToolCallPart(tool, dict(arguments)) for _ in range(calls)])

        return answer

    async def _run(self, agent: Any, k: int, latency_s: float = 0.0) -> Any:
        K.set(k)
        LATENCY.set(latency_s)
        result = await agent.run("go", usage_limits=self.limits)
        assert result.output == "done", result
        return result

    async def turns(self, k: int) -> Any:
        """Run k turns with one tool call each, then the answer."""
        return await self._run(self.agent, k)

    async def spawns(self, k: int) -> Any:
        """Run k turns with one child each, then the answer."""
        return await self._run(self.parent, k)

    async def fanout(self, n: int, latency_s: float) -> Any:
        """Run one turn with n parallel children, each of which asks a model that takes `latency_s`."""
        return await self._run(self.fan, n, latency_s)

    async def limited(self, n: int, limit: int) -> int:
        """Delegate to n children at once under `UsageLimits`; parent and children share usage, as documented."""
        from pydantic_ai.exceptions import UsageLimitExceeded
        from pydantic_ai.usage import UsageLimits

        self.limits = UsageLimits(request_limit=limit)
        with contextlib.suppress(UsageLimitExceeded):
            await self.fanout(n, LATENCY_S)
        return self.requests


if __name__ == "__main__":
    main(A)
