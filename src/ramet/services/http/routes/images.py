"""The routes of bundles and images."""

from __future__ import annotations

from typing import Final

from ramet.core.errors import Denied, NotYours
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import BundleList, ImageList
from ramet.services.packaging.contract import OPERATOR, BundleInfo, CreateImage, ImageInfo, Job

OPERATIONS: Final = Operations()


def _require_operator(call: RequestContext, kind: str) -> None:
    """Check that the key is the operator's: no team may remove an object that several teams share. Raises NotYours."""
    if not call.parts.spawner.agents.is_operator(call.key):
        raise NotYours(kind, call.path("id"))


@OPERATIONS.add(
    endpoints.UPLOAD_BUNDLE,
    "Upload a bundle as a tar, plain or with gzip; for the operator, and for teams if a rule allows it",
    repetition="again",
    status=201,
    refuses=(403,),
)
async def _upload(call: RequestContext) -> BundleInfo:
    owner = OPERATOR
    if call.parts.rules.bundles == "teams":
        owner = await call.team()
    elif not call.parts.spawner.agents.is_operator(call.key):
        raise Denied("uploading a bundle", "only the operator may do this here (rules.bundles: operator)")
    return await call.parts.packaging.upload(call.pieces(is_held=False), owner)


@OPERATIONS.add(
    endpoints.LIST_BUNDLES, "List the bundles of the key's team and of the operator; all bundles for the operator"
)
async def _list_bundles(call: RequestContext) -> BundleList:
    return BundleList(await call.parts.packaging.list_bundles(await call.team()))


@OPERATIONS.add(
    endpoints.DELETE_BUNDLE,
    "Remove a bundle that no image contains and no live agent has loaded; for the operator",
    status=204,
    refuses=(409,),
)
async def _delete_bundle(call: RequestContext) -> None:
    _require_operator(call, "bundle")
    id = call.path("id")
    spawner = call.parts.spawner
    await call.parts.packaging.delete_bundle(
        id, lambda: spawner.users_of_bundle(id), lambda: spawner.users_elsewhere(bundle=id)
    )


@OPERATIONS.add(
    endpoints.CREATE_IMAGE, "Build an image of bundles, on top of another image", repetition="again", status=202
)
async def _create(call: RequestContext) -> Job:
    team = await call.team()
    request = await call.json(CreateImage)
    return await call.parts.packaging.create_image(request.base, request.bundles, team)


@OPERATIONS.add(endpoints.LIST_IMAGES, "List the images for agents of the key's team; all images for the operator")
async def _list(call: RequestContext) -> ImageList:
    return ImageList(await call.parts.packaging.list_images(await call.team()))


@OPERATIONS.add(endpoints.GET_IMAGE, "One image")
async def _get(call: RequestContext) -> ImageInfo:
    team = await call.team()
    return await call.parts.packaging.image_info(call.path("id"), team)


@OPERATIONS.add(
    endpoints.DELETE_IMAGE,
    "Remove an image that no live agent was spawned from; for the operator",
    status=204,
    refuses=(409,),
)
async def _delete_image(call: RequestContext) -> None:
    _require_operator(call, "image")
    id = call.path("id")
    spawner = call.parts.spawner
    await call.parts.packaging.delete_image(
        id, lambda: spawner.users_of_image(id), lambda: spawner.users_elsewhere(image=id)
    )


@OPERATIONS.add(endpoints.GET_JOB, "Return the progress of the build of an image")
async def _job(call: RequestContext) -> Job:
    team = await call.team()
    return await call.parts.packaging.job(call.path("id"), team)
