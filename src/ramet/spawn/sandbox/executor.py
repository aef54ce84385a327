"""One turn of a run in a sandbox: a process is started for it, told what to do, and gone when the turn is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import typing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from langchain_core.messages import AIMessageChunk, BaseMessage

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
from ramet.core.events import Notice, RunResumed, RunRetried, SandboxStarted
from ramet.core.outcome import Artifact, ErrorInfo, Status
from ramet.core.policy.policy import Grant, to_public_dict
from ramet.core.policy.rights import IMPORTS
from ramet.core.replay.replay import RunReplay
from ramet.isolation.contract import KILL_GRACE_S, Backend, Exit, Sandbox, SandboxSpec
from ramet.isolation.masking.secret_forms import masked
from ramet.isolation.workspace.artifacts import collect
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.final_answer import bounded_answer, has_answered
from ramet.spawn.masking import masked_text, private_forms, secret_forms
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run, SandboxOutput, TurnResult
from ramet.spawn.sandbox.adoption import NotAdopted, adopted, described, sandbox_id
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel
from ramet.spawn.sandbox.conversation import SandboxedConversation
from ramet.spawn.sandbox.process import RunningSandbox, classify_exit, sanitize_error, started, terminate, wait_result
from ramet.spawn.sandbox.requests import GuestRequests
from ramet.spawn.sandbox.run_folder import house_again, tell_lost
from ramet.spawn.verdict import failed, lost_result, partial_text
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol import Done, HostMessage, StartFunction, Stop
from ramet.wire.values import values
from ramet.wire.values.values import Encoded

_WITH_PROGRAMS = frozenset({"Bash", "Grep"})  #: tools that start some, and end all that these have started

#: Ends after which another attempt may help.
_RETRIED = frozenset({Status.FAILED, Status.CRASHED, Status.OOM, Status.LOST})
#: Of what it prints, this much of the newest is kept in memory.
_RING_BYTES = 64 * 1024


async def run_in_sandbox(
    run: Run, messages: Sequence[BaseMessage], feed: Callable[[AIMessageChunk], None], placement: Placement
) -> TurnResult:
    """Do a turn in a sandbox, as often as the policy's retries say, each time in a new one.

    Raises what the host itself could not do, such as IsolationUnavailable; what the guest did is in the verdict.
    """
    assert run.grant is not None, "who works inside has a grant"
    step = run.context.next_step()
    backend = await placement.backend(run.grant)
    talk = SandboxedConversation(run, messages, feed) if run.capsule is None else None
    run.context.slot.begin_calls()  # One call, so that it holds no slot while it waits for children.
    left, run.left_in = run.left_in, None
    attempt = run.attempt if run.resumes else 1
    if run.turns > 1 or run.resumes or run.folder is None:
        house_again(run, placement)
        assert run.folder is not None, "who works inside has a folder"
        run.folder.resumed()
    run.was_inside = True
    try:
        while True:
            job = talk or FunctionJob(run)
            at = _Attempt(attempt, backend, placement, left)
            left = None
            if run.task is not None:  # However the turn ends, nobody says more of it.
                run.task.add_done_callback(at.is_told)
            try:
                verdict = await _attempt(run, job, GuestRequests(run, step, talk), at)
            except NotAdopted as why:
                tell_lost(run)
                if talk is not None and has_answered(run):
                    return TurnResult(Status.COMPLETED, bounded_answer(run))  # It had answered when its kernel ended.
                if run.repeatable or not run.begins_anew:
                    _begin_anew(run, why)
                    continue
                verdict = lost_result(run, str(why))
                await _end_children(run, verdict)
                return verdict
            await _end_children(run, verdict)
            if verdict.status not in _RETRIED or attempt > run.grant.retry_count:
                return verdict
            wait_s = run.grant.retry_delay_seconds
            reason = masked_text(run, verdict.error.message)[:500] if verdict.error is not None else ""
            await asyncio.to_thread(run.folder.clear_workspace)  # Whoever goes on with the next attempt may be another.
            run.context.emit(RunRetried, attempt=attempt, status=verdict.status, reason=reason, wait_s=wait_s)
            at.is_told()
            run.replied = run.objected = 0
            await run.context.clock.sleep(wait_s)
            attempt += 1
    finally:
        if talk is not None:
            talk.close()
        run.context.slot.end_call()
        placement.later(asyncio.to_thread(run.folder.ended))


@dataclass
class _Attempt:
    """One attempt at a turn: which, and where."""

    number: int
    backend: Backend
    placement: Placement
    left: RunReplay | None  #: what is on record of it, if an earlier kernel had begun it in a sandbox that may be there
    told: asyncio.Event = field(default_factory=asyncio.Event)  #: what came of it is on its way onto the record

    def is_told(self, _: object = None) -> None:
        """Somebody has seen to that."""
        self.told.set()


def _begin_anew(run: Run, why: NotAdopted) -> None:
    """What was said until now stays said."""
    run.context.emit(Notice, text=f"it begins anew, in another sandbox: {why}")
    if run.capsule is None and len(run.context.history) > run.turn_began_at:
        run.turn_began_at = len(run.context.history)
        run.context.emit(RunResumed, turn=run.turns)


async def _end_children(run: Run, verdict: TurnResult) -> None:
    """End what an attempt that failed has left at work. Behind a good end its run waits for that, as in the host."""
    tree = run.context.tree
    if tree is None or verdict.status is Status.COMPLETED:
        return

    async def end(child: Run) -> None:
        with contextlib.suppress(Unknown):  # It has just ended by itself.
            await tree.stop(run.context, child.info.id, f"its parent ended: {verdict.status}")

    # At the same time: a deaf child takes as long as its kill, and all of them take no longer.
    ends = await asyncio.gather(*map(end, run.bound_children()), return_exceptions=True)
    for problem in ends:
        if problem is not None:
            raise problem


class FunctionJob:
    """A function to be called inside."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def start(self) -> tuple[HostMessage, bytes]:
        """The first word, with the capsule and the late arguments."""
        run, capsule, grant = self._run, self._run.capsule, self._run.grant
        assert capsule is not None, "a function in a sandbox is in a capsule"
        assert grant is not None, "who works inside has a grant"
        late = run.request.late_args
        behind = _as_json(late()) if late is not None else b""
        start = StartFunction(
            run=run.info.id,
            path=run.info.path,
            name=capsule.name,
            capsule_tag=capsule.tag,
            max_result_bytes=grant.max_output_bytes,
            late_size=len(behind),
        )
        return start, capsule.data + behind if behind else capsule.data

    def finish(self, done: Done, body: bytes) -> Any:
        """The value, as the type that the host itself knows it to be.

        Raises the guest's error, ProtocolError, and OutputTooLarge for more than the guest may leave.
        """
        if not done.ok:
            error = decode_error(done.error or ErrorInfo(type="Error", message="it failed without a word"), done.fields)
            if isinstance(error, Aborted) and not self._run.context.abort.aborted:
                error = RametError(str(error))  # Nobody stopped it: that it says so makes it no cancelled run.
            raise error
        most = self._run.grant.max_output_bytes if self._run.grant is not None else 0
        if len(body) > most:
            raise values.result_too_large(len(body), most)
        return values.decode(body, done.json_size, returns=_returns(self._run))


def _as_json(late_args: tuple[Any, ...]) -> bytes:
    """Raises InvalidValue for what is no data."""
    try:
        return msgspec.json.encode(late_args)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidValue("late_args", type(late_args).__name__, f"data that JSON can hold ({problem})") from None


async def _attempt(
    run: Run, job: FunctionJob | SandboxedConversation, errands: GuestRequests, at: _Attempt
) -> TurnResult:
    grant, folder, placement = run.grant, run.folder, at.placement
    assert grant is not None, "who works inside has a grant"
    assert folder is not None, "who works inside has a folder"
    if at.left is None and run.lacking:
        raise DefinitionMissing("variable", ", ".join(run.lacking))
    run.left = SandboxOutput()
    run.spawned.clear()
    async with placement.attending(run.context, grant) as proxy:
        spec = SandboxSpec(
            run=run.info.id,
            grant=grant,
            workspace=folder.workspace,
            cwd=run.works_in if run.capsule is None else None,
            mount_roots=run.mount_roots,
            image="llm" if run.capsule is None or run.capsule.is_heavy else "bare",
            env=_importing(placement.env(run.info, grant), run.shelf),
            proxy=proxy,
            shelf=run.shelf,
            has_programs=run.capsule is None and any(tool.name in _WITH_PROGRAMS for tool in run.context.tools),
            tree=run.info.root,
            path=run.info.path,
        )
        async with _inside(run, spec, errands, at) as inside, _serving(run, grant, inside.box, placement):
            run.context.emit(
                SandboxStarted,
                backend=at.backend.name,
                level=inside.box.level,
                attempt=at.number,
                policy=to_public_dict(grant),
                sandbox=inside.described,
                adopted=inside.is_adopted,
            )
            if not inside.is_adopted:
                first_word = job.start()
                if inside.described:  # Whoever goes on with it knows of it, and what it was told.
                    await run.context.settled()
                await inside.door.tell(*first_word)
            if isinstance(job, SandboxedConversation):
                inside.door.beside(job.attend(inside.door.tell))
            finished = None
            try:
                finished = await wait_result(inside)
                gone = await terminate(inside.box, finished)
                verdict = _verdict(run, job, finished, gone)
            except ProtocolError as broken:
                if inside.is_adopted and isinstance(
                    job, SandboxedConversation
                ):  # Its kernel knew more of it than the record.
                    raise NotAdopted(str(broken)) from broken
                verdict = failed(run, broken)
                await inside.box.kill(0)
            inside.is_gone = True
            unseen = await _synced(inside.box)
            for stream in inside.streams:
                if finished is not None and finished.done.ok:
                    stream.close()  # What it had printed by its last word is there to be read.
                await stream.drained()
            files, problem = await _collect(run)
            problem = unseen or problem
            stdout, stderr = (stream.text for stream in inside.streams)
            if problem is not None and verdict.status is Status.COMPLETED:
                verdict = failed(run, problem)
            value = None
            if verdict.status is Status.COMPLETED and finished is not None and run.capsule is not None:
                value = Encoded(finished.done.json_size, finished.body)
            run.left = SandboxOutput(files=files, stdout=stdout, stderr=stderr, value=value)
    return verdict


def _importing(env: Mapping[str, str], shelf: Path | None) -> Mapping[str, str]:
    """What is on its shelf can be imported, behind what its image brings."""
    if shelf is None:
        return env
    return {**env, IMPORTS: os.pathsep.join(filter(None, (env.get(IMPORTS), str(shelf))))}


def _serving(run: Run, grant: Grant, box: Sandbox, placement: Placement) -> AbstractAsyncContextManager[None]:
    """The ports of a sandbox are reached from the host while it works."""
    return run.serving.during(placement.serving(run.info, grant, box) if grant.ports else None)


@asynccontextmanager
async def _inside(run: Run, spec: SandboxSpec, errands: GuestRequests, at: _Attempt) -> AsyncGenerator[RunningSandbox]:
    """A sandbox while it is needed, which a stop of its run waits for."""
    with run.context.holding_process():
        async with _started_inside(run, spec, errands, at) as inside:
            yield inside


@asynccontextmanager
async def _started_inside(
    run: Run, spec: SandboxSpec, errands: GuestRequests, at: _Attempt
) -> AsyncGenerator[RunningSandbox]:
    """A sandbox that is started or adopted. However this is left, nothing is left of it, and nothing is listened to."""
    folder = run.folder
    assert folder is not None, "who works inside has a folder"
    if at.left is not None:
        inside = RunningSandbox(
            await adopted(run, spec, at.backend, at.left), GuestChannel(errands, run.context.clock), is_adopted=True
        )
    else:
        inside = RunningSandbox(await started(at.backend.start(spec)), GuestChannel(errands, run.context.clock))
    box = inside.box
    try:
        inside.described = await described(box, at.backend)
        run.outlives = bool(inside.described)
        errands.sandbox = sandbox_id(inside.described)
        if at.left is not None:
            errands.go_on(at.left)
        run.box, errands.door = box, inside.door
        for name, fd, file in (("stdout", box.stdout, folder.stdout), ("stderr", box.stderr, folder.stderr)):
            stream = _stream(run, name, os.dup(fd), file, spec)  # A stream closes what it reads.
            inside.streams = (*inside.streams, stream)
        await inside.door.open(box.channel)
        yield inside
    finally:
        run.box, run.outlives = None, False
        try:
            await run_shielded(_end(inside, run))  # Raises if it was cancelled once more meanwhile.
        finally:
            later = _forgotten(run, box, at) if inside.described and inside.is_gone else box.clean_up()
            at.placement.later(later)  # What is left is the host's own: no result waits for that.


async def _forgotten(run: Run, box: Sandbox, at: _Attempt) -> None:
    """Let go of a sandbox once what came of it is on record: until then its last word could be asked for again."""
    try:
        await at.told.wait()
        with contextlib.suppress(RametError):
            await run.context.settled()
    finally:
        await box.clean_up()


async def _end(inside: RunningSandbox, run: Run) -> None:
    try:
        if not inside.is_gone:
            inside.door.beside(inside.door.tell(Stop(reason="it is over")))  # Signals do not wait until it is read.
            await inside.box.kill(KILL_GRACE_S)
    finally:
        await inside.door.close()
        for stream in inside.streams:
            stream.close()
    if not inside.is_gone:  # It was cut off: what it had left by then is kept.
        unseen = await _synced(inside.box)
        if unseen is not None:
            run.context.emit(Notice, text=f"what it left since its files travelled last is lost: {unseen}")
        files, _ = await _collect(run)
        stdout, stderr = (stream.text for stream in inside.streams)
        run.left = SandboxOutput(files=files, stdout=stdout, stderr=stderr)


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


def _verdict(
    run: Run, job: FunctionJob | SandboxedConversation, finished: FinalMessage | None, gone: Exit | None
) -> TurnResult:
    if finished is None:
        assert gone is not None, "who said nothing was waited for"
        return _without_a_word(run, gone)
    done = finished.done
    if done.oom or (gone is not None and gone.reason == "oom"):
        return _ended(run, Status.OOM, "OutOfMemory", (gone and gone.detail) or "it ran out of memory")
    try:
        return TurnResult(Status.COMPLETED, job.finish(done, finished.body))
    except BudgetExceeded:
        raise
    except RametError as problem:
        if isinstance(problem, Aborted) and run.cut is not None:
            return run.cut  # What the host says of the stop: the guest knows only its reason.
        is_function = isinstance(job, FunctionJob)
        if isinstance(problem, ProtocolError) and not is_function:
            raise  # Another kernel may have known more.
        if is_function and done.error is not None and not done.ok:  # As the guest named it: it may be the user's own.
            return TurnResult(failed(run, problem).status, error=sanitize_error(done.error), partial=partial_text(run))
        return failed(run, problem)


def _without_a_word(run: Run, gone: Exit) -> TurnResult:
    how = classify_exit(gone)
    return _ended(run, how.status, how.kind, how.message)


def _ended(run: Run, status: Status, kind: str, message: str) -> TurnResult:
    return TurnResult(status, error=ErrorInfo(type=kind, message=message), partial=partial_text(run))


async def _synced(box: Sandbox) -> RametError | None:
    """Have what it left on this side, or say why not."""
    try:
        await box.sync()
    except RametError as problem:
        return problem
    return None


async def _collect(run: Run) -> tuple[tuple[Any, ...], RametError | None]:
    """The files that it left, or why they were not taken."""
    folder, grant = run.folder, run.grant
    assert folder is not None, "who works inside has a folder"
    assert grant is not None, "who works inside has a grant"
    try:
        if _is_empty(folder.workspace):
            return (), None
        found = await asyncio.to_thread(collect, folder.workspace, folder.artifacts, max_bytes=grant.max_output_bytes)
    except RametError as refused:
        return (), refused
    forms = secret_forms(run)
    told = [each for each in found.artifacts if masked(each.name, forms) != each.name]
    await asyncio.to_thread(_remove, told)  # Its name would be on record.
    for name in (*found.refused, *(each.name for each in told)):
        run.context.emit(Notice, text=f"an artifact was refused: {masked_text(run, name)}")
    return tuple(each for each in found.artifacts if each not in told), None


def _remove(artifacts: Sequence[Artifact]) -> None:
    for each in artifacts:
        if each.path is not None:
            Path(each.path).unlink(missing_ok=True)


def _is_empty(workspace: Path) -> bool:
    """Whether it left nothing, which is most often so; a folder that cannot be read may hold anything."""
    try:
        with os.scandir(workspace) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _returns(run: Run) -> Any:
    """The type of the result, as the host's own code says it."""
    if run.request.returns is not None or run.agent.function is None:
        return run.request.returns
    try:
        return typing.get_type_hints(run.agent.function).get("return")
    except Exception:  # an annotation that cannot be resolved here names no type
        return None
