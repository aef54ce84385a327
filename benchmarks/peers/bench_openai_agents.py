"""openai-agents: Agent and Runner with a scripted Model; delegation by `Agent.as_tool`. Tracing is off."""

from __future__ import annotations

import contextlib
import contextvars
import json
import uuid
from typing import Any

from adapter import LATENCY_S, main
from common import alat

K = contextvars.ContextVar("K", default=1)
LATENCY = contextvars.ContextVar("LATENCY", default=0.0)


class A:
    """The adapter that the harness times."""

    IMPORTS = "from agents import Agent, Runner"

    def __init__(self) -> None:
        self.requests = 0  #: of the model, by every agent
        self.most_turns = 10_000

    async def setup(self) -> None:
        """Make the agents that every run shares."""
        from agents import Agent, Runner, function_tool, set_tracing_disabled

        set_tracing_disabled(True)
        self.runner = Runner

        @function_tool
        async def add(a: int, b: int) -> int:
            "add"
            return a + b

        child = Agent(name="child", instructions="c", model=self._model("final"), tools=[add])
        task = child.as_tool(tool_name="task", tool_description="delegate")
        call = {"input": "do"}
        models = {
            "agent": self._model("tool", "add", {"a": 1, "b": 2}),
            "parent": self._model("tool", "task", call),
            "fan": self._model("fan", "task", call),
        }
        self.agent = Agent(name="p", instructions="p", model=models["agent"], tools=[add])
        self.parent = Agent(name="p", instructions="p", model=models["parent"], tools=[task])
        self.fan = Agent(name="p", instructions="p", model=models["fan"], tools=[task])

    def _model(self, script: str, tool: str = "", arguments: dict[str, Any] | None = None) -> Any:
        from agents.items import ModelResponse
        from agents.models.interface import Model
        from agents.usage import Usage
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        adapter = self
        text = json.dumps(arguments or {})

        def done() -> Any:
            part = ResponseOutputText(text="done", type="output_text", annotations=[])
            return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])

        def call() -> Any:
            return ResponseFunctionToolCall(
                id=uuid.uuid4().hex, call_id=uuid.uuid4().hex, type="function_call", name=tool, arguments=text
            )

        class Scripted(Model):
            async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
                adapter.requests += 1
                answered = 0
                if script == "final":
                    await alat(LATENCY.get())
                elif not isinstance(input, str):
                    answered = sum(
                        1 for each in input if isinstance(each, dict) and each.get("type") == "function_call_output"
                    )
                is_over = script == "final" or answered >= K.get()
                calls = K.get() if script == "fan" else 1
                output = [done()] if is_over else [call() for _ in range(calls)]
                usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
                return ModelResponse(output=output, usage=usage, response_id=None)

            def stream_response(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        return Scripted()

    async def _run(self, agent: Any, k: int, latency_s: float = 0.0) -> Any:
        K.set(k)
        LATENCY.set(latency_s)
        result = await self.runner.run(agent, "go", max_turns=self.most_turns)
        assert result.final_output == "done", result
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
        """Delegate to n children at once with `max_turns`, the only limit of model requests that a run takes."""
        from agents import MaxTurnsExceeded

        self.most_turns = limit
        with contextlib.suppress(MaxTurnsExceeded):
            await self.fanout(n, LATENCY_S)
        return self.requests


if __name__ == "__main__":
    main(A)
