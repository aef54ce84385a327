"""Agent files of Codex: `.codex/agents/*.toml`, whose further keys are settings of Codex."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ramet.agent.definition import Scope
from ramet.agent.files.agent_file import AgentFile
from ramet.agent.files.dialects.fields import FileFields
from ramet.agent.files.dialects.toml_marks import marks_of
from ramet.core.errors import InvalidValue
from ramet.models.effort import EFFORTS

MAX_MARKS = 1_000
_SANDBOXES = ("read-only", "workspace-write", "danger-full-access")
_LESS = "not honoured: an agent gets no more than its parent has"


def parse(text: str, source: Path, scope: Scope) -> AgentFile:
    """Parse one file. Raises InvalidValue, with the file and the key."""
    if (marks := marks_of(text)) > MAX_MARKS:
        raise InvalidValue(f"{source}: text", marks, f"at most {MAX_MARKS} dots and brackets outside of texts")
    try:
        keys = msgspec.toml.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: too many digits
        raise InvalidValue(f"{source}: text", str(error)[:200], "TOML") from None
    fields = FileFields(keys, source, "Codex")
    name, description = fields.text("name", required=True), fields.text("description", required=True)
    instructions, model = fields.text("developer_instructions", required=True), fields.text("model")
    sandbox = fields.choice("sandbox_mode", *_SANDBOXES)
    if sandbox == "read-only":
        fields.note("sandbox_mode", "read-only: it has only tools that cannot write, so no Bash")
    elif sandbox == "danger-full-access":
        fields.note("sandbox_mode", f"{sandbox}: {_LESS}")
    return fields.agent_file(
        scope,
        name=name,
        description=description,
        instructions=instructions,
        model=model or None,
        effort=fields.choice("model_reasoning_effort", *EFFORTS) or None,
        read_only=sandbox == "read-only",
    )
