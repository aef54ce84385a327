"""Bundles and images over HTTP."""

from __future__ import annotations

from typing import Final

from ramet.core.errors import Unknown
from ramet.services.app.calls import Call
from ramet.services.app.messages import ImageList
from ramet.services.app.operations import TAR, Operation
from ramet.services.packaging.contract import BundleInfo, CreateImage, ImageInfo, Job


async def _upload(call: Call) -> BundleInfo:
    await call.see_that_it_has_a_team()
    return await call.parts.packaging.upload(call.pieces())


async def _create(call: Call) -> Job:
    await call.see_that_it_has_a_team()
    asked = await call.json(CreateImage)
    return await call.parts.packaging.create_image(asked.base, asked.bundles)


async def _list(call: Call) -> ImageList:
    await call.see_that_it_has_a_team()
    return ImageList(await call.parts.packaging.list_images())


async def _get(call: Call) -> ImageInfo:
    await call.see_that_it_has_a_team()
    images = await call.parts.packaging.list_images()
    for each in images:
        if each.id == call.path("id"):
            return each
    raise Unknown("image", call.path("id"))


async def _job(call: Call) -> Job:
    await call.see_that_it_has_a_team()
    return await call.parts.packaging.job(call.path("id"))


OPERATIONS: Final = (
    Operation(
        id="upload_bundle",
        method="POST",
        path="/v1/bundles",
        summary="Keep what is in a tar, plain or with gzip; the same files are the same bundle",
        handle=_upload,
        media=TAR,
        has_body=True,
        answers=BundleInfo,
        status=201,
    ),
    Operation(
        id="create_image",
        method="POST",
        path="/v1/images",
        summary="Have an image made of bundles, on top of another one",
        handle=_create,
        takes=CreateImage,
        answers=Job,
        status=202,
    ),
    Operation(
        id="list_images",
        method="GET",
        path="/v1/images",
        summary="All images that agents can be spawned from",
        handle=_list,
        answers=ImageList,
    ),
    Operation(
        id="get_image",
        method="GET",
        path="/v1/images/{id}",
        summary="One image",
        handle=_get,
        answers=ImageInfo,
    ),
    Operation(
        id="get_job",
        method="GET",
        path="/v1/jobs/{id}",
        summary="How far the making of an image is",
        handle=_job,
        answers=Job,
    ),
)
