"""The runs of the tree around a sandboxed run, and its children, over the channel; the host knows the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ramet.concurrency.threads import owner_loop
from ramet.core.equal_mail import checked_window
from ramet.core.errors import InvalidValue
from ramet.core.ids import CallId, Path, RunId
from ramet.core.limits import NO_LIMITS
from ramet.core.outcome import Result, Status
from ramet.guest.async_channel import AsyncChannel
from ramet.models.json_values import sanitize
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import PeerRequest
from ramet.tools.run_info import MonitorReport, RunView, StopReceipt
from ramet.tools.spawn_request import CreationReceipt, SpawnHandle, SpawnRequest
from ramet.wire.code import capsule
from ramet.wire.guest_protocol import answer_data, guest_to_host
from ramet.wire.values import values
from ramet.wire.values.json_object import json_body


class ChannelHandle:
    """A handle of a child over the channel."""

    def __init__(self, link: AsyncChannel, spawn_reply: answer_data.SpawnReply) -> None:
        self._link, self._spawn_reply = link, spawn_reply

    @property
    def id(self) -> RunId:
        return RunId(self._spawn_reply.run)

    @property
    def name(self) -> str:
        """The name that addresses the run inside its tree."""
        return self._spawn_reply.name

    @property
    def path(self) -> Path:
        """The names from the root down to the run."""
        return Path(self._spawn_reply.path)

    @property
    def background(self) -> bool:
        """True if a notice reports the run's end and no caller waits for it."""
        return self._spawn_reply.background

    async def result(self) -> Result:
        message, body = await self._link.end_of(self._spawn_reply.run)
        return Result(
            status=Status(message.status),
            value=values.decode(body, message.json_size) if body else None,
            error=message.error,
            partial=message.partial,
            usage_subtree=message.usage,
            artifacts=(*message.changes, *(each.name for each in message.artifacts)),
        )

    async def end(self) -> Result:
        """Wait for the run's end and return its result.

        A result that arrives here has left the host, and so is recorded.
        """
        return await self.result()

    async def cancel(self, reason: str = "cancelled by its parent") -> StopReceipt:
        return await _stop(self._link, self._spawn_reply.run, reason)


class ChannelTree:
    """An implementation of `ramet.tools.context.Tree` over the channel."""

    def __init__(self, link: AsyncChannel, types: Mapping[str, str]) -> None:
        self._link, self._types = link, types

    @property
    def is_elsewhere(self) -> bool:
        """True if the caller is code that an agent wrote, in its own thread and event loop."""
        return self._link.loop not in (asyncio._get_running_loop(), owner_loop.get())

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> ChannelHandle:
        """Spawn a child.

        Raises SpawnRefused, Unknown or InvalidValue; NotShippable for a function that cannot be transferred.
        """
        body, function, tag, heavy = b"", "", "", False
        for name, default in (("detached", False), ("limits", NO_LIMITS), ("returns", None), ("on_output", None)):
            if getattr(request, name) != default:
                raise InvalidValue(
                    name, getattr(request, name), f"{default!r} for a child that is started in a sandbox"
                )
        if request.agent is not None:
            if not callable(request.agent) or hasattr(request.agent, "cache_ttl_seconds"):
                raise InvalidValue("agent", request.agent, "a function, or a subagent_type: definitions are the host's")
            packed_call = capsule.pack(request.agent, request.args, request.kwargs)
            body, function, tag, heavy = packed_call.data, packed_call.name, packed_call.tag, packed_call.is_heavy
        answer = await self._link.ask(
            guest_to_host.Spawn,
            body,
            policy=request.policy,
            function=function,
            capsule_tag=tag,
            heavy=heavy,
            prompt=request.prompt,
            name=request.name,
            description=request.description,
            subagent_type=request.subagent_type,
            mode=request.mode,
            model=request.model,
            background=request.background,
            isolation=request.isolation,
            cwd=request.cwd,
            branch=request.branch,
            call_id=request.call_id,
        )
        return ChannelHandle(self._link, answer.as_(answer_data.SpawnReply))

    def find_recorded_spawn(self, parent: ToolUseContext, prefix: str) -> str | None:
        """Return None: a sandbox starts anew, and compositions work in the host."""
        return None

    def resume_children(self, parent: ToolUseContext) -> Sequence[SpawnHandle]:
        """Return no children: a run in a sandbox is not resumed here."""
        return ()

    async def move_to_background(self, parent: ToolUseContext, child: SpawnHandle) -> None:
        await self._link.ask(guest_to_host.MoveToBackground, run=child.id)

    def detach_calls(self, parent: ToolUseContext, calls: Collection[CallId]) -> None:
        """Do nothing: calls that are cut off here end with this process."""

    def spawnable(self, parent: ToolUseContext) -> Mapping[str, str]:
        return self._types

    async def send(
        self,
        sender: ToolUseContext,
        to: str,
        text: str,
        *,
        notify_when_idle: bool = False,
        dedupe_s: float | None = None,
    ) -> str:
        fields: dict[str, Any] = {"to": to, "text": sanitize(text)}
        if notify_when_idle:
            fields["notify_when_idle"] = True
        if dedupe_s is not None:
            fields["dedupe_s"] = checked_window(dedupe_s)
        return (await self._link.ask(guest_to_host.Send, **fields)).as_(answer_data.Text).text

    async def ask_peer(self, asker: ToolUseContext, request: PeerRequest) -> str:
        fields = {**request._asdict(), "text": sanitize(request.text)}
        return (await self._link.ask(guest_to_host.AskPeer, **fields)).as_(answer_data.Text).text

    async def report_monitor(self, reporter: ToolUseContext, report: MonitorReport) -> str:
        fields = {**report._asdict(), "text": sanitize(report.text)}
        return (await self._link.ask(guest_to_host.ReportMonitor, **fields)).as_(answer_data.Text).text

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        return await _stop(self._link, target, reason)

    async def output(self, asker: ToolUseContext, target: str, *, block: bool, timeout_s: float) -> str:
        """Return the output of a run below.

        Raises Unknown or Denied.
        """
        answer = await self._link.ask(guest_to_host.Output, target=target, block=block, timeout_s=timeout_s)
        return answer.as_(answer_data.Text).text

    async def list_runs(self, asker: ToolUseContext, *, below: bool = False) -> Sequence[RunView]:
        answer = await self._link.ask(guest_to_host.ListRuns, below=below)
        return [RunView(**msgspec.structs.asdict(run)) for run in answer.as_(answer_data.Runs).runs]

    async def create(self, creator: ToolUseContext, entry: Mapping[str, Any]) -> CreationReceipt:
        answer = await self._link.ask(guest_to_host.CreateAgent, json_body(entry, "recipe"))
        return CreationReceipt(*msgspec.structs.astuple(answer.as_(answer_data.CreateReply)))

    async def call_task(
        self,
        parent: ToolUseContext,
        ref: str,
        task: str,
        arguments: Mapping[str, Any],
        *,
        name: str | None = None,
        branch: bool = False,
        call_id: CallId | None = None,
    ) -> ChannelHandle:
        body = json_body(arguments, "arguments")
        answer = await self._link.ask(
            guest_to_host.PerformTask, body, ref=ref, task=task, name=name, branch=branch, call_id=call_id
        )
        return ChannelHandle(self._link, answer.as_(answer_data.SpawnReply))

    async def use_state(
        self, user: ToolUseContext, request: guest_to_host.UseState, body: bytes = b""
    ) -> tuple[answer_data.StateReply, bytes]:
        fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "id"}
        answer = await self._link.ask(guest_to_host.UseState, body, **fields)
        return answer.as_(answer_data.StateReply), answer.body


async def _stop(link: AsyncChannel, target: str, reason: str) -> StopReceipt:
    answer = await link.ask(guest_to_host.Cancel, target=target, reason=reason)
    receipt = answer.as_(answer_data.StopReply)
    return StopReceipt(receipt.stopped, receipt.left)
