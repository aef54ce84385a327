"""The routes of what operators look at rarely: kernels, boards, and what keys open. For the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.operator.contract import Paging
from ramet.services.operator.records.kernel_list import merge_kernels
from ramet.services.operator.records.record_rows import BoardPage, KernelList, KeyPage, ShownBoard

OPERATIONS: Final = Operations()


def _merge(call: RequestContext, lists: Sequence[KernelList]) -> KernelList:
    return merge_kernels(lists)


@OPERATIONS.add(
    endpoints.LIST_KERNELS, "List the kernels of the store, with what they have at work", of="everyone", merge=_merge
)
async def _kernels(call: RequestContext) -> KernelList:
    return await call.kernel("kernel").kernels()


@OPERATIONS.add(endpoints.LIST_BOARDS, "List the boards of tasks, with the number of their tasks by status")
async def _boards(call: RequestContext) -> BoardPage:
    return await call.kernel("board").boards.page(call.query(Paging))


@OPERATIONS.add(endpoints.GET_BOARD, "Return a board with its tasks")
async def _board(call: RequestContext) -> ShownBoard:
    return await call.kernel("board").boards.get(call.path("board"))


@OPERATIONS.add(endpoints.LIST_KEYS, "List what each valid key opens, without the keys")
async def _keys(call: RequestContext) -> KeyPage:
    return await call.kernel("key").keys.page(call.query(Paging))
