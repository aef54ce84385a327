"""The kernels of a store, and what this one has at work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from ramet.host.control.operator import OperatorControl
from ramet.services.operator.records.record_rows import KernelList, KernelRow
from ramet.store.contract import Store


async def list_kernels(store: Store, steering: OperatorControl, started: datetime) -> KernelList:
    """Return all kernels of a store. Only the row of this kernel, which began at `started`, has numbers of runs."""
    rows = [
        KernelRow(name=each.name, epoch=each.epoch, address=each.address, is_alive=each.alive)
        for each in await store.kernels()
    ]
    own = {"started": started, "trees": len(steering.trees()), "runs": steering.count_living()}
    return KernelList([replace(each, **own) if each.name == store.kernel else each for each in rows])


def merge_kernels(lists: Iterable[KernelList]) -> KernelList:
    """Return one row for each kernel: its own, if it answered."""
    rows: dict[str, KernelRow] = {}
    for each in (row for part in lists for row in part.kernels):
        if each.name not in rows or each.runs is not None:
            rows[each.name] = each
    return KernelList(sorted(rows.values(), key=lambda row: row.name))
