"""The Skill tool: it loads the instructions of one skill when they are needed, and further files of it on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ramet.core.errors import Denied, Unknown
from ramet.tools.arguments import Arguments, BuiltinTool, workspace_tool
from ramet.tools.skills.skill_folder import SkillFolder

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

NAME = "Skill"

_DESCRIPTION = """Load a skill: instructions for one kind of work that were prepared for you. Your instructions list
the skills by name. Load the one that fits before you begin such work, then follow it. The answer names the skill's
folder and its further files; read one of those with `file`. Its scripts are run with the tools that you have, from that
folder."""


class SkillArguments(Arguments):
    """The arguments of the Skill tool."""

    skill: str = Field(description="The name of the skill.")
    file: str | None = Field(
        default=None, description="A file of the skill, such as references/forms.md; without it, the instructions."
    )


class SkillTool(BuiltinTool):
    """The Skill tool of one run, for exactly these skills."""

    skills: Any = ()  #: tuple[SkillFolder, ...]; pydantic need not know it


def skill_tool(skills: Sequence[SkillFolder]) -> SkillTool:
    """Return the tool for some skills. It is for one run: children have the skills of their own definitions."""
    skills = tuple(skills)
    plain = workspace_tool(
        NAME,
        _DESCRIPTION,
        SkillArguments,
        partial(_load, skills),
        concurrency_safe=True,
        read_only=True,
        children=False,
    )
    return SkillTool(**{name: getattr(plain, name) for name in _FIELDS}, skills=skills)


_FIELDS = ("name", "description", "args_schema", "arguments_class", "function", "metadata")


def skill_folders(tools: Iterable[BaseTool]) -> tuple[str, ...]:
    """Return the folders of the skills that one of these tools offers."""
    return tuple(skill.path for tool in tools if isinstance(tool, SkillTool) for skill in tool.skills)


async def _load(skills: Sequence[SkillFolder], arguments: SkillArguments) -> str:
    name = arguments.skill.strip().lstrip("/")
    skill = next((each for each in skills if each.name == name), None)
    if skill is None:
        raise Unknown("skill", arguments.skill[:200], tuple(each.name for each in skills))
    try:
        return skill.text(arguments.file) if arguments.file else _instructions(skill)
    except FileNotFoundError:
        raise Denied(
            "skill", f"the folder of {name}, {skill.path}, is not there: it was removed, or is not mounted"
        ) from None


def _instructions(skill: SkillFolder) -> str:
    """Return the files and then the text, so that the files are seen where the text is cut."""
    body, listing = skill.body(), skill.listing()
    lines = [f"The skill {skill.name}. Its folder: {skill.path}"]
    if listing.files:
        names = ", ".join(f"{each.name} ({each.size} bytes)" for each in listing.files)
        lines.append(f"Its files: {names}{'' if listing.is_complete else ', and more'}")
    return "\n".join([*lines, "", body])
