"""A turn of a run in a sandbox: a process is started, receives its job, and has ended when the turn is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage

from ramet.agent.loop import mail_text
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import (
    Aborted,
    BudgetExceeded,
    DefinitionMissing,
    InvalidValue,
    ProtocolError,
    RametError,
    Unknown,
)
from ramet.core.events import Notice, RunResumed, RunRetried, SandboxGivenUp, SandboxStarted
from ramet.core.outcome import ErrorInfo, Status
from ramet.core.policy.policy import Grant, to_public_dict
from ramet.core.policy.rights import IMPORTS
from ramet.core.replay.run_replay import RunReplay
from ramet.isolation.contract import KILL_GRACE_S, Backend, Exit, Sandbox, SandboxSpec
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.external.program_turn import record_reply, take_prompt
from ramet.spawn.final_answer import checked_answer, has_answered
from ramet.spawn.forwarding import forwarded_requests
from ramet.spawn.forwarding.mail_forwarding import forward_mail
from ramet.spawn.masking import masked_text, private_forms, secret_forms
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run, SandboxOutput, TurnResult
from ramet.spawn.sandbox.adoption import NotAdopted, adopt_sandbox, describe_sandbox, sandbox_id
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel
from ramet.spawn.sandbox.conversation import SandboxedConversation
from ramet.spawn.sandbox.file_collection import collect_artifacts, sync_files
from ramet.spawn.sandbox.function_job import FunctionJob
from ramet.spawn.sandbox.mcp_servers.mcp_server_sandbox import own_sandboxes
from ramet.spawn.sandbox.pausing import GivenUp, as_refusal
from ramet.spawn.sandbox.process import (
    RunningSandbox,
    classify_exit,
    sanitize_error,
    start_sandbox,
    terminate,
    wait_result,
)
from ramet.spawn.sandbox.process_freeze import FunctionPause, ProcessFreeze
from ramet.spawn.sandbox.requests import GuestRequests
from ramet.spawn.sandbox.run_folder import report_lost_folder, restore_folder, start_in_clone
from ramet.spawn.verdict import error_result, lost_result, partial_text
from ramet.wire.guest_protocol.host_to_guest import Stop
from ramet.wire.values.values import EncodedValue

_PROGRAM_TOOLS = frozenset({"Bash", "Grep"})  #: tools that start programs, and end all programs that these started

#: Statuses after which another attempt may help.
_RETRIED_STATUSES = frozenset({Status.FAILED, Status.CRASHED, Status.OOM, Status.LOST})
#: The number of bytes of the newest printed text that are kept in memory.
_RING_BYTES = 64 * 1024


async def run_in_sandbox(run: Run, messages: Sequence[BaseMessage], placement: Placement) -> TurnResult:
    """Execute a turn in a sandbox, with the retries of the policy, each in a new sandbox.

    A conversation keeps the messages of a turn that no sandbox could be started for. Raises an error of the host
    itself, such as IsolationUnavailable. Errors of the guest are in the result.
    """
    conversation = SandboxedConversation(run, messages) if run.sandbox.capsule is None else None
    prompt = take_prompt(run, messages) if run.agent.external is not None else ""
    try:
        return await _run_attempts(run, conversation, prompt, placement)
    except (Exception, asyncio.CancelledError) as error:
        is_end_of_loop = isinstance(error, asyncio.CancelledError) and run.turn.stop_result is None
        if conversation is not None and not is_end_of_loop:  # With a prompt on record, another kernel would answer it.
            with contextlib.suppress(InvalidValue):  # A message that cannot be recorded is not this turn's outcome.
                conversation.record_unsent()
        raise
    finally:
        if conversation is not None:
            conversation.close()
            await conversation.pause.close()


async def _run_attempts(
    run: Run, conversation: SandboxedConversation | None, prompt: str, placement: Placement
) -> TurnResult:
    assert run.grant is not None, "a run in a sandbox has a grant"
    step = run.context.next_step()
    backend = await placement.backend(run.grant)
    run.context.slot.begin_calls()  # One call, so that the run holds no slot while it waits for children.
    replay, run.sandbox.replay = run.sandbox.replay, None
    attempt = run.turn.attempt if run.turn.resumes else 1
    if run.turns > 1 or run.turn.resumes or run.sandbox.folder is None:
        restore_folder(run, placement)
        assert run.sandbox.folder is not None, "a run in a sandbox has a folder"
        run.sandbox.folder.record_resume()
    run.sandbox.was_started = True
    try:
        while True:
            if replay is None:
                if conversation is not None and run.pauses.recorded_limit is not None:
                    await conversation.pause.wait_resumed(as_refusal(run.pauses.recorded_limit))
                await run.context.wait_unpaused(is_counted=True)
            job = conversation or FunctionJob(run, prompt)
            at = _Attempt(attempt, backend, placement, replay)
            replay = None
            if run.task is not None:  # Whatever the end of the turn, nothing more is recorded about it.
                run.task.add_done_callback(at.mark_recorded)
            try:
                verdict = await _run_attempt(run, job, GuestRequests(run, step, conversation), at)
            except GivenUp:
                assert conversation is not None, "only a conversation gives its process up"
                at.mark_recorded()
                await conversation.continue_after_pause()
                continue
            except NotAdopted as error:
                report_lost_folder(run)
                run.sandbox.on_start()  # What the sandbox monitored has ended, and the run may have no other sandbox.
                if conversation is not None and has_answered(run):
                    return TurnResult(Status.COMPLETED, checked_answer(run))  # It had answered when its kernel ended.
                if run.repeatable or not run.restarts_from_scratch:
                    _restart(run, error)
                    continue
                verdict = lost_result(run, str(error))
                await _end_children(run, verdict)
                return verdict
            await _end_children(run, verdict)
            if verdict.status not in _RETRIED_STATUSES or attempt > run.grant.retry_count:
                return verdict
            wait_s = run.grant.retry_delay_seconds
            reason = masked_text(run, verdict.error.message)[:500] if verdict.error is not None else ""
            await asyncio.to_thread(
                run.sandbox.folder.clear_workspace
            )  # Another kernel may continue with the next attempt.
            run.context.emit(RunRetried, attempt=attempt, status=verdict.status, reason=reason, wait_s=wait_s)
            at.mark_recorded()
            run.turn.replies = run.turn.objections = 0
            await run.context.clock.sleep(wait_s)
            attempt += 1
    finally:
        run.context.slot.end_call()
        placement.run_in_background(asyncio.to_thread(run.sandbox.folder.record_end))


@dataclass
class _Attempt:
    """An attempt at a turn: its number and its place."""

    number: int
    backend: Backend
    placement: Placement
    replay: RunReplay | None  #: the recorded state, if an earlier kernel had begun it in a sandbox that may still exist
    outcome_record: asyncio.Event = field(default_factory=asyncio.Event)  #: set when its outcome is being recorded

    def mark_recorded(self, _: object = None) -> None:
        """Mark the outcome as passed to the record."""
        self.outcome_record.set()


def _restart(run: Run, error: NotAdopted) -> None:
    """Restart the turn in a new sandbox; recorded messages stay."""
    run.context.emit(Notice, text=f"it starts again in another sandbox: {error}")
    if run.sandbox.capsule is None and len(run.context.history) > run.turn_began_at:
        run.turn_began_at = len(run.context.history)
        run.context.emit(RunResumed, turn=run.turns)


async def _end_children(run: Run, verdict: TurnResult) -> None:
    """End the children that a failed attempt left active.

    After a success the run waits for them, as in the host.
    """
    tree = run.context.tree
    if tree is None or verdict.status is Status.COMPLETED:
        return

    async def end(child: Run) -> None:
        with contextlib.suppress(Unknown):  # It has just ended by itself.
            await tree.stop(run.context, child.info.id, f"its parent ended: {verdict.status}")

    # Concurrently: a child that ignores its stop takes as long as its kill, and all of them together take no longer.
    results = await asyncio.gather(*map(end, run.attached_children()), return_exceptions=True)
    for problem in results:
        if problem is not None:
            raise problem


def _environment(run: Run, grant: Grant, placement: Placement) -> Mapping[str, str]:
    """Return the variables of a run's process; its import folder comes after the modules of the image."""
    env = placement.env(run.info, grant)
    if run.import_dir is not None:
        env[IMPORTS] = os.pathsep.join(filter(None, (env.get(IMPORTS), str(run.import_dir))))
    return env


async def _run_attempt(
    run: Run, job: FunctionJob | SandboxedConversation, requests: GuestRequests, at: _Attempt
) -> TurnResult:
    grant, folder, placement = run.grant, run.sandbox.folder, at.placement
    assert grant is not None, "a run in a sandbox has a grant"
    assert folder is not None, "a run in a sandbox has a folder"
    if at.replay is None and run.sandbox.missing_variables:
        raise DefinitionMissing("variable", ", ".join(run.sandbox.missing_variables))
    if run.agent.mcp and run.sandbox.mcp_packages is not None:
        run.sandbox.mcp_programs = await run.sandbox.mcp_packages.programs(run.agent.mcp_servers)
    run.sandbox.output = SandboxOutput()
    run.turn.spawn_requests.clear()
    async with placement.observing(run.context, grant, run.sandbox.mount_roots) as proxy:
        spec = SandboxSpec(
            run=run.info.id,
            grant=grant,
            workspace=folder.workspace,
            cwd=run.visible_cwd if run.sandbox.capsule is None else None,
            mount_roots=run.sandbox.mount_roots,
            image="llm" if run.sandbox.capsule is None or run.sandbox.capsule.is_heavy else "bare",
            env=_environment(run, grant, placement),
            proxy=proxy,
            import_dir=run.import_dir,
            has_programs=run.sandbox.capsule is None
            and (bool(run.agent.mcp) or any(tool.name in _PROGRAM_TOOLS for tool in run.context.tools)),
            has_loopback=forwarded_requests.forward_rights(run) is not None,
            stdio=run.request.stdio,
            tree=run.info.root,
            path=run.info.path,
        )
        async with (
            _recording(run, at.backend) as recorded,
            _running_sandbox(run, spec, requests, at) as running,
            run.sandbox.served_ports.during(
                placement.serving_ports(run.info, grant, running.sandbox) if grant.ports else None
            ),
            own_sandboxes(run, requests.mcp, placement),
        ):
            run.context.emit(
                SandboxStarted,
                backend=at.backend.name,
                level=running.sandbox.level,
                attempt=at.number,
                policy=to_public_dict(grant),
                sandbox=running.adoption_data,
                adopted=running.is_adopted,
            )
            if not running.is_adopted:
                first_message = await job.start()
                await recorded
                if running.adoption_data:  # A kernel that continues knows of it, and of its first message.
                    await run.context.wait_persisted()
                await running.channel.send(*first_message)
            if isinstance(job, SandboxedConversation):
                running.channel.run_concurrently(job.forward_mail(running.channel.send))
            elif run.agent.external is not None:
                running.channel.run_concurrently(
                    forward_mail(
                        run.context, running.channel.send, mail_text, outlives_kernel=run.sandbox.can_outlive_kernel
                    )
                )
            finished = None
            try:
                finished = await (
                    job.pause.wait_result(running) if isinstance(job, SandboxedConversation) else wait_result(running)
                )
                process_exit = await terminate(running.sandbox, finished)
                verdict = _turn_result(run, job, finished, process_exit)
                if (refusal := requests.refused_model_request) is not None and run.agent.external is not None:
                    verdict = error_result(run, refusal)  # Whatever the program made of it.
                if run.agent.external is not None:
                    record_reply(run, verdict)
            except ProtocolError as error:
                if running.is_adopted and isinstance(
                    job, SandboxedConversation
                ):  # Its kernel knew more of it than the record.
                    raise NotAdopted(str(error)) from error
                verdict = error_result(run, error)
                await running.sandbox.kill(0)
            except GivenUp:
                if running.adoption_data:  # Otherwise a kernel that continues would take its end for a crash.
                    run.context.emit(SandboxGivenUp)
                    await run.context.wait_persisted()
                await running.sandbox.kill(0)
                running.has_exited = True
                if (lost := await sync_files(running.sandbox)) is not None:
                    run.context.emit(Notice, text=f"files written since the last transfer are lost: {lost}")
                raise
            running.has_exited = True
            sync_error = await sync_files(running.sandbox)
            for stream in running.streams:
                if finished is not None and finished.done.ok:
                    stream.close()  # The text printed before its last message is available already.
                await stream.wait_drained()
            files, problem = await collect_artifacts(run)
            problem = sync_error or problem
            stdout, stderr = (stream.text for stream in running.streams)
            if problem is not None and verdict.status is Status.COMPLETED:
                verdict = error_result(run, problem)
            value = None
            if verdict.status is Status.COMPLETED and finished is not None and run.sandbox.capsule is not None:
                value = EncodedValue(finished.done.json_size, finished.body)
            run.sandbox.output = SandboxOutput(files=files, stdout=stdout, stderr=stderr, value=value)
    return verdict


@asynccontextmanager
async def _recording(run: Run, backend: Backend) -> AsyncGenerator[asyncio.Future[None]]:
    """Provide the wait until all of the run is on record, which the first message to a sandbox must follow.

    A process of this machine starts meanwhile: it has none of the user's code, and ends with this kernel. Elsewhere, a
    sandbox would remain that no record knows, so it is started after the wait. Raises StoreFailed.
    """
    recorded = asyncio.ensure_future(run.context.wait_persisted())
    try:
        if (await backend.probe()).remote:
            await recorded
        yield recorded
    finally:
        if not recorded.cancel() and not recorded.cancelled():
            recorded.exception()  # Of a wait whose error came too late to be of interest.


@asynccontextmanager
async def _running_sandbox(
    run: Run, spec: SandboxSpec, requests: GuestRequests, at: _Attempt
) -> AsyncGenerator[RunningSandbox]:
    """Provide a sandbox while it is needed; a stop of its run waits for its end."""
    with run.context.track_process():
        async with _start_sandbox(run, spec, requests, at) as running:
            yield running


@asynccontextmanager
async def _start_sandbox(
    run: Run, spec: SandboxSpec, requests: GuestRequests, at: _Attempt
) -> AsyncGenerator[RunningSandbox]:
    """Provide a started or adopted sandbox.

    However the context is left, no process remains, and no channel is read.
    """
    folder = run.sandbox.folder
    assert folder is not None, "a run in a sandbox has a folder"
    if at.replay is not None:
        sandbox = await adopt_sandbox(run, spec, at.backend, at.replay)
    else:
        clone = run.sandbox.clone
        starting = at.backend.start(spec) if clone is None else start_in_clone(run, clone, spec, at.backend)
        sandbox = await start_sandbox(spec, starting)
    running = RunningSandbox(sandbox, GuestChannel(requests, run.context.clock), is_adopted=at.replay is not None)
    freeze = ProcessFreeze(run, sandbox, running.channel, lambda: requests.will_give_up)
    pause = FunctionPause(run, requests.call) if run.sandbox.capsule is not None else None
    try:
        running.adoption_data = await describe_sandbox(sandbox, at.backend)
        run.sandbox.can_outlive_kernel = bool(running.adoption_data)
        requests.sandbox = sandbox_id(running.adoption_data)
        if at.replay is not None:
            requests.adopt(at.replay)
        run.sandbox.current, requests.channel = sandbox, running.channel
        for name, fd, file in (("stdout", sandbox.stdout, folder.stdout), ("stderr", sandbox.stderr, folder.stderr)):
            stream = _stream(run, name, os.dup(fd), file, spec)  # A stream closes the descriptor that it reads.
            running.streams = (*running.streams, stream)
        await running.channel.open(sandbox.channel)
        freeze.start()
        if pause is not None:
            pause.start()
        yield running
    finally:
        run.sandbox.current, run.sandbox.can_outlive_kernel = None, False
        freeze.close()
        if pause is not None:
            pause.close()
        try:
            await run_shielded(_end(running, run))  # Raises if it was cancelled again meanwhile.
        finally:
            requests.close()
            run.sandbox.on_process_change()
            is_awaited = running.adoption_data and running.has_exited
            cleanup = _remove_when_recorded(run, sandbox, at) if is_awaited else sandbox.clean_up()
            at.placement.run_in_background(cleanup)  # The rest concerns the host only: no result waits for it.


async def _remove_when_recorded(run: Run, sandbox: Sandbox, at: _Attempt) -> None:
    """Remove a sandbox once its outcome is recorded: until then its last message could be requested again."""
    try:
        await at.outcome_record.wait()
        with contextlib.suppress(RametError):
            await run.context.wait_persisted()
    finally:
        await sandbox.clean_up()


async def _end(running: RunningSandbox, run: Run) -> None:
    try:
        if not running.has_exited:
            running.channel.run_concurrently(
                running.channel.send(Stop(reason="it is over"))
            )  # Signals do not wait until this is read.
            await running.sandbox.kill(KILL_GRACE_S)
    finally:
        await running.channel.close()
        for stream in running.streams:
            stream.close()
    if not running.has_exited:  # It was cut off: its output so far is kept.
        sync_error = await sync_files(running.sandbox)
        if sync_error is not None:
            run.context.emit(Notice, text=f"files written since the last transfer are lost: {sync_error}")
        files, _ = await collect_artifacts(run)
        stdout, stderr = (stream.text for stream in running.streams)
        run.sandbox.output = SandboxOutput(files=files, stdout=stdout, stderr=stderr)


def _stream(run: Run, name: str, fd: int, file: Any, spec: SandboxSpec) -> OutputStream:
    listener = run.request.on_output
    return OutputStream(
        fd,
        ring_bytes=_RING_BYTES,
        file=file,
        max_file_bytes=spec.grant.max_output_bytes,
        on_text=(lambda text: listener(name, text)) if listener is not None else None,
        mask=secret_forms(run),
        mask_kept=private_forms(run),
    )


def _turn_result(
    run: Run, job: FunctionJob | SandboxedConversation, finished: FinalMessage | None, process_exit: Exit | None
) -> TurnResult:
    if finished is None:
        assert process_exit is not None, "a guest without a last message has exited"
        return _failed_result(run, *classify_exit(process_exit))
    done = finished.done
    if done.oom or (process_exit is not None and process_exit.reason == "oom"):
        detail = (process_exit and process_exit.detail) or "it ran out of memory"
        return _failed_result(run, Status.OOM, "OutOfMemory", detail)
    try:
        return TurnResult(Status.COMPLETED, job.finish(done, finished.body))
    except BudgetExceeded:
        raise
    except RametError as problem:
        if isinstance(problem, Aborted) and run.turn.stop_result is not None:
            return run.turn.stop_result  # The host knows the whole stop, the guest only its reason.
        is_function = isinstance(job, FunctionJob)
        if isinstance(problem, ProtocolError) and not is_function:
            raise  # Another kernel may have known more.
        if is_function and done.error is not None and not done.ok:  # The guest's name: a type of the user.
            return TurnResult(
                error_result(run, problem).status, error=sanitize_error(done.error), partial=partial_text(run)
            )
        return error_result(run, problem)


def _failed_result(run: Run, status: Status, kind: str, message: str) -> TurnResult:
    return TurnResult(status, error=ErrorInfo(type=kind, message=message), partial=partial_text(run))
