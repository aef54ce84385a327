"""`ramet wrap`: a program of the user, at the terminal of the user, in a sandbox and under a budget."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from argparse import Namespace
from typing import NamedTuple

from ramet.agent.definition import Agent
from ramet.agent.external.external import PRESETS
from ramet.cli.errors import set_up_logging
from ramet.cli.paths import user_dir
from ramet.cli.project import open_project
from ramet.cli.render.console import print_note
from ramet.cli.signals import Interrupts
from ramet.cli.wrap.streams import Streams, open_streams
from ramet.cli.wrap.usage_line import Observations, usage_line
from ramet.cli.wrap.wrap_policy import policy_of
from ramet.cli.wrap.wrapped_programs import WrappedProgram, program_of
from ramet.core.errors import StoreInUse
from ramet.core.ids import checked_name, safe_name
from ramet.core.limits import Limits
from ramet.core.outcome import EXIT_CODES, Result, Status
from ramet.core.policy.policy import Policy
from ramet.guest.terminal.wrapped_program import run_wrapped
from ramet.host.journal.subscription import listen
from ramet.host.runtime import AgentRuntime
from ramet.spawn.handle import Handle


class _Ended(NamedTuple):
    run: str
    result: Result
    observations: Observations


def wrap(options: Namespace) -> int:
    """Run a program to its end and return its exit status; see `exit_status` for others."""
    set_up_logging()
    program = program_of(options.program, options.dir, model=options.model, with_tools=options.with_tools)
    name = safe_name(program.name, "program") if options.name is None else checked_name("--name", options.name)
    policy = policy_of(options, program)
    with open_streams() as streams:
        ended = asyncio.run(_run(options, program, name, policy, streams))
    status = exit_status(ended.result, is_refused=bool(ended.observations.exhausted_limits))
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        print(usage_line(name, ended.run, ended.result, status, ended.observations), file=sys.stderr, flush=True)
    return status


def exit_status(result: Result, *, is_refused: bool) -> int:
    """Return the exit status of a result.

    It is that of the program, except where the program failed after a limit had refused a request: then it is the
    status of a budget that is used up. A run that did not complete has the status of its outcome.
    """
    if result.status is not Status.COMPLETED:
        return result.exit_code
    status = result.value & 0xFF if isinstance(result.value, int) else 1
    return EXIT_CODES[Status.BUDGET_EXHAUSTED] if status and is_refused else status


async def _run(options: Namespace, program: WrappedProgram, name: str, policy: Policy, streams: Streams) -> _Ended:
    runtime = await _open_runtime(options)
    async with runtime:
        handle = await runtime.spawn(
            Agent(name=name, function=run_wrapped),
            args=(list(program.command), dict(program.env), dict(program.files), str(options.dir), options.with_tools),
            agents=_agents(options) if options.with_tools else None,
            policy=policy,
            cwd=options.dir,
            limits=Limits(usd=options.usd, model_calls=options.model_calls, seconds=options.timeout),
            returns=int,
            repeatable=False,  # The next kernel has another terminal.
            stdio=streams.stdio,
        )
        observations = Observations()
        listen(runtime.trees[handle.run.info.root].recorder, observations.take)
        result = await _wait(handle, streams)
    return _Ended(handle.id, result, observations)


def _agents(options: Namespace) -> dict[str, Agent]:
    """Return the agents that the program may start: those of its folder, and the known programs."""
    programs = {
        name: Agent(name=name, description=f"{name}, in a sandbox of its own", external=name) for name in PRESETS
    }
    return {**programs, **open_project(options.dir)}


async def _wait(handle: Handle, streams: Streams) -> Result:
    """Return the result of a run; a signal, or the end of the terminal, stops the run."""
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[object]] = []
    is_over = False

    def stop(reason: str) -> None:
        if not stopping and not is_over:
            stopping.append(loop.create_task(handle.cancel(reason), name="ramet stop"))

    def stop_soon(reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended: so has the run.
            loop.call_soon_threadsafe(stop, reason)

    with Interrupts(stop_soon, streams.restore):
        streams.start(lambda: stop_soon("the terminal closed"))
        result = await handle.result()
        is_over = True
        for each in stopping:
            await each
        await asyncio.to_thread(streams.finish)
    return result


async def _open_runtime(options: Namespace) -> AgentRuntime:
    """Return a runtime with the journal of the folder; with none, and a remark, where another kernel has it."""
    runtime = AgentRuntime(options.dir, user_dir=user_dir(), backend=options.backend)
    try:
        await runtime.open_store()
    except StoreInUse as problem:
        await runtime.stop()
        print_note(f"{problem}: this run is not recorded, and ramet ps does not list it")
        return AgentRuntime(user_dir=user_dir(), backend=options.backend)
    return runtime
