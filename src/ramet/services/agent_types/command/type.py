"""The agent type "command": any program that speaks frames on its stdin and stdout, in a sandbox or in the host."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec import Struct

from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.core.policy.policy import Policy, resolve_root_policy, secrets_of, variables_of
from ramet.services.agent_types.command.agent import CallProgram, CommandAgent, Log
from ramet.services.agent_types.command.process import StartedProgram, start_in_host, start_inside
from ramet.services.agent_types.conversation_log import COMMAND_TURN, ConversationLog
from ramet.services.agent_types.sandbox import isolation_of, policy_of
from ramet.services.contract import AgentSpec, RunningAgent
from ramet.services.formats.registry import FORMATS

_FORMAT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_MAX_ARGV, _MAX_FORMATS, _MAX_START_S = 128 * 1024, 20, 3600.0


class CommandInfo(Struct, forbid_unknown_fields=True, kw_only=True):
    """The program of a "command" agent and its arguments, by name or by a path as it is seen where the program works.

    Without `formats` the program uses plain text, and clients may use any built-in format. With `formats` clients use
    these, the first by default, and bodies pass unchanged.
    """

    argv: Sequence[str]
    cwd: str = ""  #: absolute; empty: a folder of the agent's own
    in_image: bool = False  #: whether it works in the folder of its image
    formats: Sequence[str] = ()
    start_s: float = 30.0  #: how long it may take to become ready


class CommandType:
    """The agent type of programs. In the host, only a program whose `argv[0]` is exactly in `allowed` is started.

    In a sandbox, any program is allowed.
    """

    name = "command"
    spawn_info: type = CommandInfo
    transport_formats: Sequence[str] = tuple(FORMATS)
    operations: Mapping[str, type] = {"call": CallProgram, "log": Log}

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed_programs = tuple(allowed)

    def formats_of(self, info: CommandInfo) -> Sequence[str]:
        """Return the formats that the program declares, or the built-in ones if it declares none.

        Raises InvalidValue.
        """
        for number, each in enumerate(info.formats):
            if not _FORMAT.match(each) or each in info.formats[:number]:
                raise InvalidValue(f"spawn_info.formats[{number}]", each, "names, each once: a-z, 0-9, '.', '_', '-'")
        if len(info.formats) > _MAX_FORMATS:
            raise InvalidValue("spawn_info.formats", len(info.formats), f"at most {_MAX_FORMATS}")
        return tuple(info.formats) or tuple(FORMATS)

    def reads_parameters(self, info: CommandInfo, format: str) -> bool:
        """Return whether the program declares the format, and so gets bodies unchanged."""
        return format in info.formats

    async def check(self, spec: AgentSpec) -> None:
        """Check that the agent can be opened. Raises IsolationUnavailable.

        Raises InvalidValue for an invalid command, and for a program that is not allowed in the host. The existence of
        the program is checked only when it is started: a sandbox has other programs than the host.
        """
        info: CommandInfo = spec.info
        self.formats_of(info)
        if not info.argv or not info.argv[0]:
            raise InvalidValue("spawn_info.argv", list(info.argv), "a program, and its arguments")
        if any("\0" in each for each in info.argv) or sum(len(each.encode()) for each in info.argv) > _MAX_ARGV:
            raise InvalidValue("spawn_info.argv", info.argv[0], f"no NUL, and at most {_MAX_ARGV} bytes")
        if not 0 < info.start_s <= _MAX_START_S:
            raise InvalidValue("spawn_info.start_s", info.start_s, f"seconds, up to {_MAX_START_S:g}")
        _working_folder(spec)
        policy = policy_of(spec)
        if policy is None and info.argv[0] not in self._allowed_programs:
            programs = ", ".join(self._allowed_programs) or "nothing"
            raise InvalidValue(
                "spawn_info.argv", info.argv[0], f"in the host one of: {programs}; set a policy for other programs"
            )
        await isolation_of(spec.runtime, policy)

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Return an agent whose program is ready.

        After a restart the program is started again, and gets the earlier conversation. After a restart only turns wait
        for the program: the start of a server must not wait for the slowest program. Raises like `check`. Raises
        InvalidValue if the program does not exist, and SpawnRefused if it does not become ready.
        """
        policy = policy_of(spec)
        isolation = await isolation_of(spec.runtime, policy)
        turns = ConversationLog(await spec.runtime.open_store(), spec.id, COMMAND_TURN)
        if spec.run:
            await turns.read()
            await _end_leftover_tree(spec, policy)
        seconds = _seconds_of(spec, policy)
        agent = CommandAgent(spec, turns, await _start(spec, policy), isolation, seconds)
        if spec.run:
            agent.restart()
        else:
            await agent.begin()
        return agent


async def _start(spec: AgentSpec, policy: Policy | None) -> StartedProgram:
    limits = replace(spec.limits, seconds=None)  # Time is limited per turn.
    argv, cwd = spec.info.argv, _working_folder(spec)
    runtime, owner = spec.runtime, spec.id
    if policy is not None:
        return await start_inside(runtime, argv, str(cwd or ""), policy, limits, state_owner=owner)
    return await start_in_host(runtime, argv, cwd or spec.folder, limits, state_owner=owner)


async def _end_leftover_tree(spec: AgentSpec, policy: Policy | None) -> None:
    """End the recorded tree of a killed server; the program itself ended with that server."""
    with suppress(DefinitionMissing):
        for handle in await spec.runtime.resume(
            only=spec.run, secrets=secrets_of(policy), env_vars=variables_of(policy)
        ):
            await handle.cancel("its server was killed")


def _seconds_of(spec: AgentSpec, policy: Policy | None) -> float | None:
    """Return the time limit of a turn; None for no limit."""
    limits = [] if policy is None else [resolve_root_policy(policy).timeout_seconds]
    if spec.limits.seconds is not None:
        limits.append(spec.limits.seconds)
    return min(limits, default=None)


def _working_folder(spec: AgentSpec) -> pathlib.Path | None:
    """Return the program's working folder; None for a folder of its own. Raises InvalidValue."""
    info: CommandInfo = spec.info
    if info.in_image:
        if spec.policy is None or len(spec.image.folders) != 1:
            raise InvalidValue("spawn_info.in_image", True, "it only with a policy and an image of one bundle")
        if info.cwd:
            raise InvalidValue("spawn_info.cwd", info.cwd, "none together with in_image")
        return spec.image.folders[0].resolve()
    if info.cwd and (not info.cwd.startswith("/") or "\0" in info.cwd):
        raise InvalidValue("spawn_info.cwd", info.cwd, "an absolute path, as the program sees it")
    return pathlib.Path(info.cwd) if info.cwd else None
