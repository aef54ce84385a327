"""The request for a fork of a run of another tree, with what it begins with."""

from __future__ import annotations

import dataclasses

from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.spawn.ports import ForkSource
from ramet.tools.spawn_request import SpawnRequest


def forked_request(request: SpawnRequest, source: ForkSource, *, owner: str, is_gated: bool) -> SpawnRequest:
    """Return the request for a run in a tree whose states have this owner.

    Raises InvalidValue if the other tree's states have another owner, DefinitionMissing if only the other tree has a
    safety gate.
    """
    if source.owner != owner:
        raise InvalidValue("fork_of", request.fork_of, "a run of a tree whose states have the same owner")
    if source.is_gated and not is_gated:
        raise DefinitionMissing("safety gate", f"of the tree of {request.fork_of}")
    return dataclasses.replace(
        request, begins_at=source.begins_at, fork_place=source.place, history=tuple(source.messages)
    )
