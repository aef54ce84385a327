"""`ramet resume`: trees that another process left go on in this one. Results go to stdout, other output to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ramet.cli.ask.facts import AskFacts, ask_facts, resume_options
from ramet.cli.errors import FAILURE, ambiguous_prefix, print_error, set_up_logging
from ramet.cli.operate.pause import run_pause_command
from ramet.cli.paths import user_dir
from ramet.cli.pauses.amounts import amounts
from ramet.cli.pauses.handler import PauseHandler
from ramet.cli.pauses.leaving import leave_process, print_commands
from ramet.cli.pauses.raising import RaiseAtResume
from ramet.cli.project import home_folder
from ramet.cli.render.approvals import Questions
from ramet.cli.render.console import console, print_note
from ramet.cli.render.report import print_result
from ramet.cli.render.views import View
from ramet.cli.run import WatchedTree, make_importable, print_value, wait_for_all
from ramet.cli.sources.choose import SERVER
from ramet.cli.values import parse_folder
from ramet.core.errors import DamagedTree, DefinitionMissing, InvalidValue, Unknown
from ramet.core.events import Event
from ramet.core.lifecycle import State
from ramet.core.limits import Limits
from ramet.core.outcome import Result, Status
from ramet.host.control.run_queries import journal_in, kernel_of
from ramet.host.journal.journal import TREES, Journal
from ramet.host.recovery.resume import ResumeOptions, UnfinishedTree, unfinished_trees
from ramet.host.runtime import AgentRuntime
from ramet.host.trees.exhausted_limits import exhausted_limits
from ramet.host.trees.factory import OpenTree
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.run_results import paused_result
from ramet.spawn.run import Run


def resume(options: Namespace) -> int:
    """Resume unfinished trees; return the worst of the exit statuses, 1 if one could not be resumed."""
    fields: dict[str, Any] = amounts(options)
    if _has_kernel(options):
        if fields:
            raise InvalidValue(f"--{next(iter(fields))}", options.id, "ramet raise: a kernel has this tree")
        return asyncio.run(run_pause_command(options))
    options.dir = options.dir or parse_folder(".")
    if fields and options.id is None:
        raise InvalidValue("ID", None, "with an amount, the run whose limit is raised")
    journal_in(options.dir)
    set_up_logging()
    make_importable(options.dir)
    return asyncio.run(_resume(options, Limits(**fields)))


def _has_kernel(options: Namespace) -> bool:
    """Return whether a kernel has what is to go on; without a name or --all, trees go on in this process."""
    if options.server is not None or options.all:
        return True
    if options.id is None:
        return False
    if options.dir is None and os.environ.get(SERVER, "").strip():
        return True
    return kernel_of(journal_in(options.dir or parse_folder("."))) is not None


async def _resume(options: Namespace, add: Limits) -> int:
    async with AsyncExitStack() as stack:
        resumption = Resumption(options, stack)
        with contextlib.redirect_stdout(sys.stderr):
            problems = await resumption.start(add)
            await resumption.wait()
        if any(tree.is_paused for tree in resumption.trees):
            await resumption.close_finished()
            await resumption.leave(_report(resumption.trees, problems, options))
    return _report(resumption.trees, problems, options)


def _report(trees: Sequence[ResumedTree], problems: Sequence[str], options: Namespace) -> int:
    """Print the results and the problems; return the exit status."""
    for tree in trees:
        _print(tree, options)
    for problem in problems:
        print_error(problem)
    if not trees and not problems:
        print_note("nothing to resume here" if options.id is None else f"nothing to resume of {options.id}")
    return FAILURE if problems else max((tree.final_result.exit_code for tree in trees), default=0)


@dataclass(kw_only=True, eq=False)
class ResumedTree:
    """A tree that goes on in this process."""

    handle: Handle
    watched: WatchedTree
    runtime: AgentRuntime
    facts: AskFacts | None  #: of a tree of `ramet ask`
    handler: PauseHandler
    result: Result | None = None

    @property
    def open_tree(self) -> OpenTree:
        """The tree with its parts."""
        return self.watched.open_tree

    @property
    def final_result(self) -> Result:
        """The result, or that of a pause, which is not final."""
        if self.result is not None:
            return self.result
        return paused_result(self.handle.run, self.open_tree.tree.register.living())

    @property
    def is_paused(self) -> bool:
        """Return whether the tree is left to another process."""
        return self.result is None


class Resumption:
    """The trees that one command resumes, each in the runtime that it needs; all runtimes share the journal."""

    def __init__(self, options: Namespace, stack: AsyncExitStack) -> None:
        self._options, self._stack = options, stack
        self.trees = list[ResumedTree]()
        self._runtimes = dict[str | None, AgentRuntime]()  #: by the backend that a tree was begun with
        self._err = console(sys.stderr)
        self._questions: Questions | None = None
        if not options.quiet and not options.json and sys.stdin is not None and sys.stdin.isatty():
            if self._err.is_terminal:
                self._questions = Questions(self._err, View(), self._answer, sys.stdin.fileno())

    async def start(self, add: Limits) -> list[str]:
        """Resume every tree that can be resumed, and return the problems of the others."""
        runtime = await self._runtime(None)
        journal = runtime.journal
        assert journal is not None, "there is a working directory"
        await journal.open()
        root, run = (None, "") if self._options.id is None else await _find(journal, self._options.id)
        damaged_trees = list[DamagedTree]()
        trees = await unfinished_trees(journal, on_damaged=damaged_trees.append)
        problems = [str(each) for each in damaged_trees if root in (None, each.tree)]
        for tree in trees:
            if root is not None and tree.root != root:
                continue
            try:
                if (await tree.replay()).is_over:
                    await tree.close(runtime.clock.now())
                    continue
                await self._resume_tree(tree, run, RaiseAtResume(run, add) if add.as_data() else None)
            except DefinitionMissing as problem:
                problems.append(f"{tree.root}: {problem}")
            except DamagedTree as problem:
                problems.append(str(problem))
        return problems

    async def _resume_tree(self, tree: UnfinishedTree, run: str, raising: RaiseAtResume | None) -> None:
        facts = ask_facts(tree)
        runtime = await self._runtime(None if facts is None else facts.backend)
        asks = facts is not None and not facts.is_approved
        supplied = ResumeOptions()
        if facts is not None:
            supplied = resume_options(tree, facts, attended=self._questions is not None)
        for handle in await runtime.resume(only=tree.root, prepare=raising, **supplied):
            await self._end_pause(handle, runtime, run)
            # At once: the tree may have ended and closed after the next await.
            open_tree = runtime.trees[handle.run.info.root]
            handler = PauseHandler(self._err, self._questions, _leave_later)

            def on_event(event: Event, handler: PauseHandler = handler) -> None:
                if asks and self._questions is not None:
                    self._questions.handle_event(event)
                handler.handle_event(event)

            watched = WatchedTree(open_tree, quiet=self._options.quiet, on_event=on_event)
            self.trees.append(
                ResumedTree(handle=handle, watched=watched, runtime=runtime, facts=facts, handler=handler)
            )
        if raising is not None and raising.note:
            print_note(raising.note)

    async def _end_pause(self, root: Handle, runtime: AgentRuntime, run: str) -> None:
        """End the pause of the run that the command names; say which other runs stay paused."""
        register = runtime.trees[root.run.info.root].tree.register
        for each in list(register.living()):
            if each.pauses.reason is None:
                continue
            if each.info.id == run:
                await runtime.trees[root.run.info.root].tree.handle(each).resume()
            else:
                print_note(f"{each.path} stays paused by a person; to go on: ramet resume {each.info.id}")

    async def wait(self) -> None:
        """Wait until each tree has a result, or is paused while nobody raises its limit."""
        asking = None if self._questions is None else asyncio.create_task(self._questions.serve())
        results = {each: asyncio.create_task(_result_of(each)) for each in self.trees}
        try:
            while waiting := [each for each in self.trees if each.result is None]:
                await asyncio.gather(*(self._wait_for(each, results[each]) for each in waiting))
                left = [each for each in waiting if each.result is None]
                if self._questions is not None or all(each.open_tree.tree.register.is_paused for each in left):
                    return
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.wait({asking})

    async def _wait_for(self, tree: ResumedTree, result: asyncio.Task[Result]) -> None:
        handling = asyncio.create_task(tree.handler.serve(tree.open_tree))
        try:
            await asyncio.wait((result, handling), return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                tree.result = result.result()
            else:
                handling.result()  # Raises its error.
        finally:
            handling.cancel()
            await asyncio.wait({handling})

    async def close_finished(self) -> None:
        """Close the trees that are not paused."""
        for each in self.trees:
            if not each.is_paused:
                await each.runtime.close_tree(each.handle.run.info.root, "its work is done")

    async def leave(self, status: int) -> None:
        """End the process, and leave the paused trees to another one."""
        paused = [each for each in self.trees if each.is_paused]
        for each in paused:
            print_commands(self._err, exhausted_limits(each.open_tree.tree.register), self._options.dir)
        await leave_process(list(self._runtimes.values()), [each.open_tree for each in paused], status)

    async def _runtime(self, backend: Any) -> AgentRuntime:
        if (runtime := self._runtimes.get(backend)) is None:
            runtime = AgentRuntime(self._options.dir, user_dir=user_dir(), home=home_folder(), backend=backend)
            self._runtimes[backend] = await self._stack.enter_async_context(runtime)
        return runtime

    def _answer(self, approval_id: str, allowed: bool, reason: str) -> None:
        for each in self.trees:
            with contextlib.suppress(Unknown):
                each.open_tree.inbox.answer(approval_id, allowed, reason)


async def _leave_later(tree: OpenTree) -> None:
    """Leave a tree once the others have ended or are paused, too."""


async def _find(journal: Journal, id: str) -> tuple[str, str]:
    """Return the root and the run of an id, or of a prefix of one root's id. Raises Unknown and InvalidValue."""
    if events := await journal.store.read(run=id, limit=1):
        return events[0].tree, id
    matching = [each.key for each in await journal.store.list(TREES) if each.key.startswith(id)]
    if len(matching) > 1:
        raise InvalidValue("ID", id, ambiguous_prefix(matching))
    if not matching:
        raise Unknown("run", id)
    return matching[0], matching[0]


async def _result_of(tree: ResumedTree) -> Result:
    """Return a run's result; for a session, which does not end by itself, its last reply once all runs are idle."""
    handle, open_tree = tree.handle, tree.open_tree
    if not handle.run.persistent:
        result = await handle.result()
        await wait_for_all(open_tree)
        return result
    reader = open_tree.recorder.subscribe(past=False)
    async with aclosing(reader.items()) as items:
        while any(_has_work(run) for run in open_tree.tree.register.living()):
            if await anext(items, None) is None:
                break
    if handle.run.result is not None:
        return handle.run.result
    recorded = asyncio.get_running_loop().create_future()
    open_tree.recorder.when_durable(lambda _: recorded.set_result(None))
    await recorded  # The result of the turn comes just before.
    if tree.facts is not None and handle.run.turn_result is not None:
        return replace(handle.run.turn_result, usage_subtree=handle.run.subtree)
    assert tree.runtime.journal is not None
    replies = [
        each for each in (await tree.runtime.journal.replay(handle.id)).root.messages if each.get("type") == "ai"
    ]
    text = replies[-1].get("content", "") if replies else ""
    return Result(status=Status.COMPLETED, value=text if isinstance(text, str) else json.dumps(text))


def _has_work(run: Run) -> bool:
    """Return whether a run is active, or will be: a conversation waits for messages, also for its first one."""
    waits_for_its_first = run.persistent and run.state is State.STARTING and run.turns == 0
    return run.state is not State.IDLE and not waits_for_its_first


def _print(tree: ResumedTree, options: Namespace) -> None:
    result = tree.final_result
    if options.json:
        print_value(tree.handle.id, result, as_json=True)
    elif tree.facts is not None and result.status is not Status.PAUSED:
        print_result(console(sys.stdout), result, tree.watched.model)
        sys.stdout.flush()
    elif result.status is not Status.PAUSED:
        print_value(tree.handle.id, result, as_json=False)
    if not options.quiet or result.exit_code:
        tree.watched.finish(result)
