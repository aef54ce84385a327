"""The routes of data that agents wrote: their states, and the agents that they made. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operation
from ramet.services.operator.contract import (
    RecipeFilter,
    RecipePage,
    StatePage,
    StateQuery,
    StateVersions,
    VersionsOptions,
)


async def _recipes(call: RequestContext) -> RecipePage:
    return await call.parts.kernel.open(call.key, "recipe").states.recipes(call.query(RecipeFilter))


async def _state(call: RequestContext) -> StatePage:
    run = call.path("run")
    return await call.parts.kernel.open(call.key, "run", run).states.page(run, call.query(StateQuery))


async def _versions(call: RequestContext) -> StateVersions:
    run = call.path("run")
    states = call.parts.kernel.open(call.key, "run", run).states
    return await states.versions(run, call.query(VersionsOptions).limit)


OPERATIONS: Final = (
    Operation(
        endpoint=endpoints.LIST_RECIPES,
        summary="List the agent definitions that agents have registered",
        handle=_recipes,
    ),
    Operation(
        endpoint=endpoints.RUN_STATE,
        of="run",
        summary="Values of a run's own state: now, as of an event, or as of a commit",
        handle=_state,
    ),
    Operation(
        endpoint=endpoints.RUN_STATE_VERSIONS,
        of="run",
        summary="The commits of a run's state, and the branches of it and its delegates",
        handle=_versions,
    ),
)
