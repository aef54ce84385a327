"""The routes of data that agents wrote: their states, and the agents that they made. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.operator.contract import (
    RecipeFilter,
    RecipePage,
    StatePage,
    StateQuery,
    StateVersions,
    VersionsOptions,
)

OPERATIONS: Final = Operations()


@OPERATIONS.add(endpoints.LIST_RECIPES, "List the agent definitions that agents have registered")
async def _recipes(call: RequestContext) -> RecipePage:
    return await call.kernel("recipe").states.recipes(call.query(RecipeFilter))


@OPERATIONS.add(endpoints.RUN_STATE, "Values of a run's own state: now, as of an event, or as of a commit", of="run")
async def _state(call: RequestContext) -> StatePage:
    run = call.path("run")
    return await call.kernel("run").states.page(run, call.query(StateQuery))


@OPERATIONS.add(
    endpoints.RUN_STATE_VERSIONS, "The commits of a run's state, and the branches of it and its delegates", of="run"
)
async def _versions(call: RequestContext) -> StateVersions:
    run = call.path("run")
    states = call.kernel("run").states
    return await states.versions(run, call.query(VersionsOptions).limit)
