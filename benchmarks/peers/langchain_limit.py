"""A limit of model calls for agents of LangChain: its middleware, and a count of what was asked all the same."""

from __future__ import annotations

from typing import Any

from adapter import LATENCY_S
from fake_lc import LAT, K
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.callbacks import AsyncCallbackHandler


class RequestCounter(AsyncCallbackHandler):
    """A callback that counts model requests of a graph and of the graphs that its tools invoke."""

    def __init__(self) -> None:
        self.requests = 0

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Count one request."""
        self.requests += 1


def limit_of(requests: int) -> ModelCallLimitMiddleware:
    """Return LangChain's own limit of model calls, for a parent and for its children."""
    return ModelCallLimitMiddleware(run_limit=requests, exit_behavior="end")


async def count_requests(graph: Any, children: int) -> int:
    """Return how many requests a graph and its children make if it delegates to so many children at once."""
    K.set(children)
    LAT.set(LATENCY_S)
    counter = RequestCounter()
    await graph.ainvoke(
        {"messages": [{"role": "user", "content": "go"}]},
        {"recursion_limit": 10_000, "callbacks": [counter], "configurable": {"thread_id": "limited"}},
    )
    return counter.requests
