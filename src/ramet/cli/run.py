"""`ramet run`: a recorded run in this process. Its result goes to stdout, all other output to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ramet.cli.errors import set_up_logging
from ramet.cli.paths import user_dir
from ramet.cli.render.answer import print_text, text_of
from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.report import print_status
from ramet.cli.render.sanitize import one_line
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.render.views import LineView
from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.core.events import Event
from ramet.core.limits import Limits
from ramet.core.outcome import Result, Status, value_json
from ramet.core.policy.policy import Policy, from_json
from ramet.host.journal.subscription import listen
from ramet.host.runtime import AgentRuntime
from ramet.host.serialize.references import is_reference, resolve
from ramet.host.trees.factory import OpenTree


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
            watched = WatchedTree(runtime.trees[handle.run.info.root], quiet=options.quiet)
            if not options.quiet:
                print_note(f"{handle.id}: its events are shown by ramet logs {handle.id}")
            result = await handle.result()
            await wait_for_all(watched.open_tree)
    print_value(handle.id, result, as_json=options.json)
    if not options.quiet or result.exit_code:
        watched.finish(result)
    return result.exit_code


async def wait_for_all(open_tree: OpenTree) -> None:
    """Wait for the runs that outlive their root, too."""
    while (run := next(iter(open_tree.tree.register.living()), None)) is not None:
        await asyncio.shield(run.recorded_end())


class WatchedTree:
    """A tree whose progress is shown on stderr. `on_event` is called with each event after it was shown."""

    def __init__(
        self, open_tree: OpenTree, *, quiet: bool, on_event: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.open_tree, self.model, self._err = open_tree, TreeModel(), console(sys.stderr)
        self._now, self._on_event = open_tree.tree.register.services.clock.now, on_event
        self._view = None if quiet else LineView(self._err, self.model)
        listen(open_tree.recorder, self._take)

    def finish(self, result: Result) -> None:
        """Print the outcome and the usage."""
        with contextlib.suppress(OSError):
            transcripts = self.open_tree.recorder.transcripts if self._view is not None else None
            root = self.model.root
            # The view has shown the root's end, with the reason, if it was recorded; a paused root has not ended.
            is_printed = self._view is not None and root is not None and root.result is not None
            now = self._now()
            print_status(self._err, result, self.model, now=now, transcripts=transcripts, is_printed=is_printed)

    def _take(self, event: Event) -> None:
        self.model.apply(event)
        if self._view is not None:
            with contextlib.suppress(OSError):
                self._view.show_event(event)
        self._on_event(event)


def print_value(id: str, result: Result, *, as_json: bool) -> None:
    if as_json:
        print_json(value_json({"run": id, "result": result}))
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
    make_importable(folder)
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
    if options.policy is None:
        return Policy() if options.backend is not None else None
    return read_policy(options.policy)


def read_policy(text: str) -> Policy:
    """Return the policy of an option: JSON, or the path of a file that contains it. Raises InvalidValue."""
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise InvalidValue("--policy", text, f"a policy as JSON, or a file that contains one ({problem})") from None
    return from_json(text)


def make_importable(folder: Path) -> None:
    """Make modules of the working directory importable, like `python -m` there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
