"""Monitors of one run: commands that go on while the agent works, and whose lines come to it as messages.

A batch of lines is sent once the one before was read, and at most one each half second. A turn does not end while a
monitor of it runs: the loop waits for its next message. Every monitor has a deadline, and ends with its turn.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Mapping
from contextlib import suppress

from langchain_core.tools import ToolException

from ramet.concurrency.processes import run_bash
from ramet.core.errors import RametError
from ramet.tools.context import ToolUseContext, Tree
from ramet.tools.monitors.line_buffer import LineBuffer
from ramet.tools.run_info import MonitorReport

BATCH_S = 0.5
NOTICE_TRIES = 25
_KEY = "monitors"  #: of `context.state`


class Monitors:
    """The monitors of a run that are active in this process."""

    def __init__(self, context: ToolUseContext, tree: Tree) -> None:
        self._context, self._tree = context, tree
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._has_news = asyncio.Event()
        self._is_closing = False

    def __contains__(self, monitor: str) -> bool:
        return monitor in self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    async def start(self, command: str, cwd: pathlib.Path, seconds: float, env: Mapping[str, str]) -> str:
        """Start a command; return the id of its monitor. Raises InvalidValue if the run has too many."""
        monitor = await self._tree.report_monitor(self._context, MonitorReport("start", text=command))
        task = asyncio.create_task(self._follow(monitor, command, cwd, seconds, env), name=monitor)
        self._tasks[monitor] = task
        task.add_done_callback(lambda _: self._remove(monitor))
        return monitor

    async def stop(self, monitor: str) -> None:
        """Stop a monitor, and wait until its processes have ended."""
        await self._cancel([self._tasks[monitor]])

    async def close(self) -> None:
        """Stop all monitors without a message, and wait until their processes have ended."""
        self._is_closing = True
        await self._cancel(list(self._tasks.values()))
        self._is_closing = False

    async def wait_for_news(self) -> None:
        """Wait until the run has mail, or no monitor is active."""
        while self._tasks and not len(self._context.mailbox):
            self._has_news.clear()
            with suppress(TimeoutError):  # Mail of others arrives without a sign here.
                async with asyncio.timeout(BATCH_S):
                    await self._has_news.wait()

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _remove(self, monitor: str) -> None:
        self._tasks.pop(monitor, None)
        self._has_news.set()

    async def _follow(
        self, monitor: str, command: str, cwd: pathlib.Path, seconds: float, env: Mapping[str, str]
    ) -> None:
        lines, end = LineBuffer(), "it was stopped"
        sending = asyncio.create_task(self._send_batches(monitor, lines))
        try:
            with self._context.track_process():
                result = await run_bash(
                    command,
                    clock=self._context.clock,
                    timeout_s=seconds,
                    cwd=cwd,
                    env=env,
                    stdout=lines,
                    is_watched=True,
                )
            end = f"its {seconds:g} s are over" if result.reason == "timeout" else f"exit code {result.code}"
        except OSError as error:
            end = f"it could not be started: {error}"
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            text = f"{lines.take(ends=True)}\n[{monitor} has ended: {end}]".lstrip("\n")
            with suppress(RametError):  # The run has ended, too.
                report = MonitorReport("end", monitor, "" if self._is_closing else text)
                await self._tree.report_monitor(self._context, report)
        await self._wait_for_notice(monitor)

    async def _wait_for_notice(self, monitor: str) -> None:
        """Give the last message a moment to reach a sandbox: its loop would end before that."""
        for _ in range(NOTICE_TRIES):
            if any(mail.sender == monitor for mail in self._context.mailbox.unread):
                return
            await self._context.clock.sleep(BATCH_S / NOTICE_TRIES)

    async def _send_batches(self, monitor: str, lines: LineBuffer) -> None:
        clock, mailbox = self._context.clock, self._context.mailbox
        while True:
            await lines.has_lines.wait()
            await clock.sleep(BATCH_S)
            while any(mail.sender == monitor for mail in mailbox.unread):
                await clock.sleep(BATCH_S)
            with suppress(RametError):
                await self._tree.report_monitor(self._context, MonitorReport("lines", monitor, lines.take()))
            self._has_news.set()


def monitors_of(context: ToolUseContext) -> Monitors | None:
    """Return the monitors of a run, if it has started any."""
    found: Monitors | None = context.state.get(_KEY)
    return found


def require_monitors(context: ToolUseContext) -> Monitors:
    """Return the monitors of a run. Raises ToolException where there is no runtime to bring it their messages."""
    if context.tree is None:
        raise ToolException("There is no runtime here: this loop cannot monitor a command.")
    monitors: Monitors = context.state.setdefault(_KEY, Monitors(context, context.tree))
    return monitors
