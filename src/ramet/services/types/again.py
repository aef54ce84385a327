"""A conversation whose server was stopped in good order: its tree is over, and another goes on with what was said."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from langchain_core.messages import BaseMessage

from ramet.core.budget import RESOURCES, Limits
from ramet.core.errors import Unknown
from ramet.core.outcome import NOTHING_USED, Usage
from ramet.host.resuming import point_of, supplied_by
from ramet.host.safety.gate import SafetyGate
from ramet.services.contract import Opening
from ramet.services.types.ends import as_spent

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

#: Holds what each of its trees that is over has used, by the id of its root.
USED_FILE: Final = "used.json"


async def said_before(
    opening: Opening, model: str | BaseChatModel, tools: Sequence[BaseTool], gate: SafetyGate | None
) -> Sequence[BaseMessage]:
    """What was said in the tree that is over; what it used is noted. Raises Unknown for one that is not on record."""
    journal = opening.runtime.journal
    if journal is None:
        raise Unknown("run", opening.run)
    await opening.runtime.open_store()
    llm = None if isinstance(model, str) else model
    supplied = supplied_by(llm=llm, tools=tools, gate=gate)
    point = await point_of(journal, opening.run, None, supplied)
    result = await opening.runtime.result(opening.run)
    _note(opening.folder / USED_FILE, {**_used(opening.folder), opening.run: result.usage_subtree})
    return point.messages


def used_before(opening: Opening, run: str) -> Usage:
    """What the trees before this one have used."""
    return sum((used for root, used in _used(opening.folder).items() if root != run), NOTHING_USED)


def left_of(limits: Limits, used: Usage) -> Limits:
    """The limits of another tree, where so much is used for good. Time is each turn's."""
    spent = as_spent(used)
    given = {name: most for name in RESOURCES if (most := getattr(limits, name)) is not None}
    return Limits(seconds=limits.seconds, **{name: max(0, most - spent[name]) for name, most in given.items()})


def _used(folder: pathlib.Path) -> dict[str, Usage]:
    try:
        return msgspec.json.decode((folder / USED_FILE).read_bytes(), type=dict[str, Usage])
    except FileNotFoundError:
        return {}


def _note(file: pathlib.Path, used: dict[str, Usage]) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(used))
    new.replace(file)
