"""Requests of an agent to its host from inside its sandbox: sub-agents, mail, checkpoints, files of its children.

Every function works from any thread and waits; `await` a `SubAgent` in async code. Errors are those of
`ramet.core.errors`, as the host raised them. Code that is not an agent gets a RametError that says how to become one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from ramet.core.equal_mail import checked_window
from ramet.core.errors import InvalidValue, ProtocolError, RametError, SpawnRefused, Unknown
from ramet.core.outcome import EXIT_CODES, AgentResult, Status, branch_in
from ramet.core.policy.policy import Policy
from ramet.guest.async_channel import End
from ramet.guest.thread_channel import ChannelClient, current_channel
from ramet.wire.code import capsule
from ramet.wire.error_codec import encode_error
from ramet.wire.guest_protocol import guest_to_host
from ramet.wire.guest_protocol.answer_data import Checkpoint, SpawnReply, StopReply, Text
from ramet.wire.values import values
from ramet.wire.values.annotations import returned_type

if TYPE_CHECKING:
    from ramet.guest.state import AgentState


def spawn_sub_agent(
    agent: Callable[..., Any],
    policy: Policy | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    returns: Any = None,
    branch: bool = False,
) -> AgentResult:
    """Run a function as an agent below this one, in a sandbox of its own, and wait for its result.

    `output` has the type that the function's annotation says, or `returns`. A child that failed returns a result whose
    `exit_code` is not 0. Raises SpawnRefused if the child was not spawned, NotShippable if an argument cannot be sent.
    """
    return start_sub_agent(agent, policy, args, kwargs, name=name, returns=returns, branch=branch).result()


def start_sub_agent(
    agent: Callable[..., Any],
    policy: Policy | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    returns: Any = None,
    branch: bool = False,
) -> SubAgent:
    """Start a function as an agent below this one, and return without waiting.

    Raises as `spawn_sub_agent` does. With `branch` the child's state is a branch of this agent's, which sees nothing of
    it until `agent_state().merge(child)`.
    """
    if policy is not None and not isinstance(policy, Policy):
        raise InvalidValue("policy", policy, "a ramet.Policy")
    host = current_channel()
    agent, policy = _undecorate(agent, policy)
    packed_call = capsule.pack(agent, args, kwargs)
    spawn_reply = host.ask(
        guest_to_host.Spawn,
        packed_call.data,
        policy=policy,
        function=packed_call.name,
        capsule_tag=packed_call.tag,
        heavy=packed_call.is_heavy,
        name=name,
        branch=branch,
    ).as_(SpawnReply)
    return SubAgent(host, spawn_reply, returned_type(agent) if returns is None else returns)


def _undecorate(agent: Any, policy: Policy | None) -> tuple[Callable[..., Any], Policy | None]:
    """Return the function and the policy of a definition that a decorator made."""
    if not hasattr(agent, "cache_ttl_seconds"):
        return agent, policy
    if agent.function is None:
        raise InvalidValue("agent", agent.name, "a function, or what a decorator made of one")
    return agent.function, policy or agent.policy


def map_sub_agents(
    agent: Callable[[Any], Any],
    items: Iterable[Any],
    policy: Policy | None = None,
    *,
    max_parallel: int = 8,
    returns: Any = None,
) -> list[AgentResult]:
    """Run a function as one agent for each item, at most `max_parallel` at a time.

    The results are in the order of the items. If there is no room for another agent, running ones are waited for first.
    If a spawn is still refused, or an item cannot be sent, an error is raised, and the running agents are cancelled.
    """
    if max_parallel < 1:
        raise InvalidValue("max_parallel", max_parallel, "1 or more")
    children: list[SubAgent] = []
    running: set[Future[End]] = set()
    try:
        for item in items:
            while (child := _start_if_room(agent, policy, item, returns, is_required=not running)) is None:
                running = wait(running, return_when=FIRST_COMPLETED).not_done
            children.append(child)
            running.add(child.end())
            if len(running) >= max_parallel:
                running = wait(running, return_when=FIRST_COMPLETED).not_done
        return [child.result() for child in children]
    except BaseException:
        for child in children:
            with contextlib.suppress(RametError):  # The host has ended, and takes care of them.
                if not child.end().done():
                    child.cancel("another item of the same map failed")
        raise


def _start_if_room(
    agent: Callable[[Any], Any], policy: Policy | None, item: Any, returns: Any, *, is_required: bool
) -> SubAgent | None:
    try:
        return start_sub_agent(agent, policy, (item,), returns=returns)
    except SpawnRefused as error:
        if is_required or error.limit.startswith("policy."):  # Waiting does not change rights.
            raise
        return None


def save_checkpoint(value: Any, version: int = 1) -> None:
    """Save a value for the next attempt or lifetime of this run, replacing the previous one.

    Raises NotShippable.
    """
    json_size, body = values.encode(value, label="checkpoint")
    current_channel().ask(guest_to_host.SaveCheckpoint, body, json_size=json_size, version=version)


def load_checkpoint(default: Any = None, *, returns: Any = None, version: int | None = None) -> Any:
    """Return the last saved value, as the type `returns`.

    Return `default` if there is none, or none of this `version`.
    """
    answer = current_channel().ask(guest_to_host.LoadCheckpoint)
    checkpoint = answer.as_(Checkpoint)
    if not checkpoint.found or version not in (None, checkpoint.version):
        return default
    return values.decode(answer.body, checkpoint.json_size, returns=returns, label="checkpoint")


def agent_state() -> AgentState:
    """Return this agent's own state, which is kept from one run of the agent to the next.

    Raises RametError if this code is not an agent.
    """
    from ramet.guest import state  # Most agents keep no state, and this import brings the store's names along.

    return state.agent_state()


def read_artifact(session_id: str, name: str) -> bytes:
    """Return a file that a child left in its working directory.

    Raises Unknown for another child or name.
    """
    return current_channel().ask(guest_to_host.ReadArtifact, run=session_id, name=name).body


def send_message(to: str, text: str, *, dedupe_s: float | None = None) -> str:
    """Send a message to another agent of the tree, by id, path or name; return what happened to it.

    With `dedupe_s`, a message that equals one of the last `dedupe_s` seconds is not delivered again. Raises MailRefused
    if the message is refused, and InvalidValue if `dedupe_s` is not a valid time.
    """
    window: dict[str, Any] = {} if dedupe_s is None else {"dedupe_s": checked_window(dedupe_s)}
    return current_channel().ask(guest_to_host.Send, to=to, text=text, **window).as_(Text).text


class SubAgent:
    """An agent below this one.

    Dropping the object does not affect the agent; it ends when its parent does.
    """

    def __init__(self, channel: ChannelClient, spawn_reply: SpawnReply, returns: Any) -> None:
        self.id, self.path, self.name = spawn_reply.run, spawn_reply.path, spawn_reply.name
        self._line, self._returns = channel, returns

    def result(self, timeout: float | None = None) -> AgentResult:
        """Wait for the end of the agent.

        Raises TimeoutError after `timeout` seconds; the agent continues.
        """
        return self._decode_result(self.end().result(timeout))

    def __await__(self) -> Generator[Any, None, AgentResult]:
        """Wait for the end of the agent without blocking the event loop."""
        import asyncio

        end = yield from asyncio.shield(asyncio.wrap_future(self.end())).__await__()
        return self._decode_result(end)

    def cancel(self, reason: str = "cancelled by its parent") -> StopReply:
        """Stop the agent and all agents below it, and wait until they have ended.

        Returns the paths of the stopped runs, if there were any.
        """
        try:
            return self._line.ask(guest_to_host.Cancel, target=self.id, reason=reason).as_(StopReply)
        except Unknown:  # It lived once, so it has ended.
            return StopReply(stopped=())

    def send(self, text: str) -> str:
        """Send a message to the agent; return what happened to it.

        Raises MailRefused.
        """
        return self._line.ask(guest_to_host.Send, to=self.id, text=text).as_(Text).text

    def end(self) -> Future[End]:
        """Return a future of the agent's end, for waiting together with others."""
        return self._line.end_of(self.id)

    def _decode_result(self, end: End) -> AgentResult:
        message, error, output = end.message, end.message.error, None
        status = Status(message.status)
        if message.json_size and status is Status.COMPLETED:
            try:
                output = values.decode(end.body, message.json_size, returns=self._returns)
            except (InvalidValue, ProtocolError) as problem:  # It returned another type than its annotation says.
                status, error = Status.FAILED, encode_error(problem)[0]
        return AgentResult(
            exit_code=message.exit_code if status == message.status else EXIT_CODES[status],
            status=status,
            output=output,
            error=error,
            artifacts=message.artifacts,
            usage=message.usage,
            session_id=self.id,
            branch=branch_in(message.changes),
            stdout=message.stdout,
            stderr=message.stderr,
        )
