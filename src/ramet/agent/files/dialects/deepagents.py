"""Agent files of Deep Agents: `.deepagents/agents/<name>/AGENTS.md`."""

from __future__ import annotations

from pathlib import Path

from ramet.agent.definition import Scope
from ramet.agent.files import frontmatter
from ramet.agent.files.agent_file import AgentFile
from ramet.agent.files.dialects.fields import FileFields


def parse(text: str, source: Path, scope: Scope) -> AgentFile:
    """Parse one file. Raises InvalidValue, with the file and the key."""
    front = frontmatter.parse(text, source=source)
    fields = FileFields(front.keys, source, "Deep Agents", front.notes)
    name, description = fields.text("name", required=True), fields.text("description", required=True)
    model = fields.text("model")
    return fields.agent_file(scope, name=name, description=description, instructions=front.body, model=model or None)
