"""Names of tools: older spellings, and the groups that one permission rule covers."""

from __future__ import annotations

from typing import Final

#: Other names of ramet's tools, by which models and settings files also call them.
ALIASES: Final = {"Task": "Agent", "Shell": "Bash"}

#: Tools that show what files hold, and tools that change files. A rule for `Read` or `Edit` speaks of the whole group.
READING_TOOLS: Final = frozenset({"Read", "Grep", "Glob", "LS", "NotebookRead"})
EDITING_TOOLS: Final = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})

#: The tool with which an agent sends a message to another.
SEND_MESSAGE: Final = "SendMessage"

#: ramet's tools that reach other agents or end a task, and touch no file and no process themselves.
COORDINATING_TOOLS: Final = frozenset(
    {
        "Agent",
        SEND_MESSAGE,
        "TaskOutput",
        "TaskStop",
        "ListAgents",
        "CreateAgent",
        "CallTask",
        "SubmitPlan",
        "RequestShutdown",
        "AnswerRequest",
        "task_success",
        "task_fail",
        "task_clarify",
    }
)

#: The tool with which an agent in plan mode presents its plan.
EXIT_PLAN_MODE: Final = "ExitPlanMode"

#: The tool with which an agent finds tools of its MCP servers that are not part of each request to its model.
TOOL_SEARCH: Final = "ToolSearch"
#: The tools for resources of MCP servers.
LIST_MCP_RESOURCES: Final = "ListMcpResourcesTool"
READ_MCP_RESOURCE: Final = "ReadMcpResourceTool"
#: Tools of ramet that an agent has because it has MCP servers.
SERVER_TOOLS: Final = frozenset({TOOL_SEARCH, LIST_MCP_RESOURCES, READ_MCP_RESOURCE})

#: Tools that a coordinator has: it starts, messages, reads and stops agents, presents a plan, and ends its own task.
LEADING_TOOLS: Final = (COORDINATING_TOOLS - {"CreateAgent", "CallTask"}) | {EXIT_PLAN_MODE}

#: Tools of ramet and of Claude Code. A rule that names one of them in another case is a mistake.
KNOWN_TOOLS: Final = (
    READING_TOOLS
    | EDITING_TOOLS
    | COORDINATING_TOOLS
    | ALIASES.keys()
    | {"Bash", "python", "WebFetch", "WebSearch", "Skill", "TodoWrite", "KillShell", "BashOutput", EXIT_PLAN_MODE}
    | SERVER_TOOLS
)


def canonical(name: str) -> str:
    """Return the tool's own name for any of its spellings."""
    return ALIASES.get(name, name)
