"""Synchronous work of a run, next to the event loop. A thread cannot be ended: one that outlives its call is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.simple import Tool

from ramet.concurrency.threads import in_thread
from ramet.tools.context import OrphanedThread, ToolUseContext


def is_async(tool: BaseTool) -> bool:
    """Return whether a tool runs in the event loop; any other tool gets a thread, or a process."""
    if isinstance(tool, StructuredTool | Tool):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


async def run_in_thread(context: ToolUseContext, work: Callable[[], Any], *, name: str, key: str) -> Any:
    """Wait for `work` in a thread. After a cancellation, it is listed in `context.left_running` until it returns."""
    thread = in_thread(work, name=f"ramet-{name}")
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        if not thread.done():
            context.orphaned_threads[key] = OrphanedThread(name, thread)

            def on_done(future: asyncio.Future[Any]) -> None:
                context.orphaned_threads.pop(key, None)
                if not future.cancelled():
                    future.exception()  # Fenced: its late result or exception has no receiver.

            thread.add_done_callback(on_done)
        raise
