"""A last check in the step of the event loop in which a tool begins."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool

from ramet.core.errors import StoreFailed

#: Raises StoreFailed if the tool must not begin.
StartCheck = Callable[[], Awaitable[None]]


class NotStarted(Exception):
    """The check raised `error`: the tool has not begun."""

    def __init__(self, error: StoreFailed) -> None:
        self.error = error
        super().__init__(str(error))


def start_check(begin: Callable[..., Awaitable[Any]], check: StartCheck | None) -> Callable[..., Awaitable[Any]]:
    """Return a function that begins only if `check` raises no StoreFailed; otherwise its call raises NotStarted.

    A tool begins in a task of its own, so one turn of the event loop after the wait for the record. The process may be
    suspended in that turn, for so long that another kernel adopts the tree.
    """
    if check is None:
        return begin

    @functools.wraps(begin)
    async def check_and_begin(*args: Any, **options: Any) -> Any:
        try:
            await check()
        except StoreFailed as error:
            raise NotStarted(error) from None
        return await begin(*args, **options)

    return check_and_begin


def with_start_check(tool: BaseTool, check: StartCheck | None) -> BaseTool:
    """Return an async tool that begins only after the check, for one call.

    The tool's own state stays in the original, to which its function is bound.
    """
    if check is None:
        return tool
    copy = tool.model_copy()
    copy.__dict__["_arun"] = start_check(tool._arun, check)  # Python finds it before the method of the class.
    return copy
