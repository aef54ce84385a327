"""Run a graph: a state moves from node to node, along edges that are fixed or chosen by a function of the state.

Each run's node is recorded with the run, so that a restart follows the recorded path without new decisions.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ramet.agent.composition.steps import (
    NO_INPUT,
    Call,
    Composition,
    StepContext,
    composition_input,
    copy_value,
    step_context,
)
from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, RametError, StepFailed, StepsExceeded, Unknown
from ramet.core.outcome import Status
from ramet.tools.workers.thread_tools import run_in_thread

#: The entry and the end of a graph, as LangGraph spells them.
START: Final = "__start__"
END: Final = "__end__"


@dataclass(frozen=True)
class Node:
    """A named step. `input` is the key of the state that it receives, `output` the key that it writes."""

    name: str
    agent: Agent
    input: str | None = None
    output: str | None = None


@dataclass(frozen=True)
class Route:
    """A decision: a function of the state returns the next node, directly or through a mapping."""

    function: Callable[..., Any]
    targets: Mapping[Any, str] | None = None


@dataclass(frozen=True)
class Graph(Composition):
    """A compiled graph: validated and immutable."""

    name: str
    nodes: Mapping[str, Node]
    edges: Mapping[str, str | Route]
    max_steps: int
    keys: tuple[str, ...] = ()  #: of the state; empty: any
    reducers: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run from the entry to END; return the state. Raises StepFailed and StepsExceeded."""
        composition, state = step_context(), self._first_state(composition_input(args, kwargs))
        node_name = START
        for number in range(self.max_steps + 1):
            recorded_key = composition.tree.find_recorded_spawn(composition.context, f"{number}:")
            node_name = (
                recorded_key.partition(":")[2]
                if recorded_key is not None
                else await self._next(composition, node_name, state)
            )
            if node_name == END:
                return state
            if number == self.max_steps:
                break
            node = self.nodes[node_name]
            node_input = state if node.input is None else _input_of(node, state)
            output = await composition.run_step(node.agent, node_input, key=f"{number}:{node_name}", name=node_name)
            state = self._update_state(node, state, output)
        raise StepsExceeded(self.name, node=node_name, max_steps=self.max_steps)

    def parts(self) -> tuple[Agent, ...]:
        """Return the nodes' agents, in the order in which they were added."""
        return tuple(node.agent for node in self.nodes.values())

    def decision_functions(self) -> tuple[Callable[..., Any], ...]:
        routes = (edge.function for edge in self.edges.values() if isinstance(edge, Route))
        return (*routes, *self.reducers.values())

    def _first_state(self, value: Any) -> Any:
        if isinstance(value, Call):
            if value.args:
                raise InvalidValue("input", value.args, "one state, or its keys by name")
            value = dict(value.kwargs)
        value = {} if value is NO_INPUT else value
        if self.keys:
            _check_keys(f"the input of {self.name}", value, self.keys)
        return value

    async def _next(self, composition: StepContext, node_name: str, state: Any) -> str:
        edge = self.edges.get(node_name, END)
        if isinstance(edge, str):
            return edge
        choice = await _decide(composition, edge, copy_value(state, None, label="state"))
        target = choice
        if edge.targets is not None:
            try:
                target = edge.targets[choice]
            except (KeyError, TypeError):
                raise Unknown(f"route after {node_name!r}", str(choice), tuple(map(str, edge.targets))) from None
        if target != END and target not in self.nodes:
            raise Unknown(f"node after {node_name!r}", str(target), (*self.nodes, END))
        return str(target)

    def _update_state(self, node: Node, state: Any, output: Any) -> Any:
        """Return the state after a node. Raises StepFailed for a change of unknown keys."""
        if not isinstance(state, dict):
            return output
        if node.output is not None:
            output = {node.output: output}
        elif node.agent.takes_prompt:
            output = {node.name: output}
        elif output is None:
            return state
        elif isinstance(node.agent.function, Composition) and not isinstance(output, dict):
            output = {node.name: output}
        try:
            _check_keys(f"the output of {node.name}", output, self.keys)
            return {**state, **{key: self._reduce(state, key, value) for key, value in output.items()}}
        except InvalidValue as mismatch:
            raise StepFailed(node.name, status=Status.FAILED, path=node.name, reason=str(mismatch)) from mismatch

    def _reduce(self, state: Mapping[str, Any], key: str, value: Any) -> Any:
        reducer = self.reducers.get(key)
        return reducer(state[key], value) if reducer is not None and key in state else value


async def _decide(composition: StepContext, route: Route, state: Any) -> Any:
    """Return the result of a route's function; a synchronous one runs in a thread."""
    name = getattr(route.function, "__name__", "route")
    try:
        if inspect.iscoroutinefunction(route.function):
            return await route.function(state)
        step = composition.context.next_step()
        return await run_in_thread(composition.context, lambda: route.function(state), name=name, key=step)
    except (RametError, asyncio.CancelledError):
        raise
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        raise StepFailed(name, status=Status.FAILED, path=composition.context.run.path, reason=reason) from problem


def _input_of(node: Node, state: Any) -> Any:
    if not isinstance(state, dict) or node.input not in state:
        known_keys = tuple(map(str, state)) if isinstance(state, dict) else ()
        raise Unknown(f"key of the state for {node.name!r}", str(node.input), known_keys)
    return state[node.input]


def _check_keys(label: str, value: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise InvalidValue(label, value, "a dict of the state's keys")
    for key in value:
        if keys and key not in keys:
            raise InvalidValue(f"{label}: key", key, f"one of {', '.join(keys)}")
