"""The interpreter of a code agent: executes pieces of Python in one namespace, each with a bounded answer.

The code runs in a thread of its own (`ramet.guest.worker`), never on the guest's event loop. Its names live as long as
the process, which is as long as the turn. Nothing here confines the code. The import hook defines the intended modules
(`ramet.guest.namespace`); the sandbox around the process limits what it can reach.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import linecache
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from ramet.guest.captured_output import CapturedOutput, Streams
from ramet.guest.worker import Worker
from ramet.tools.context import CodeResult
from ramet.wire.error_codec import clean, message_of

#: Characters of a shown value, and of a traceback; a longer text keeps its beginning and its end.
MAX_SHOWN = 256 * 1024
#: Number of frames of a traceback, the innermost.
MAX_FRAMES = 30
#: Seconds that interrupted code has to stop, and seconds between its interrupts.
STOP_S, AGAIN_S = 2.0, 0.1

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Concluded(BaseException):
    """Raised to end the code that concluded its task; not an error."""


class Interpreter:
    """An implementation of `ramet.tools.context.Interpreter`.

    It is created in the guest's event loop; calls come one at a time.
    """

    def __init__(self, prepare: Callable[[], Mapping[str, Any]] = dict, *, note: str = "") -> None:
        """Store the settings.

        `prepare` returns the first names of a namespace, by imports; `note` precedes the first answer.
        """
        self._prepare, self._note = prepare, note
        self._streams = Streams()
        self._worker: Worker | None = None
        self._module = types.ModuleType("__main__")
        self._main_before = sys.modules.get("__main__")
        self._count = 0
        self._waits, self._waited_s, self._wait_began = 0, 0.0, 0.0
        self._wait_lock = threading.Lock()

    async def open(self) -> None:
        """Start: bind the first names.

        Raises as `prepare` does.
        """
        worker = Worker()
        try:
            module = await worker.submit(self._namespace)
        except BaseException:
            worker.close()
            raise
        if isinstance(module, Exception):
            worker.close()
            raise module
        self._worker, self._module = worker, module
        sys.modules["__main__"] = module  # As in a program: code that looks up a definition's module finds its names.

    def close(self) -> None:
        """Stop the code, as far as a thread can be stopped."""
        if self._worker is not None:
            self._worker.interrupt()
            self._worker.close()
            self._worker = None
        self._streams.close()
        if self._main_before is not None:
            sys.modules["__main__"] = self._main_before

    async def run(self, code: str, *, timeout_s: float) -> CodeResult:
        """Run a piece of code.

        Code that takes too long is interrupted. Code that cannot be interrupted is left behind, and the answer says so.
        """
        if self._worker is None:
            await self.open()
        assert self._worker is not None, "it has begun"
        worker, output = self._worker, CapturedOutput()
        note, self._note = self._note, ""
        self._count += 1
        name = f"<python {self._count}>"
        future = worker.submit(lambda: self._execute(worker, code, name, output))
        try:
            if await self._wait_until(future, timeout_s):
                result: CodeResult = future.result()
            else:
                result = CodeResult(_join(output.text(), await self._stop(worker, future, timeout_s)), ok=False)
        except asyncio.CancelledError:
            worker.interrupt()
            raise
        except MemoryError:
            result = CodeResult("MemoryError: no memory was left to say where", ok=False)
        return CodeResult(_join(note, result.text), result.ok)

    def waiting(self) -> _Waiting:
        """Return a context in which code waits for another agent; that time is not counted."""
        return _Waiting(self)

    # ---- time

    async def _wait_until(self, future: asyncio.Future[Any], timeout_s: float) -> bool:
        started_at, waited_before = time.monotonic(), self._waited_seconds()
        while True:
            remaining_s = timeout_s - (time.monotonic() - started_at) + (self._waited_seconds() - waited_before)
            if remaining_s <= 0 or future.done():
                return future.done()
            await asyncio.wait((future,), timeout=max(remaining_s, 0.05))

    def _waited_seconds(self) -> float:
        with self._wait_lock:
            return self._waited_s + (time.monotonic() - self._wait_began if self._waits else 0.0)

    async def _stop(self, worker: Worker, future: asyncio.Future[Any], timeout_s: float) -> str:
        """Interrupt the current code, and return a text about the outcome."""
        for _ in range(round(STOP_S / AGAIN_S)):
            worker.interrupt()
            await asyncio.wait((future,), timeout=AGAIN_S)
            if future.done():
                future.exception()
                return f"[stopped after {timeout_s:g} s; the names it had set until then are kept]"
        self._streams.exempt.add(worker.thread.ident or 0)
        worker.close()
        self._worker = None
        self._note = "[this is a new namespace: earlier code could not be stopped, and its names are lost]"
        return (
            f"[not done after {timeout_s:g} s, and it cannot be stopped: it continues in its own thread until this "
            "turn ends, and its result is lost. The next call begins with a new namespace]"
        )

    # ---- in the worker's thread

    def _namespace(self) -> types.ModuleType | Exception:
        module = types.ModuleType("__main__")
        try:
            module.__dict__.update(self._prepare())
        except Exception as problem:  # The waiter receives it with its own type.
            return problem
        module.__dict__.setdefault("__builtins__", builtins)
        return module

    def _execute(self, worker: Worker, code: str, name: str, output: CapturedOutput) -> CodeResult:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        threads_before = set(threading.enumerate())
        with self._streams.capture(output):
            try:
                result_text, ok = self._value_of(worker, code, name), True
            except Concluded as conclusion:
                result_text, ok = str(conclusion), True
            except BaseException as error:
                result_text, ok = _format_error(error), False
        leftover_threads = [each for each in threading.enumerate() if each not in threads_before and each.is_alive()]
        note = (
            f"[threads that this code started and that still run: {len(leftover_threads)}]" if leftover_threads else ""
        )
        return CodeResult(_join(output.text(), result_text, note) or "(no output)", ok)

    def _value_of(self, worker: Worker, code: str, name: str) -> str:
        """Run the code; return the value of a last expression as shown text."""
        tree = compile(code, name, "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
        last_expression = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(worker, compile(tree, name, "exec", _FLAGS, dont_inherit=True))
        if not isinstance(last_expression, ast.Expr):
            return ""
        expression = ast.Expression(last_expression.value)
        value = self._evaluate(worker, compile(expression, name, "eval", _FLAGS, dont_inherit=True))
        return "" if value is None else _clip(repr(value))

    def _evaluate(self, worker: Worker, code: types.CodeType) -> Any:
        value = eval(code, self._module.__dict__)
        return worker.until_complete(value) if code.co_flags & inspect.CO_COROUTINE else value


class _Waiting:
    """A context that excludes waiting, or several concurrent waits, from the time of the code."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def __enter__(self) -> None:
        of = self._interpreter
        with of._wait_lock:
            of._waits += 1
            if of._waits == 1:
                of._wait_began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        of = self._interpreter
        with of._wait_lock:
            of._waits -= 1
            if not of._waits:
                of._waited_s += time.monotonic() - of._wait_began


def _format_error(error: BaseException) -> str:
    """Return the traceback of the code itself, without the frames of other modules; never fails."""
    try:
        report = traceback.TracebackException.from_exception(error, limit=-1000, compact=True)
        _keep_own_frames(report)
        text = "".join(report.format()).rstrip("\n")
    except BaseException:  # an error that fails when it is inspected, or no memory to format it
        text = f"{type(error).__name__}: {message_of(error)}"
    if isinstance(error, SystemExit):
        text += "\n[it ended this call, not the agent]"
    return _clip(text)


def _keep_own_frames(report: traceback.TracebackException, depth: int = 0) -> None:
    report.stack[:] = [each for each in report.stack if each.filename.startswith("<python ")][-MAX_FRAMES:]
    related_reports = [report.__cause__, report.__context__, *(report.exceptions or ())]
    for each in related_reports:
        if each is not None and depth < MAX_FRAMES:
            _keep_own_frames(each, depth + 1)


def _clip(text: str) -> str:
    text = clean(text)
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]}\n… [{len(text) - 2 * half} characters left out here] …\n{text[-half:]}"


def _join(*parts: str) -> str:
    return "\n".join(part.rstrip("\n") for part in parts if part)
