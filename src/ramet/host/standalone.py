"""A context for driving `ramet.query` by hand: one run without a tree."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import SystemMessage

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.budget import Budget
from ramet.core.ids import ROOT_NAME, Path, run_id
from ramet.core.limits import NO_LIMITS, Limits
from ramet.host.gateway import Gateway
from ramet.host.journal.recorder import Recorder
from ramet.tools.context import ToolUseContext
from ramet.tools.run_info import RunInfo

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool


def standalone_context(
    llm: BaseChatModel | str,
    tools: Sequence[BaseTool] = (),
    *,
    system_prompt: str = "",
    cwd: pathlib.Path | None = None,
    limits: Limits = NO_LIMITS,
    clock: Clock | None = None,
) -> ToolUseContext:
    """Return a context for `QueryParams(context=…)`: a rate-limited model, a budget, tools, and a recorder of its own.

    There is no runtime behind this context: tools that manage other agents report that. Raises Unknown, MissingExtra
    for the model.
    """
    clock = clock or SystemClock()
    own_id = run_id(secrets.token_bytes(8))
    return ToolUseContext(
        run=RunInfo(id=own_id, root=own_id, path=Path(ROOT_NAME), agent=ROOT_NAME),
        ask=Gateway(clock).port(llm).ask,
        tools=tuple(tools),
        system_messages=(SystemMessage(content=system_prompt),) if system_prompt else (),
        cwd=cwd or pathlib.Path.cwd(),
        budget=Budget(limits, scope=ROOT_NAME),
        record=Recorder(clock).append,
        clock=clock,
    )
