"""Run the user's hooks at defined points of a run: deny, rewrite, ask, add context, or make an agent continue.

The hooks of an event run in the order of their registration, and each sees the rewrites of the previous ones. Deny
takes precedence over ask, and ask over allow; the first deny ends the round. The meaning of "block" depends on the
event:

    PreToolUse                       the call does not run; the model gets the reason
    PermissionRequest                no one is asked, the answer is no; without a word a person decides ("ask")
    UserPromptSubmit, PreCompact     the prompt is not accepted; the history is not shortened
    TaskCreated, TaskCompleted       the task is not created, or not counted as done
    PostToolUse(Failure)             too late to undo: the verdict is deny, and the model gets its reason
    Stop, SubagentStop, TeammateIdle the verdict is "continue": the agent continues, with the reason

`{"continue": false}` stops the run (its controller is aborted) at PreToolUse, PostToolUse, PostToolUseFailure and
PermissionRequest. At Stop, SubagentStop and TeammateIdle it lets the agent stop, whatever other hooks answer. At any
other event it blocks.

A gate (PreToolUse, PermissionRequest) that cannot answer denies, with `hook_failed: …`, unless its entry has `on_error:
allow`. For any other hook the failure is recorded and ignored. Each failure is a HookFailed event.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ramet.agent.hooks.answers import HookAnswer, HookError, decision, from_command, from_value
from ramet.agent.hooks.config import EVENTS, GATES, Hook, HookConfig, HookFunction, read
from ramet.agent.hooks.config import hook as hook
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import environment, run
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, Unknown
from ramet.core.events import HookFailed, Notice
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import HookDecision
from ramet.tools.run_info import RunInfo

#: Events at which `{"continue": false}` stops the run itself.
_STOPPING_EVENTS = GATES | {"PostToolUse", "PostToolUseFailure"}
_NO_DECISION = HookDecision()
#: The variables that a command gets from our environment: enough to find programs, no keys.
PASSED_VARIABLES = tuple("PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_ALL LC_CTYPE TERM TMPDIR TZ".split())
_MAX_OUTPUT = 1 << 20  #: bytes that a command may print


class HookRunner:
    """The hooks of a session or definition. Immutable; `with_hooks` returns another runner with more hooks."""

    __slots__ = ("_by_event", "_environ", "_hooks", "_project_dir", "_transcript")

    def __init__(
        self,
        config: HookConfig = None,
        *,
        project_dir: pathlib.Path | None = None,
        transcript: Callable[[RunInfo], str | os.PathLike[str]] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Read `config` (see `ramet.agent.hooks.config.read`). Raises Unknown or InvalidValue for an invalid hook.

        `project_dir` is passed to commands, by default the run's own directory. `transcript` returns the path of a
        run's transcript. Commands get an allow-list of `environ`, by default of this process's environment.
        """
        self._project_dir = project_dir
        self._transcript = transcript
        self._environ = environ
        self._set_hooks(read(config))

    def _set_hooks(self, hooks: list[Hook]) -> None:
        self._hooks = hooks
        self._by_event: dict[str, list[Hook]] = {}
        for each in hooks:
            self._by_event.setdefault(each.event, []).append(each)

    def with_hooks(self, config: HookConfig | HookRunner, *, child: bool = False) -> HookRunner:
        """Return a runner with these hooks, then those of `config`.

        With `child`, a `Stop` of `config` means `SubagentStop`.
        """
        runner = HookRunner(project_dir=self._project_dir, transcript=self._transcript, environ=self._environ)
        runner._set_hooks(
            [*self._hooks, *(config._hooks if isinstance(config, HookRunner) else read(config, child=child))]
        )
        return runner

    def __len__(self) -> int:
        return len(self._hooks)

    def listens(self, event: str) -> bool:
        return event in self._by_event

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Run the hooks of `event` that fit `matcher` (by default the tool's name), and return the combined decision.

        Raises Aborted if the run is stopped meanwhile. In a run that was stopped before, hooks still report outcomes:
        only its gates are closed.
        """
        if event not in EVENTS:
            raise Unknown("hook event", event, EVENTS)
        value = matcher or str(payload.get("tool_name", ""))
        matching = [each for each in self._by_event.get(event, ()) if each.fits(value)]
        if not matching:
            return _NO_DECISION if event != "PermissionRequest" else HookDecision("ask")
        full_payload = {**self._identity(event, context), **payload}
        total_answer, label = HookAnswer(), ""
        for each in matching:
            hook_answer, label = await self._ask(each, context, full_payload), each.label
            if hook_answer.notice:
                context.emit(Notice, text=hook_answer.notice)
            total_answer = total_answer.combine(hook_answer)
            if hook_answer.updated_input is not None:
                full_payload["tool_input"] = hook_answer.updated_input
            if hook_answer.updated_output is not None:
                full_payload["tool_response"] = hook_answer.updated_output
            if hook_answer.is_final:
                break
        answer = decision(event, total_answer, label)
        if total_answer.verdict == "stop" and event in _STOPPING_EVENTS:
            context.abort.abort(
                f"stopped by the hook {label}" + (f": {total_answer.reason}" if total_answer.reason else "")
            )
        return answer

    async def _ask(self, hook: Hook, context: ToolUseContext, payload: dict[str, Any]) -> HookAnswer:
        """Return one hook's opinion; a failure is recorded, and handled by the hook's `on_error`."""
        abort: AbortController | None = context.abort
        if context.abort.aborted and hook.event not in GATES:
            abort = None  # It reports an end, or an action before it: bounded only by its own time limit.
        try:
            if isinstance(hook.run, str):
                with context.track_process():
                    return await self._run_command(hook, hook.run, context, payload, abort)
            result = await wait_with_timeout(
                _call(hook.run, _copy(payload)), clock=context.clock, seconds=hook.timeout_s, abort=abort
            )
            return from_value(hook.event, result)
        except TimeoutError as error:
            reason = str(error) or f"not done within {hook.timeout_s:g} s"
        except HookError as error:
            reason = str(error)
        except Exception as error:
            if isinstance(error, Aborted) and abort is not None and abort.aborted:
                raise
            reason = f"{type(error).__name__}: {error}"
        reason = reason[:1_000]
        call_id = payload.get("tool_use_id")
        context.emit(HookFailed, hook=hook.label, event=hook.event, reason=reason, call_id=call_id)
        if hook.on_error == "deny":
            return HookAnswer("deny", f"hook_failed: {hook.label}: {reason}")
        return HookAnswer()

    async def _run_command(
        self, hook: Hook, command: str, context: ToolUseContext, payload: dict[str, Any], abort: AbortController | None
    ) -> HookAnswer:
        """Run a command: the payload as JSON on stdin, the answer from exit status, stdout and stderr.

        No process that the command started is left. Raises HookError if it gives no valid answer, TimeoutError, and
        Aborted.
        """
        env = environment(PASSED_VARIABLES, os.environ if self._environ is None else self._environ)
        env["CLAUDE_PROJECT_DIR"] = env["RAMET_PROJECT_DIR"] = os.fspath(self._project_dir or context.cwd)
        try:
            payload_json = json.dumps(payload, default=str, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise HookError(f"the payload is no JSON: {error}") from None
        stdout, stderr = Capture(head=_MAX_OUTPUT), Capture(head=_MAX_OUTPUT)
        try:
            result = await run(
                ["/bin/sh", "-c", command],
                clock=context.clock,
                timeout_s=hook.timeout_s,
                cwd=context.cwd,
                env=env,
                stdin=payload_json,
                stdout=stdout,
                stderr=stderr,
                abort=abort,
                grace_s=0,
            )
        except OSError as error:
            raise HookError(f"it could not be started: {error}") from None
        if result.reason == "timeout":
            raise TimeoutError(f"not done within {hook.timeout_s:g} s")
        if result.code == 0 and (stdout.omitted_bytes or stderr.omitted_bytes):
            raise HookError("it printed more than an answer may contain")
        return from_command(hook.event, result.code, stdout.data(), stderr.data())

    def _identity(self, event: str, context: ToolUseContext) -> dict[str, Any]:
        """Return the fields of every payload: the run of the event, and the path of its transcript."""
        run = context.run
        team_fields = {"teammate_name": run.path.rpartition("/")[2], "team_name": run.session or run.root}
        return {
            **(team_fields if event == "TeammateIdle" else {}),
            "hook_event_name": event,
            "session_id": run.session or run.root,
            "transcript_path": os.fspath(self._transcript(run)) if self._transcript is not None else "",
            "cwd": os.fspath(context.cwd),
            "permission_mode": context.permissions.prevailing_mode(),
            "agent_id": run.id,
            "agent_type": run.agent,
            "agent_path": run.path,
            "parent_agent_id": run.parent,
            "depth": run.depth,
            "root_id": run.root,
        }


async def _call(function: HookFunction, payload: dict[str, Any]) -> Any:
    """Call a function: in the loop if it is async, otherwise in a thread, so that blocking affects nothing else."""
    try:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method itself is wanted: it may be async
            return await function(payload)
        result = await in_thread(lambda: function(payload), name="ramet-hook")
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # These would end the event loop.
        raise HookError(f"it raised {error!r}") from None


def _copy(value: Any) -> Any:
    """Return a copy of the payload for one function: a change in place is no rewrite."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy(each) for each in value]
    return value
