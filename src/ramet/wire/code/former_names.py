"""Earlier names of modules, classes and functions, by which packed functions in a journal refer to them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, Final

#: Modules whose objects a function may hold: as an argument, as a global, or as what it was wrapped in.
MODULES: Final[Mapping[str, str]] = {
    "ramet.agent.adopted.adopting": "ramet.agent.adopted.adopt",
    "ramet.agent.compaction": "ramet.agent.history.compaction",
    "ramet.agent.composition.building": "ramet.agent.composition.state_graph",
    "ramet.agent.declaring": "ramet.agent.capabilities.declarations",
    "ramet.agent.hook_answers": "ramet.agent.hooks.answers",
    "ramet.agent.hook_commands": "ramet.agent.hooks.hooks",
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

#: Classes and functions of such modules, by the present names of the modules.
NAMES: Final[Mapping[tuple[str, str], str]] = {
    ("ramet.agent.hooks.answers", "HookBroken"): "HookError",
    ("ramet.agent.hooks.answers", "Opinion"): "HookAnswer",
    ("ramet.agent.composition.steps", "Composed"): "Composition",
    ("ramet.core.policy.capabilities", "Granted"): "CapabilityGrant",
    ("ramet.core.policy.permissions", "Rule"): "PermissionRule",
    ("ramet.core.policy.policy", "Clamped"): "ClampedLimit",
    ("ramet.core.policy.policy", "describe"): "to_public_dict",
    ("ramet.core.policy.reservation", "checked"): "parse_reservation",
    ("ramet.core.safety", "Ballot"): "VoterAnswer",
    ("ramet.host.safety.inspection", "Filter"): "GateEventFilter",
    ("ramet.models.scripted.dialogue", "_Timed"): "_TimedStep",
    ("ramet.store.contract", "Put"): "DocumentWrite",
    ("ramet.store.contract", "Seat"): "KernelInfo",
    ("ramet.store.contract", "Stored"): "StoredEvent",
    ("ramet.tools.context", "Conclusion"): "DeclaredResult",
    ("ramet.tools.context", "GateWord"): "SafetyDecision",
    ("ramet.tools.context", "LeftRunning"): "OrphanedThread",
    ("ramet.tools.context", "Ran"): "CodeResult",
    ("ramet.tools.context", "Created"): "CreationReceipt",
    ("ramet.tools.context", "calling"): "require_current_call",
    ("ramet.wire.values.values", "Encoded"): "EncodedValue",
}

#: Present modules of classes and functions that moved alone, by their former modules and present names.
MOVED: Final[Mapping[tuple[str, str], str]] = {
    ("ramet.tools.context", name): f"ramet.tools.{module}"
    for module, names in {
        "run_info": ("RunInfo", "RunView", "StopReceipt"),
        "spawn_request": ("CreationReceipt", "SpawnHandle", "SpawnRequest", "check_request"),
        "model_request": ("Charge", "ForeignRequest", "ModelRequest"),
        "decisions": ("Approval", "HookDecision", "SafetyDecision"),
    }.items()
    for name in names
}


def loads(data: bytes) -> Any:
    """Unpickle, with earlier names understood. Only ever called inside a sandbox."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Return the class or function, which may have had another name, and been in another module."""
        module = MODULES.get(module, module)
        name = NAMES.get((module, name), name)
        return super().find_class(MOVED.get((module, name), module), name)
