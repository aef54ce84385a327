"""Operations that load bundles into an agent that lives, and take them away. Their code never runs in the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ramet.concurrency.deadline import to_its_end
from ramet.core.errors import InvalidValue
from ramet.services.contract import Loadable, Opening, Shelf


class LoadBundle(Struct, forbid_unknown_fields=True):
    """Have a bundle's code in the agent's sandboxes, also those that run, and its tools and skills from the next turn.

    The answer is what is loaded now: `bundles`, and of this one `tools` and `skills`.
    """

    bundle: str  #: its id


class UnloadBundle(Struct, forbid_unknown_fields=True):
    """Take a loaded bundle away. Code that runs keeps what it has imported; the next turn knows nothing of it."""

    bundle: str  #: its id


def shelf_of(opening: Opening) -> Shelf:
    """Raises InvalidValue for an agent that works in the host."""
    if opening.shelf is None:
        raise InvalidValue("bundle", opening.path, "an agent in a sandbox: code of bundles does not run in the host")
    return opening.shelf


async def change(
    opening: Opening,
    operation: LoadBundle | UnloadBundle,
    check: Callable[[Loadable], None] = lambda _: None,
    changed: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Do it, have it told to `changed`, and say what is loaded then.

    Raises Unknown, Damaged, InvalidValue, Gone, and what `check` finds wrong.
    """
    shelf = shelf_of(opening)
    loads = isinstance(operation, LoadBundle)
    bundle = await (shelf.load(operation.bundle, check) if loads else shelf.unload(operation.bundle))
    try:
        changed()
    except BaseException:
        if loads:
            await to_its_end(shelf.unload(operation.bundle))
        raise
    told: dict[str, Any] = {"bundles": [each.id for each in shelf.loaded]}
    if loads:
        told |= {"tools": [each.name for each in bundle.tools], "skills": list(bundle.skills)}
    return told
