"""The agent type "external": a program of another maker in a sandbox, and a conversation of many turns.

A client is hostile, and the files of a program are mounted whatever the rules for mounts say. So a client names a
program, and never gives its command: that is the operator's, or ramet's own for a preset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ramet.agent.definition import Agent
from ramet.agent.external.external import PRESETS, External
from ramet.agent.external.program_policy import Program
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.outcome import NO_USAGE
from ramet.core.policy.policy import Policy, resolve_root_policy, secrets_of, variables_of
from ramet.host.external.program_finder import ProgramFinder
from ramet.host.session import Session
from ramet.services.agent_types.gates import gate_of
from ramet.services.agent_types.sandbox import isolation_of, policy_of
from ramet.services.agent_types.session_agent import SessionAgent
from ramet.services.contract import AgentSpec, RunningAgent
from ramet.services.formats.registry import FORMATS

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class ExternalInfo(Struct, forbid_unknown_fields=True, kw_only=True):
    """The program of an "external" agent, by its name: one of the operator's `external` settings, or a known program.

    `model` is "provider:model", or a name of the server's own models that has no key of its own.
    """

    external: str
    model: str = ""  #: empty: as the program chooses
    instructions: str = ""  #: come before the first prompt
    gate: str = ""  #: name of a safety policy of the server, for the calls that the program asks about; empty: no gate
    show_tools: bool = False  #: whether answers contain its calls, as text


class ExternalType:
    """The agent type of programs of other makers.

    `programs` are those of the operator, by name, and precede known programs. `models` are the server's own names for
    models.
    """

    name = "external"
    spawn_info: type = ExternalInfo
    transport_formats: Sequence[str] = tuple(FORMATS)
    operations: Mapping[str, type] = {}

    def __init__(
        self,
        programs: Mapping[str, External] | None = None,
        models: Mapping[str, str | BaseChatModel] | None = None,
    ) -> None:
        known_programs = {name: External(preset=name) for name in PRESETS}
        self._programs, self._models = {**known_programs, **(programs or {})}, models or {}
        self._finder = ProgramFinder()

    def complete_policy(self, info: ExternalInfo, policy: Policy | None) -> Policy:
        """Return a policy with what the program needs, where the policy says nothing.

        Raises Unknown for a program that has no such name, and InvalidValue if it is not found, or cannot ask the
        model.
        """
        return self._program(info).policy(policy)

    async def check(self, spec: AgentSpec) -> None:
        """Check that the agent can be opened. Raises Unknown if the program or the safety policy does not exist.

        Raises InvalidValue if the program is not found, or cannot ask the model, SpawnRefused for a policy with less
        than the program needs, and IsolationUnavailable.
        """
        program, policy = self._program(spec.info), _policy(spec)
        if spec.info.model:
            spec.rules.check_model("spawn_info.model", spec.info.model)
        self._definition(spec)
        await gate_of(spec.runtime, spec.info.gate)
        program.check(resolve_root_policy(policy))
        await isolation_of(spec.runtime, policy)

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Return an agent that waits for its first turn, or that continues where another server left it.

        Raises like `check`, and Unknown if an earlier server left nothing on record. The program itself starts with a
        turn, and ends with it: between two turns the agent holds no process.
        """
        policy = _policy(spec)
        isolation = await isolation_of(spec.runtime, policy)
        session = await (self._resume(spec, policy) if spec.run else self._start(spec, policy))
        return SessionAgent(session, spec, isolation, NO_USAGE, show_tools=spec.info.show_tools)

    async def _start(self, spec: AgentSpec, policy: Policy) -> Session:
        session = Session(
            agent=self._definition(spec),
            agents=self._agents_below(policy),
            limits=spec.limits,
            spawn=False,  # The program has tools of its own to start agents, if its policy allows it.
            runtime=spec.runtime,
            root_policy=policy,
            gate=await gate_of(spec.runtime, spec.info.gate),
            state_owner=spec.id,
        )
        return await session.start()

    async def _resume(self, spec: AgentSpec, policy: Policy) -> Session:
        return await Session.resume(
            spec.run,
            agents=self._agents_below(policy),
            runtime=spec.runtime,
            secrets=secrets_of(policy),
            env_vars=variables_of(policy),
            gate=await gate_of(spec.runtime, spec.info.gate),
        )

    def _definition(self, spec: AgentSpec) -> Agent:
        info: ExternalInfo = spec.info
        return Agent(
            name=spec.name,
            instructions=info.instructions,
            external=self._external(info.external),
            model=self._model(info.model),
        )

    def _agents_below(self, policy: Policy) -> Sequence[Agent]:
        """Return the agents that the program may start by their names: the other programs of this server."""
        if not policy.allow_sub_agents:
            return ()
        return [
            Agent(name=name, description=f"{name}, a program in a sandbox of its own", external=each)
            for name, each in self._programs.items()
        ]

    def _program(self, info: ExternalInfo) -> Program:
        return self._finder.find(self._external(info.external), self._model(info.model))

    def _external(self, name: str) -> External:
        if name not in self._programs:
            raise Unknown("program", name, tuple(sorted(self._programs)))
        return self._programs[name]

    def _model(self, name: str) -> str | None:
        """Return the full name of a model; None for no model. Raises InvalidValue for a model that has its own key."""
        if not name:
            return None
        model = self._models.get(name, name)
        if not isinstance(model, str):
            accepted = "a model without a key of its own: requests of a program have the host's keys"
            raise InvalidValue("spawn_info.model", name, accepted)
        return model


def _policy(spec: AgentSpec) -> Policy:
    """Return the policy of the program's sandbox: without a policy it has the default one, and never the host."""
    policy = policy_of(dataclasses.replace(spec, policy=spec.policy or Policy()))
    assert policy is not None, "it has a policy"
    return policy
