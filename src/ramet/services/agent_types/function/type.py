"""The agent type "function": each turn is one call of a plain function, in the host or in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.host.safety.gate import SafetyGate
from ramet.services.agent_types import imports
from ramet.services.agent_types.bundle_operations import LoadBundle, UnloadBundle
from ramet.services.agent_types.conversation_log import ConversationLog
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.agent_types.gates import gate_of
from ramet.services.agent_types.imports import FunctionReference
from ramet.services.agent_types.sandbox import isolation_of, policy_of
from ramet.services.contract import AgentSpec, RunningAgent
from ramet.services.formats.registry import FORMATS
from ramet.wire.code.capsule import pack


class FunctionInfo(Struct, forbid_unknown_fields=True, kw_only=True):
    """The function of a "function" agent: "module:name".

    Its arguments are the message's text, and the history if it takes two. The return value is the answer. The pieces
    that a generator yields, and in a sandbox the printed text, are streamed.
    """

    function: str
    gate: str = ""  #: name of a safety policy of the server, for its requests to others; empty: no gate


class FunctionType:
    """The agent type of functions.

    In the host, only functions of the modules in `allowed`, and of their submodules, are called. In a sandbox,
    functions of the agent's image may be called, too.
    """

    name = "function"
    spawn_info: type = FunctionInfo
    transport_formats: Sequence[str] = tuple(FORMATS)
    operations: Mapping[str, type] = {"load_bundle": LoadBundle, "unload_bundle": UnloadBundle}

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed_modules = tuple(allowed)

    async def check(self, spec: AgentSpec) -> None:
        """Check that the agent can be opened.

        Raises Unknown if its safety policy does not exist, and IsolationUnavailable. Raises InvalidValue for a function
        that does not exist, is not allowed, or is not callable, and for a gate in the host, where code could bypass it.
        Raises NotShippable for a function that cannot be packed. Code of an image is only parsed, not run.
        """
        policy = policy_of(spec)
        self._function(spec)
        await _gate(spec)
        await isolation_of(spec.runtime, policy)

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Return an agent that waits for its first turn, or resumes where another server left it, even in a turn."""
        policy = policy_of(spec)
        function = self._function(spec)
        isolation = await isolation_of(spec.runtime, policy)
        turns = ConversationLog(await spec.runtime.open_store(), spec.id)
        agent = FunctionAgent(spec, function, policy, isolation, turns, await _gate(spec))
        await agent.restore()
        return agent

    def _function(self, spec: AgentSpec) -> Callable[..., Any] | FunctionReference:
        """Return the function, or its reference if only a sandbox can import it. Raises InvalidValue, NotShippable."""
        reference = imports.parse_reference(spec.info.function)
        if spec.policy is not None and imports.top_level(spec.image.folders).count(reference.top):
            imports.check_source(reference, spec.image.folders)
            return reference
        if any(reference.module == each or reference.module.startswith(f"{each}.") for each in self._allowed_modules):
            function = imports.import_function(reference)
            if spec.policy is not None:
                pack(function)
            return function
        raise InvalidValue(imports.FIELD, spec.info.function, self._describe_accepted(spec))

    def _describe_accepted(self, spec: AgentSpec) -> str:
        """Return the functions that may be called, for the text of an error."""
        of_allowed = f"a function of {', '.join(self._allowed_modules)}" if self._allowed_modules else ""
        if spec.policy is None:
            return of_allowed or "a policy and an image with its code: this server calls no function in its own process"
        return f"a function at the top of a module of the agent's image{', or ' if of_allowed else ''}{of_allowed}"


async def _gate(spec: AgentSpec) -> SafetyGate | None:
    """Return the agent's safety gate. Raises InvalidValue for a function in the host, where a gate has no effect."""
    if spec.info.gate and spec.policy is None:
        raise InvalidValue("spawn_info.gate", spec.info.gate, "none for a function in the host: set a policy")
    return await gate_of(spec.runtime, spec.info.gate)
