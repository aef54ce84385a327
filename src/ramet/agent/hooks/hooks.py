"""The user's own word at the turning points of a run: veto, rewrite, ask, add context, make an agent go on.

The hooks of an event run in the order of their registration, each seeing what the one before rewrote. Deny goes before
ask, ask before allow; the first deny ends the round. What "block" means depends on the event:

    PreToolUse                       the call does not run; the model is told the reason
    PermissionRequest                nobody is asked, the answer is no; without a word a person decides ("ask")
    UserPromptSubmit, PreCompact     the prompt is not taken in; the history is not shortened
    TaskCreated, TaskCompleted       the task is not created, not counted as done
    PostToolUse(Failure)             too late to undo: the verdict is deny, its reason goes to the model
    Stop, SubagentStop, TeammateIdle the verdict is "continue": the agent goes on, with the reason

`{"continue": false}` stops the run (its controller is aborted) where it is at work: PreToolUse, PostToolUse,
PostToolUseFailure and PermissionRequest. At Stop, SubagentStop and TeammateIdle it lets the agent stop, whatever other
hooks say; elsewhere it blocks.

A gate (PreToolUse, PermissionRequest) that cannot answer denies, as `hook_failed: …`, unless its entry says
`on_error: allow`; any other hook that cannot answer is recorded and passed over. Each failure is a HookFailed event.
"""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ramet.agent.hooks.answers import HookAnswer, HookError, decision, from_value
from ramet.agent.hooks.commands import run_command
from ramet.agent.hooks.config import EVENTS, GATES, Hook, HookConfig, HookFunction, read
from ramet.agent.hooks.config import hook as hook
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, Unknown
from ramet.core.events import HookFailed, Notice
from ramet.tools.context import HookDecision, RunInfo, ToolUseContext

#: `{"continue": false}` at these stops the run itself.
_AT_WORK = GATES | {"PostToolUse", "PostToolUseFailure"}
_NO_WORD = HookDecision()


class HookRunner:
    """All hooks of a session or definition. Immutable; `extended` makes another with more."""

    __slots__ = ("_by_event", "_environ", "_hooks", "_project_dir", "_transcript")

    def __init__(
        self,
        config: HookConfig = None,
        *,
        project_dir: pathlib.Path | None = None,
        transcript: Callable[[RunInfo], str | os.PathLike[str]] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Read `config` (see `hook_config.read`); raises Unknown or InvalidValue for what is not a hook.

        `project_dir` is told to commands, by default the run's own directory; `transcript` says where a run's is kept;
        commands see an allow-list of `environ`, by default of this process's environment.
        """
        self._project_dir = project_dir
        self._transcript = transcript
        self._environ = environ
        self._take(read(config))

    def _take(self, hooks: list[Hook]) -> None:
        self._hooks = hooks
        self._by_event: dict[str, list[Hook]] = {}
        for each in hooks:
            self._by_event.setdefault(each.event, []).append(each)

    def extended(self, config: HookConfig | HookRunner, *, child: bool = False) -> HookRunner:
        """These hooks, then those of `config`. With `child`, a `Stop` of `config` means `SubagentStop`."""
        more = HookRunner(project_dir=self._project_dir, transcript=self._transcript, environ=self._environ)
        more._take([*self._hooks, *(config._hooks if isinstance(config, HookRunner) else read(config, child=child))])
        return more

    def __len__(self) -> int:
        return len(self._hooks)

    def listens(self, event: str) -> bool:
        """Whether anything is registered for `event`."""
        return event in self._by_event

    async def fire(
        self, event: str, context: ToolUseContext, payload: dict[str, Any], *, matcher: str = ""
    ) -> HookDecision:
        """Ask the hooks of `event` that fit `matcher` (the tool's name, if there is none) and merge what they say.

        Raises Aborted if the run is stopped meanwhile. A run that was stopped before can still tell what became of it:
        only its gates are closed then.
        """
        if event not in EVENTS:
            raise Unknown("hook event", event, EVENTS)
        value = matcher or str(payload.get("tool_name", ""))
        chosen = [each for each in self._by_event.get(event, ()) if each.fits(value)]
        if not chosen:
            return _NO_WORD if event != "PermissionRequest" else HookDecision("ask")
        asked = {**self._identity(event, context), **payload}
        so_far, label = HookAnswer(), ""
        for each in chosen:
            opinion, label = await self._ask(each, context, asked), each.label
            if opinion.notice:
                context.emit(Notice, text=opinion.notice)
            so_far = so_far.then(opinion)
            if opinion.updated_input is not None:
                asked["tool_input"] = opinion.updated_input
            if opinion.updated_output is not None:
                asked["tool_response"] = opinion.updated_output
            if opinion.final:
                break
        answer = decision(event, so_far, label)
        if so_far.word == "stop" and event in _AT_WORK:
            context.abort.abort(f"stopped by the hook {label}" + (f": {so_far.reason}" if so_far.reason else ""))
        return answer

    async def _ask(self, hook: Hook, context: ToolUseContext, asked: dict[str, Any]) -> HookAnswer:
        """One hook's opinion; a failure is recorded, and means what the hook's entry says."""
        abort: AbortController | None = context.abort
        if context.abort.aborted and hook.event not in GATES:
            abort = None  # It tells of an end, or of what was done before it: bounded by its own time only.
        try:
            if isinstance(hook.run, str):
                with context.holding_process():
                    return await run_command(
                        hook.run,
                        hook.event,
                        asked,
                        cwd=context.cwd,
                        project_dir=self._project_dir or context.cwd,
                        timeout_s=hook.timeout_s,
                        clock=context.clock,
                        abort=abort,
                        environ=os.environ if self._environ is None else self._environ,
                    )
            returned = await wait_with_timeout(
                _call(hook.run, _copied(asked)), clock=context.clock, seconds=hook.timeout_s, abort=abort
            )
            return from_value(hook.event, returned)
        except TimeoutError as error:
            reason = str(error) or f"not done within {hook.timeout_s:g} s"
        except HookError as broken:
            reason = str(broken)
        except Exception as error:
            if isinstance(error, Aborted) and abort is not None and abort.aborted:
                raise
            reason = f"{type(error).__name__}: {error}"
        reason = reason[:1_000]
        call_id = asked.get("tool_use_id")
        context.emit(HookFailed, hook=hook.label, event=hook.event, reason=reason, call_id=call_id)
        if hook.on_error == "deny":
            return HookAnswer("deny", f"hook_failed: {hook.label}: {reason}")
        return HookAnswer()

    def _identity(self, event: str, context: ToolUseContext) -> dict[str, Any]:
        """What every payload says: whose event it is, and where its record is."""
        run = context.run
        of_team = {"teammate_name": run.path.rpartition("/")[2], "team_name": run.session or run.root}
        return {
            **(of_team if event == "TeammateIdle" else {}),
            "hook_event_name": event,
            "session_id": run.session or run.root,
            "transcript_path": os.fspath(self._transcript(run)) if self._transcript is not None else "",
            "cwd": os.fspath(context.cwd),
            "agent_id": run.id,
            "agent_type": run.agent,
            "agent_path": run.path,
            "parent_agent_id": run.parent,
            "depth": run.depth,
            "root_id": run.root,
        }


async def _call(function: HookFunction, payload: dict[str, Any]) -> Any:
    """Ask a function: in the loop if it is async, else in a thread, so that one that blocks stops nobody else."""
    try:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method itself is wanted: it may be async
            return await function(payload)
        returned = await in_thread(lambda: function(payload), name="ramet-hook")
        return await returned if inspect.isawaitable(returned) else returned
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # These would end the event loop.
        raise HookError(f"it raised {error!r}") from None


def _copied(value: Any) -> Any:
    """The payload for one function: changing it in place is no rewrite."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value
