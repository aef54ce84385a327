"""Synchronous tools in processes of the kind `local`, one for each call, so that each call can be cancelled.

A process receives only one function and its arguments, and is trusted no more than a sandboxed agent: its result is
data, its errors are a name and a text. It has the rights of the session's policy, or may read the session's folder. A
writable folder of the agent's own is kept for the agent's next call.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import Denied, InvalidValue, OutputTooLarge, RametError
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant, Isolation, Policy, resolve_root_policy
from ramet.host.sandbox.sandboxes import Sandboxes, TreePlacement
from ramet.isolation.contract import KILL_GRACE_S, Exit, SandboxSpec
from ramet.isolation.masking.secret_forms import mask_text
from ramet.isolation.mounts import roots_of
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.masking import forms_of_grant
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel, Reply
from ramet.spawn.sandbox.process import (
    RunningSandbox,
    classify_exit,
    sanitize_error,
    start_sandbox,
    terminate,
    wait_result,
)
from ramet.tools.context import ToolUseContext
from ramet.tools.workers.process_tools import check_tools
from ramet.wire.code.capsule import PackedCall
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol.guest_to_host import GuestMessage, Request
from ramet.wire.guest_protocol.host_to_guest import StartFunction
from ramet.wire.values import values

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_log = logging.getLogger("ramet.tools")


class ToolProcesses:
    """The tool processes of one tree. Nothing is started before the first call."""

    def __init__(self, sandboxes: Sandboxes, policy: Policy) -> None:
        """Create the tool processes. Raises InvalidValue for a policy that no process of the kind `local` can keep."""
        self._sandboxes, self._grant = sandboxes, _resolve_grant(policy)
        self._mount_roots = roots_of(self._grant.mounts.paths)
        self._placement: TreePlacement = sandboxes.placement()
        self._checked_tools: dict[int, BaseTool] = {}  #: kept, so that an id stands for one tool
        self._numbers = itertools.count(1)
        self._root = ""  #: the tree's root; set by the first call

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values that no function may carry along."""
        return tuple(self._grant.secrets.values())

    def check(self, tools: Sequence[BaseTool]) -> None:
        new = [tool for tool in tools if id(tool) not in self._checked_tools]
        check_tools(new)
        self._checked_tools.update((id(tool), tool) for tool in new)

    async def call(self, context: ToolUseContext, tool: str, packed: PackedCall) -> Any:
        """Run a packed call in a process of its own; at the return the process has ended or is being terminated.

        If the call is cancelled, this returns when no process of it is left. Raises RametError with the function's
        error, or with the end of its process; OutputTooLarge, SandboxFailed, IsolationUnavailable, ProtocolError.
        """
        async with self._spec(context, packed) as spec:
            with context.track_process():
                finished, process_exit = await self._run_process(context, tool, packed, spec)
        if finished is None:
            assert process_exit is not None, "without a final message the exit was waited for"
            exit_info = classify_exit(process_exit)
            raise RametError(f"{exit_info.kind}: {exit_info.message}")
        done = finished.done
        if done.oom or (process_exit is not None and process_exit.reason == "oom"):
            raise RametError(f"OutOfMemory: {(process_exit and process_exit.detail) or 'it ran out of memory'}")
        if not done.ok:
            error = sanitize_error(done.error or ErrorInfo(type="Error", message="it failed without a message"))
            if isinstance(decoded := decode_error(error, done.fields), OutputTooLarge):
                raise values.result_too_large(decoded.size, self._grant.max_output_bytes)
            raise RametError(mask_text(f"{error.type}: {error.message}", forms_of_grant(self._grant)))
        if len(finished.body) > self._grant.max_output_bytes:
            raise values.result_too_large(len(finished.body), self._grant.max_output_bytes)
        return values.decode(finished.body, done.json_size, label=tool)

    def close(self) -> None:
        """Remove the files that the tools of the ended tree have written."""
        if self._root:
            self._sandboxes.drop_tool_folders(self._root)

    async def _run_process(
        self, context: ToolUseContext, tool: str, packed: PackedCall, spec: SandboxSpec
    ) -> tuple[FinalMessage | None, Exit | None]:
        """Return the process's final message, and its exit if that was waited for."""
        sandbox = RunningSandbox(
            await start_sandbox(spec, (await self._sandboxes.local()).start(spec)), GuestChannel(_RefusingHandler())
        )
        process = sandbox.sandbox
        try:
            mask = forms_of_grant(spec.grant)
            sandbox.streams = tuple(OutputStream(os.dup(fd), mask=mask) for fd in (process.stdout, process.stderr))
            await sandbox.channel.open(process.channel)
            start = StartFunction(
                run=context.run.id,
                path=context.run.path,
                name=tool,
                capsule_tag=packed.tag,
                max_result_bytes=spec.grant.max_output_bytes,
            )
            await sandbox.channel.send(start, packed.data)
            finished = await wait_result(sandbox)
            process_exit = await terminate(process, finished)
            sandbox.has_exited = True
            return finished, process_exit
        finally:
            try:
                await run_shielded(_end(sandbox, tool))
            finally:
                self._sandboxes.run_in_background(process.clean_up())

    @asynccontextmanager
    async def _spec(self, context: ToolUseContext, packed: PackedCall) -> AsyncGenerator[SandboxSpec]:
        grant, cwd = self._grant, context.cwd.resolve()
        self._root = context.run.root
        folder = self._sandboxes.tool_folder(context.run.root, context.run.id)
        spec = SandboxSpec(
            run=context.run.id,
            grant=grant,
            workspace=folder / "work",
            cwd=cwd if any(cwd.is_relative_to(mount) for mount in grant.mounts.paths) else None,
            mount_roots=self._mount_roots,
            image="llm" if packed.is_heavy else "bare",
            env=self._placement.env(context.run, grant),
        )
        if not grant.allowed_endpoints:
            yield spec
            return
        proxy = folder / f"{next(self._numbers)}.sock"  # One for each call: the last socket may still be closing.
        async with self._placement.network_access(context, grant, proxy, await self._sandboxes.local()):
            yield replace(spec, proxy=proxy)


async def _end(sandbox: RunningSandbox, tool: str) -> None:
    """End a call: kill its process if it still runs, and close its channel and streams."""
    try:
        if not sandbox.has_exited:
            await sandbox.sandbox.kill(KILL_GRACE_S)
    finally:
        await sandbox.channel.close()
        for stream, name in zip(sandbox.streams, ("stdout", "stderr"), strict=False):
            stream.close()
            if stream.text:
                _log.debug("%s wrote to %s: %s", tool, name, stream.text)


class _RefusingHandler:
    """The channel handler of a tool's process: it accepts nothing."""

    async def answer(self, request: Request, body: bytes) -> Reply:
        """Refuse the request."""
        raise Denied(type(request).__name__, "a tool in a process of its own may send no request to its host")

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Ignore the message."""
        return None


def _resolve_grant(policy: Policy) -> Grant:
    if policy.isolation is not None and policy.isolation.rank > Isolation.L1.rank:
        accepted = f"'thread' with a policy that asks for {policy.isolation}: a process of the kind local offers L1"
        raise InvalidValue("sync_tools", "process", accepted)
    return msgspec.structs.replace(resolve_root_policy(policy), allow_sub_agents=False)
