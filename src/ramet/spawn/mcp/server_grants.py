"""The grants of MCP servers in sandboxes of their own: a part of an agent's, and those of servers that agents share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from msgspec import structs

from ramet.core.errors import SpawnRefused
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import DEFAULTS, LIMIT_FIELDS, Grant, Policy, narrow

#: Rights that a shared server has only by its own policy: what its agents have differs.
_NO_RIGHTS: Final[dict[str, Any]] = {
    "allowed_endpoints": (),
    "models": (),
    "ports": {},
    "readonly_mounts": (),
    "writable_mounts": (),
    "allowed_env_vars": (),
    "env_vars": {},
    "secrets": (),
    "allow_sub_agents": False,
    "max_sub_agent_depth": 0,
    "max_sub_agents": 0,
}
#: The end of its tree bounds the time of a shared server. No agent has this much.
_LONGEST_S: Final = 366 * 86400.0


def server_grant(server: McpServer, agent: Grant) -> Grant:
    """Return the grant of a server in a sandbox of its own, within that of its agent.

    An absent field is that of the agent, of a shared server nothing or the default, so that all its agents start the
    same server. Raises SpawnRefused, naming the server and the field, for more than the agent has.
    """
    assert server.policy is not None, "such a server has a policy"
    # A server is no level of the tree.
    agent = structs.replace(agent, max_sub_agent_depth=agent.max_sub_agent_depth + 1)
    with naming_server(server):
        return _shared_grant(server.policy, agent) if server.shared else narrow(agent, server.policy)[0]


@contextmanager
def naming_server(server: McpServer) -> Generator[None]:
    """Let the refusals of a server's own policy name the server, while the context is open."""
    try:
        yield
    except SpawnRefused as refusal:
        raise SpawnRefused(f"mcp.{server.name}.{refusal.limit}", refusal.reason, free=refusal.free) from None


def _shared_grant(policy: Policy, agent: Grant) -> Grant:
    defaults = {**{name: getattr(DEFAULTS, name) for name in LIMIT_FIELDS}, "timeout_seconds": _LONGEST_S, **_NO_RIGHTS}
    absent = {name: value for name, value in defaults.items() if getattr(policy, name) is None}
    # The server's time is not the agent's.
    limits = structs.replace(agent, timeout_seconds=_LONGEST_S, allow_sub_agents=False)
    grant, clamped = narrow(limits, structs.replace(policy, **absent))
    for each in clamped:
        reason = f"{each.requested:g} for the shared server is more than its agent has: {each.granted:g}"
        raise SpawnRefused(f"policy.{each.field}", reason, free=each.granted)
    return structs.replace(grant, retry_count=0, retry_delay_seconds=0.0)
