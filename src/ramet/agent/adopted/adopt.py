"""`adopt`: turn a chain, a LangGraph graph, a deep agent, or any other Runnable into an agent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ramet.agent.adopted.ledger import Ledger, meter_calls
from ramet.agent.adopted.mark import AdoptedFunction
from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, NeedsInput, RametError
from ramet.core.ids import safe_name
from ramet.tools.context import ToolUseContext, current

#: The key with which LangGraph reports the questions of an interrupted graph.
_INTERRUPTS = "__interrupt__"


def adopt(runnable: Runnable[Any, Any], *, name: str | None = None, description: str = "") -> Agent:
    """Make an agent of a Runnable of any framework: `adopt(create_deep_agent(…))`, a compiled graph, `prompt | model`.

    The agent runs in the host. Its model requests and tool calls are reserved from the run's budget, pass the tree's
    gates and are recorded; the run is cancelled like any other. A prompt becomes the first message of a graph that has
    messages, and the input of any other Runnable. The default `name` is the Runnable's own.

    Raises InvalidValue if the value is no Runnable.
    """
    if not isinstance(runnable, Runnable):
        raise InvalidValue("runnable", runnable, "a Runnable of LangChain: a chain, a compiled graph, an agent")
    default_name = getattr(runnable, "name", None) or type(runnable).__name__
    function = AdoptedRunnable(runnable, safe_name(name or default_name, "adopted"))
    return Agent(name=name if name is not None else function.__name__, description=description, function=function)


class AdoptedRunnable(AdoptedFunction):
    """The function of an adopted agent: it invokes its Runnable, with a ledger of the usage."""

    def __init__(self, runnable: Runnable[Any, Any], name: str) -> None:
        self.runnable = runnable
        self.__name__ = self.__qualname__ = name

    async def __call__(self, argument: Any) -> Any:
        """Invoke the Runnable; return its result.

        Raises BudgetExceeded, Denied or Aborted for a refusal that ended it, NeedsInput for an interrupted graph, and
        every error of the Runnable.
        """
        context = _context()
        ledger = Ledger(context)
        config = RunnableConfig(run_name=self.__name__, configurable={"thread_id": context.run.id})
        with meter_calls(ledger):
            try:
                result = await self.runnable.ainvoke(await self._input(argument, config), config)
            except Exception as error:
                if ledger.refusal is not None and not isinstance(error, RametError):
                    raise ledger.refusal from error
                raise
        return _value(result)

    async def _input(self, argument: Any, config: RunnableConfig) -> Any:
        """Return the Runnable's input; None for a graph that continues in the middle of this run."""
        if not isinstance(argument, str):
            return argument
        if getattr(self.runnable, "checkpointer", None) and hasattr(self.runnable, "aget_state"):
            state = await self.runnable.aget_state(config)
            if state.next:
                return None
        return {"messages": [HumanMessage(argument)]} if self._has_messages() else argument

    def _has_messages(self) -> bool:
        """Return whether the input is a dict with messages, by the channels of a graph or the schema of a chain."""
        channels = getattr(self.runnable, "channels", None)
        if isinstance(channels, Mapping):
            return "messages" in channels
        with suppress(Exception):  # Schemas are created from arbitrary annotations.
            return "messages" in self.runnable.get_input_jsonschema().get("properties", {})
        return False


def _context() -> ToolUseContext:
    try:
        return current()
    except LookupError:
        raise RametError(
            "an adopted agent can only be called in a run: pass it to a runtime, a session or a schedule"
        ) from None


def _value(result: Any) -> Any:
    """Return the value of a Runnable's result: of messages, the text of the last."""
    if isinstance(result, BaseMessage):
        return str.__str__(result.text)
    if not isinstance(result, Mapping):
        return result
    if interrupts := result.get(_INTERRUPTS):
        raise NeedsInput("\n".join(str(getattr(each, "value", each)) for each in interrupts))
    if result.get("structured_response") is not None:
        return result["structured_response"]
    messages = result.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], BaseMessage):
        return str.__str__(messages[-1].text)
    return result
