"""Modules that had another name in November 2026: packed functions on record name their objects' classes by it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, Final

#: Of what a function may hold: its arguments, its globals, and what it was wrapped in.
MODULES: Final[Mapping[str, str]] = {
    "ramet.agent.adopted.adopting": "ramet.agent.adopted.adopt",
    "ramet.agent.compaction": "ramet.agent.history.compaction",
    "ramet.agent.composition.building": "ramet.agent.composition.state_graph",
    "ramet.agent.declaring": "ramet.agent.capabilities.declarations",
    "ramet.agent.hook_answers": "ramet.agent.hooks.answers",
    "ramet.agent.hook_commands": "ramet.agent.hooks.commands",
    "ramet.agent.hook_config": "ramet.agent.hooks.config",
    "ramet.agent.hooks": "ramet.agent.hooks.hooks",
    "ramet.agent.performing": "ramet.agent.capabilities.task_runner",
    "ramet.agent.summary": "ramet.agent.history.summary",
    "ramet.agent.task": "ramet.agent.capabilities.task",
    "ramet.agent.toolentry": "ramet.agent.tool_entry",
    "ramet.agent.typed.forms": "ramet.agent.typed.schema",
    "ramet.agent.typed.reading": "ramet.agent.typed.from_schema",
    "ramet.agent.typed.writing": "ramet.agent.typed.to_schema",
    "ramet.core.agentref": "ramet.core.agent_ref",
    "ramet.core.capabilities": "ramet.core.policy.capabilities",
    "ramet.core.permissions": "ramet.core.policy.permissions",
    "ramet.core.policy": "ramet.core.policy.policy",
    "ramet.core.policy_decision": "ramet.core.policy.decision",
    "ramet.core.reservation": "ramet.core.policy.reservation",
    "ramet.core.rights": "ramet.core.policy.rights",
    "ramet.core.schedule": "ramet.core.schedules.schedule",
    "ramet.models.dialogue": "ramet.models.scripted.dialogue",
    "ramet.models.gate": "ramet.models.rate_limit",
    "ramet.models.offline": "ramet.models.research.model",
    "ramet.models.scripted": "ramet.models.scripted.model",
    "ramet.services.types.calling": "ramet.services.agent_types.function.invoke",
    "ramet.tools.agents": "ramet.tools.agents.agents",
    "ramet.tools.authoring": "ramet.tools.agents.authoring",
    "ramet.tools.board": "ramet.tools.agents.board",
    "ramet.tools.conclusion": "ramet.tools.agents.task_result",
    "ramet.tools.files": "ramet.tools.files.files",
    "ramet.tools.find": "ramet.tools.files.glob",
    "ramet.tools.grep": "ramet.tools.files.grep",
    "ramet.tools.imported": "ramet.tools.workers.image_tools",
    "ramet.tools.memory": "ramet.tools.memory.memory",
    "ramet.tools.sent": "ramet.tools.workers.process_worker",
    "ramet.tools.stock": "ramet.tools.builtins",
    "ramet.wire.values": "ramet.wire.values.values",
}


def loads(data: bytes) -> Any:
    """`pickle.loads`, which finds what is named by a module's earlier name. Only ever called inside a sandbox."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Look it up under the present name of its module."""
        return super().find_class(MODULES.get(module, module), name)
