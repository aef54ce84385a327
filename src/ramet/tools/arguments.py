"""The arguments of a tool, told to the model and checked, under names that Python does not take, such as `-i`.

langchain drops aliases from the schema that it shows to a model; a plain JSON schema goes through as it is, so that is
what these tools carry, and they check what comes against the same class that made it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, ConfigDict, ValidationError


class Arguments(BaseModel):
    """What a tool takes. A name it does not know is an error: an option that is silently ignored misleads a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


A = TypeVar("A", bound=Arguments)


def workspace_tool(
    name: str, description: str, takes: type[A], run: Callable[[A], Awaitable[str]], **declares: Any
) -> StructuredTool:
    """Make a tool of an async function on checked arguments; `declares` is what dispatch may know of it."""

    async def call(**given: Any) -> str:
        try:
            arguments = takes.model_validate(given)
        except ValidationError as wrong:
            raise ToolException(_complaint(name, takes, wrong)) from None
        return await run(arguments)

    return StructuredTool(
        name=name, description=description, args_schema=_schema(takes), coroutine=call, metadata=dict(declares)
    )


def _schema(takes: type[Arguments]) -> dict[str, Any]:
    schema = takes.model_json_schema(by_alias=True)
    schema["description"] = ""
    for field in schema["properties"].values():
        field.pop("title", None)
    return schema


def _complaint(name: str, takes: type[Arguments], wrong: ValidationError) -> str:
    """One sentence per mistake, without what was sent: that may be a megabyte."""
    problems = []
    for each in wrong.errors(include_url=False, include_input=False)[:5]:
        where = ".".join(str(part)[:60] for part in each["loc"]) or "arguments"
        problems.append(f"{where}: {each['msg']}")
    accepted = ", ".join(field.alias or key for key, field in takes.model_fields.items())
    return f"{name} was called wrongly. {'; '.join(problems)}. It takes: {accepted}."
