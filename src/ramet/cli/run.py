"""`ramet run` and `resume`: recorded runs in this process. Results go to stdout, all other output to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from ramet.cli.errors import FAILURE, ambiguous_prefix, print_error, set_up_logging
from ramet.cli.paths import user_dir
from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import console, print_note
from ramet.cli.render.report import print_status
from ramet.cli.render.sanitize import one_line
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.views import LineView
from ramet.core.errors import DamagedTree, DefinitionMissing, InvalidValue, Unknown
from ramet.core.events import Event
from ramet.core.lifecycle import State
from ramet.core.limits import Limits
from ramet.core.outcome import Result, Status
from ramet.core.policy.policy import Policy, from_json
from ramet.host.control.run_queries import journal_in
from ramet.host.journal.journal import TREES
from ramet.host.journal.subscription import listen
from ramet.host.recovery.resume import unfinished_trees
from ramet.host.runtime import AgentRuntime
from ramet.host.serialize.references import is_reference, resolve
from ramet.host.trees.factory import OpenTree
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run


def run(options: Namespace) -> int:
    """Run a function and return the exit status of its outcome."""
    set_up_logging()
    function = function_of(options.function, options.dir)
    return asyncio.run(_run(options, function, arguments(options.args), _policy(options)))


async def _run(options: Namespace, function: Callable[..., Any], args: tuple[Any, ...], policy: Policy | None) -> int:
    err = sys.stderr

    def on_output(stream: str, text: str) -> None:
        with contextlib.suppress(OSError):
            err.write(text)

    runtime = AgentRuntime(options.dir, user_dir=user_dir(), backend=options.backend)
    async with runtime:
        # Output of the function is not its result: stdout is for the result alone.
        with contextlib.redirect_stdout(err):
            handle = await runtime.spawn(
                function,
                args=args,
                policy=policy,
                cwd=options.dir,
                limits=Limits(seconds=options.timeout),
                on_output=on_output if policy is not None else None,
            )
            watched = _WatchedTree(runtime.trees[handle.run.info.root], quiet=options.quiet)
            if not options.quiet:
                print_note(f"{handle.id}: its events are shown by ramet logs {handle.id}")
            result = await handle.result()
            await _wait_for_all(watched.open_tree)
    _print(handle.id, result, as_json=options.json)
    if not options.quiet or result.exit_code:
        watched.finish(result)
    return result.exit_code


def resume(options: Namespace) -> int:
    """Resume unfinished trees; return the worst of the exit statuses, 1 if one could not be resumed."""
    journal_in(options.dir)
    set_up_logging()
    _importable(options.dir)
    return asyncio.run(_resume(options))


async def _resume(options: Namespace) -> int:
    results: list[tuple[str, Result, _WatchedTree]] = []
    async with AgentRuntime(options.dir, user_dir=user_dir()) as runtime:
        with contextlib.redirect_stdout(sys.stderr):
            resumed_trees, problems = await _resume_trees(runtime, options)
            for handle, watched_tree in resumed_trees:
                results.append((handle.id, await _result_of(runtime, handle, watched_tree.open_tree), watched_tree))
    for id, result, watched_tree in results:
        _print(id, result, as_json=options.json)
        if not options.quiet or result.exit_code:
            watched_tree.finish(result)
    for problem in problems:
        print_error(problem)
    if not results and not problems:
        note = "nothing to resume here" if options.id is None else f"nothing to resume of {options.id}"
        print_note(note)
    return FAILURE if problems else max((result.exit_code for _, result, _ in results), default=0)


async def _resume_trees(
    runtime: AgentRuntime, options: Namespace
) -> tuple[list[tuple[Handle, _WatchedTree]], list[str]]:
    """Return every tree that can be resumed, and the problems of the others, which do not prevent the resumption."""
    journal = runtime.journal
    assert journal is not None, "there is a working directory"
    await journal.open()
    root = None
    if options.id is not None:
        events = await journal.store.read(run=options.id, limit=1)
        if events:
            root = events[0].tree
        else:
            matching = [each.key for each in await journal.store.list(TREES) if each.key.startswith(options.id)]
            if len(matching) > 1:
                raise InvalidValue("ID", options.id, ambiguous_prefix(matching))
            if not matching:
                raise Unknown("run", options.id)
            root = matching[0]
    resumed_trees: list[tuple[Handle, _WatchedTree]] = []
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
            for handle in await runtime.resume(only=tree.root):
                # At once: the tree may have ended and closed after the next await.
                open_tree = runtime.trees[handle.run.info.root]
                resumed_trees.append((handle, _WatchedTree(open_tree, quiet=options.quiet)))
        except DefinitionMissing as problem:
            problems.append(f"{tree.root}: {problem}")
        except DamagedTree as problem:
            problems.append(str(problem))
    return resumed_trees, problems


async def _result_of(runtime: AgentRuntime, handle: Handle, open_tree: OpenTree) -> Result:
    """Return a run's result; for a session, which does not end by itself, its last reply once all runs are idle."""
    if not handle.run.persistent:
        result = await handle.result()
        await _wait_for_all(open_tree)
        return result
    reader = open_tree.recorder.subscribe(past=False)
    async with aclosing(reader.items()) as items:
        while any(_has_work(run) for run in open_tree.tree.register.living()):
            if await anext(items, None) is None:
                break
    if handle.run.result is not None:
        return handle.run.result
    assert runtime.journal is not None
    replies = [each for each in (await runtime.journal.replay(handle.id)).root.messages if each.get("type") == "ai"]
    text = replies[-1].get("content", "") if replies else ""
    return Result(status=Status.COMPLETED, value=text if isinstance(text, str) else json.dumps(text))


def _has_work(run: Run) -> bool:
    """Return whether a run is active, or will be: a conversation waits for messages, also for its first one."""
    waits_for_its_first = run.persistent and run.state is State.STARTING and run.turns == 0
    return run.state is not State.IDLE and not waits_for_its_first


async def _wait_for_all(open_tree: OpenTree) -> None:
    """Wait for the runs that outlive their root, too."""
    while (run := next(iter(open_tree.tree.register.living()), None)) is not None:
        await asyncio.shield(run.recorded_end())


class _WatchedTree:
    """A tree whose progress is shown on stderr."""

    def __init__(self, open_tree: OpenTree, *, quiet: bool) -> None:
        self.open_tree, self._model, self._err = open_tree, TreeModel(), console(sys.stderr)
        self._now = open_tree.tree.register.services.clock.now
        self._view = None if quiet else LineView(self._err, self._model)
        listen(open_tree.recorder, self._take)

    def finish(self, result: Result) -> None:
        """Print the outcome and the usage."""
        with contextlib.suppress(OSError):
            transcripts = self.open_tree.recorder.transcripts if self._view is not None else None
            now, is_printed = self._now(), self._view is not None  # The view has shown the root's end, with the reason.
            print_status(self._err, result, self._model, now=now, transcripts=transcripts, is_printed=is_printed)

    def _take(self, event: Event) -> None:
        self._model.apply(event)
        if self._view is not None:
            with contextlib.suppress(OSError):
                self._view.show_event(event)


def _print(id: str, result: Result, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"run": id, "result": result}, enc_hook=repr).decode())
        return
    if result.status is Status.COMPLETED and result.value is not None:
        text = text_of(result)
    else:
        text = result.partial
    if text:
        print_text(console(sys.stdout), text)
        sys.stdout.flush()


def function_of(reference: str, folder: Path) -> Callable[..., Any]:
    """Return the function of a reference, as seen from a folder.

    Raises InvalidValue with the reason if there is none.
    """
    accepted = "module:function, or path/to/script.py:function, which can be imported"
    location, _, name = reference.rpartition(":")
    if not is_reference(reference):
        raise InvalidValue("MODULE:FUNCTION", reference, accepted)
    _importable(folder)
    if location.endswith(".py"):
        reference = f"{Path(location).absolute()}:{name}"
    try:
        return resolve(reference)
    except DefinitionMissing as problem:
        cause = problem.__cause__
        reason = f" ({type(cause).__name__}: {one_line(str(cause))})" if cause is not None else ""
        raise InvalidValue("MODULE:FUNCTION", reference, accepted + reason) from None


def arguments(texts: list[str]) -> tuple[Any, ...]:
    """Return the arguments, each given as JSON. Raises InvalidValue, with the position, for invalid JSON."""
    values = []
    for number, text in enumerate(texts, start=1):
        try:
            values.append(msgspec.json.decode(text.encode("utf-8", "replace")))
        except (msgspec.DecodeError, RecursionError):
            raise InvalidValue(f"ARG {number}", text, "JSON: 3, '\"text\"', '[1, 2]'") from None
    return tuple(values)


def _policy(options: Namespace) -> Policy | None:
    """Return the requested policy; the default policy if there is only a backend."""
    text = options.policy
    if text is None:
        return Policy() if options.backend is not None else None
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise InvalidValue("--policy", text, f"a policy as JSON, or a file that contains one ({problem})") from None
    return from_json(text)


def _importable(folder: Path) -> None:
    """Make modules of the working directory importable, like `python -m` there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
