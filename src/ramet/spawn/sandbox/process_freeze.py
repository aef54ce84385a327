"""The freezing of a process whose run is paused: a function, a program, or code of an agent cannot be given up."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable

from ramet.core.errors import Gone, RametError
from ramet.core.events import SandboxFrozen
from ramet.core.lifecycle import TERMINAL_STATES, State
from ramet.isolation.contract import FreezableSandbox, Sandbox
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel
from ramet.tools.context import CurrentCall, current_call

_log = logging.getLogger("ramet.sandbox")


class ProcessFreeze:
    """Keeps the process of one run frozen while the run is paused, from `start` to `close`.

    A run that is stopped while it is frozen stays so: its process is killed, and does nothing before.
    """

    def __init__(self, run: Run, sandbox: Sandbox, channel: GuestChannel, will_give_up: Callable[[], bool]) -> None:
        """`will_give_up` returns whether the process is about to be ended because its run is paused."""
        self._run, self._sandbox, self._channel, self._will_give_up = run, sandbox, channel, will_give_up
        self._task: asyncio.Task[None] | None = None
        self._can_freeze = isinstance(sandbox, FreezableSandbox)

    def start(self) -> None:
        """Follow the state of the run from now on. The process is not frozen yet."""
        self._run.sandbox.on_state = self.update
        self.update()

    def update(self) -> None:
        """Freeze or thaw the process, as the state of the run and the process need. Does not wait."""
        if self._can_freeze and self._task is None and self._is_wanted() is not self._run.sandbox.is_frozen:
            self._task = self._channel.run_concurrently(self._apply())

    def close(self) -> None:
        """Follow the state of the run no longer. A frozen process stays so until it is killed. Idempotent."""
        self._run.sandbox.on_state, self._can_freeze = None, False
        self._set_frozen(False)

    def _is_wanted(self) -> bool:
        state = self._run.state
        if state is State.STOPPING or state in TERMINAL_STATES:
            return self._run.sandbox.is_frozen
        return state is State.PAUSED and not self._will_give_up()

    async def _apply(self) -> None:
        sandbox, run = self._sandbox, self._run
        assert isinstance(sandbox, FreezableSandbox), "only such a sandbox is frozen"
        try:
            while self._can_freeze and (is_wanted := self._is_wanted()) is not run.sandbox.is_frozen:
                if not is_wanted:
                    self._set_frozen(False)  # Before its time goes on, and before it can write.
                    await sandbox.thaw()
                elif await sandbox.freeze():
                    self._set_frozen(True)
                    await self._record()
                else:
                    self._can_freeze = False
        except Gone:
            pass  # It has ended; its turn reports how.
        except Exception as problem:  # A process that works on is better than a run that ends.
            _log.warning("%s could not be frozen or thawed: %s", run.path, problem)
        finally:
            self._task = None

    async def _record(self) -> None:
        """Record the memory that the process holds meanwhile."""
        memory_mb = 0.0
        with contextlib.suppress(RametError):
            memory_mb = round((await self._sandbox.metrics()).memory_mb, 1)
        if self._run.state is State.PAUSED:
            self._run.context.emit(SandboxFrozen, memory_mb=memory_mb)

    def _set_frozen(self, is_frozen: bool) -> None:
        if self._run.sandbox.is_frozen is not is_frozen:
            self._run.sandbox.is_frozen = is_frozen
            self._channel.set_frozen(is_frozen)
            self._run.sandbox.on_process_change()


class FunctionPause:
    """Pauses a function with its run: its process stands still at once, not only at its next request."""

    def __init__(self, run: Run, call: CurrentCall) -> None:
        self._run, self._call = run, call
        self._wait: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the pauses of the run from now on."""
        self._run.sandbox.on_pause = self.update
        self.update()

    def update(self) -> None:
        """Let the run wait without a slot while it is paused: its state is `paused` then, and its process frozen."""
        if self._wait is None and self._run.context.is_paused:
            context = contextvars.copy_context()
            context.run(current_call.set, self._call)
            self._wait = asyncio.create_task(self._run.context.wait_unpaused(), context=context)
            self._wait.add_done_callback(self._note_end)

    def close(self) -> None:
        """Follow the pauses no longer. Idempotent."""
        self._run.sandbox.on_pause = None
        if self._wait is not None:
            self._wait.cancel()

    def _note_end(self, wait: asyncio.Task[None]) -> None:
        if not wait.cancelled():
            wait.exception()
        self._wait = None
        if self._run.sandbox.on_pause is not None:  # Paused again at the same moment.
            self.update()
