"""What stands between an agent and the folder: changes need a person's word, and hooks of files a person's trust."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramet.agent.files.reading import Unreadable, read_text
from ramet.agent.files.trust import MAX_SETTINGS, SETTINGS, is_trusted
from ramet.agent.hook_config import hook
from ramet.agent.hooks import HookRunner
from ramet.cli.places import user_dir
from ramet.core.errors import InvalidValue
from ramet.tools.context import HookDecision
from ramet.tools.dispatch import declares
from ramet.tools.workspace import workspace_tools

USER_SETTINGS = "settings.json"


def hooks_for(project: Path) -> tuple[HookRunner, tuple[str, ...]]:
    """The hooks of a question about `project`, and what to tell the person about those that are off.

    Raises InvalidValue or Unreadable for settings that cannot be understood: a gate that is written down wrongly is no
    open gate.
    """
    mine, notes = user_dir(), []
    runner = HookRunner([_changes_need_a_word()], project_dir=project)
    own = _hooks_in(mine / USER_SETTINGS, fence=None)
    runner = runner.extended(own) if own else runner
    theirs = [project / name for name in SETTINGS if name.endswith("json") and not name.startswith(".mcp")]
    if is_trusted(project, mine):
        for path in theirs:
            found = _hooks_in(path, fence=project)
            runner = runner.extended(found) if found else runner
    elif any(path.exists() for path in theirs):
        notes.append("hooks in this folder's settings are off until you trust it: ramet trust DIR")
    return runner, tuple(notes)


def _changes_need_a_word() -> Any:
    changing = "|".join(tool.name for tool in workspace_tools() if not declares(tool, "read_only"))

    @hook("PreToolUse", matcher=changing)
    def changes_need_a_word(payload: dict[str, Any]) -> HookDecision:
        return HookDecision("ask", "it may change files or run commands")

    return changes_need_a_word


def _hooks_in(path: Path, *, fence: Path | None) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        settings = json.loads(read_text(path, limit=MAX_SETTINGS, fence=fence).text)
    except (ValueError, RecursionError):
        raise Unreadable(path, "it is not JSON") from None
    found = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(found, dict):
        raise InvalidValue(f"{path}: hooks", found, "a mapping of hook events, as in Claude Code's settings")
    return found
