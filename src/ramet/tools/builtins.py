"""ramet's own tools, which another process can rebuild from their names; any other tool is sent as code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from langchain_core.tools import BaseTool

from ramet.tools.agents.agents import agent_tool, companion_tools
from ramet.tools.agents.authoring import authoring_tools
from ramet.tools.agents.peers import group_tools
from ramet.tools.agents.task_result import task_result_tools
from ramet.tools.arguments import BuiltinTool
from ramet.tools.permissions.plan_mode import plan_tool
from ramet.tools.python import python_tool
from ramet.tools.workspace import workspace_tools


def builtin_tools(types: Mapping[str, str]) -> dict[str, BaseTool]:
    """Return all tools by name: workspace tools, `python`, and the tools that lead agents of these types."""
    return {tool.name: tool for tool in (*_stateless_tools(), agent_tool(types))}


@cache
def _stateless_tools() -> tuple[BaseTool, ...]:
    return (
        *workspace_tools(),
        python_tool(),
        *companion_tools(),
        *authoring_tools(),
        *group_tools(),
        *task_result_tools(),
        plan_tool(),
    )


def is_builtin(tool: BaseTool) -> bool:
    """Return whether a tool is one of these, and does not only have the same name."""
    return type(tool) is BuiltinTool


def by_name(*tools: BaseTool) -> tuple[BaseTool, ...]:
    """Return the tools themselves: the result of the capsule that they are sent in."""
    return tools
