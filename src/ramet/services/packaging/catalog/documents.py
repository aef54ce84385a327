"""The shared documents of the kernels of one store: one for each bundle, image and job, with the kernel that wrote it.

A kernel that is about to remove a document marks it first, with its own name. From then on no kernel begins to use the
bundle, image or job. The mark of a kernel that has died is ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Conflict, Damaged, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.isolation.limits.disk import ENTRY_BYTES
from ramet.services.packaging.contract import OPERATOR, Job
from ramet.services.packaging.images import ImageRecord
from ramet.store.contract import Document, Store

VERSION: Final = 1
_LOOK_S: Final = 0.05
_ID: Final = re.compile(r"[0-9a-f]{64}\Z")


class KernelEpoch(Struct, frozen=True):
    """An epoch of a kernel: the time from one of its starts to its end."""

    kernel: str
    epoch: int


class SharedDocument(Struct, frozen=True, kw_only=True):
    """The common fields of these documents. `going` is the kernel that is removing the document."""

    version: int = VERSION
    going: KernelEpoch | None = None


class KeptBundle(SharedDocument, frozen=True, kw_only=True):
    """A bundle. `draft` is the key of its parts."""

    id: str
    size: int
    files: int
    draft: str
    parts: int
    owners: tuple[str, ...] = (OPERATOR,)  #: older versions did not record the owners
    charge: int = 0  #: the bytes of the quota that it uses; older versions did not record the charge

    @property
    def effective_charge(self) -> int:
        """The charge; for documents of older versions, a lower bound of it."""
        return self.charge or self.size + self.files * ENTRY_BYTES


class KeptImage(SharedDocument, frozen=True, kw_only=True):
    """An image, with the bundles of its base."""

    image: ImageRecord


class KeptJob(SharedDocument, frozen=True, kw_only=True):
    """The making of an image: its inputs, and the kernel that makes it; or its failure."""

    id: str
    by: KernelEpoch
    needs: tuple[str, ...]  #: ids of the bundles, and of the base
    owner: str = OPERATOR  #: who requested it
    state: Literal["queued", "running", "failed"] = "queued"
    at: datetime
    error: ErrorInfo | None = None

    @property
    def as_job(self) -> Job:
        """The job in the form of answers."""
        return Job(id=self.id, state=self.state, error=self.error)


S = TypeVar("S", bound=SharedDocument)


class VersionedDocument(NamedTuple, Generic[S]):
    """The content of a document, and its version."""

    value: S
    version: int


async def this_epoch(store: Store) -> KernelEpoch:
    """Return the kernel that has the store open, and its epoch."""
    return next(KernelEpoch(each.name, each.epoch) for each in await store.kernels() if each.name == store.kernel)


async def is_live(store: Store, worker: KernelEpoch) -> bool:
    """Return whether that epoch of a kernel has not ended."""
    return any(each.alive and worker == KernelEpoch(each.name, each.epoch) for each in await store.kernels())


class Documents(Generic[S]):
    """The documents of one kind."""

    def __init__(self, store: Store, kind: str, type: type[S], clock: Clock) -> None:
        self._store, self._kind, self._type, self._clock = store, kind, type, clock

    async def get(self, key: str) -> S | None:
        """Return a document; None if there is none, or a living kernel is removing it. Raises Damaged."""
        entry = await self._find(key)
        return None if entry is None or await self._is_being_removed(entry.value) else entry.value

    async def all(self) -> list[S]:
        """Return all documents of the kind, in order of the keys.

        Documents that are being removed are included: they may stay.
        """
        return [self._read(each).value for each in await self._store.list(self._kind)]

    async def find_stable(self, key: str) -> VersionedDocument[S] | None:
        """Return a document with its version, once no living kernel is removing it. Return None if there is none."""
        while True:
            entry = await self._find(key)
            if entry is None or not await self._is_being_removed(entry.value):
                return entry
            await self._clock.sleep(_LOOK_S)

    async def put(self, key: str, value: S, *, expected: int | None = None) -> int:
        """Write a document, and return its version. Raises Conflict."""
        return (await self._store.put(self._kind, key, msgspec.json.encode(value), expected=expected)).version

    async def add(self, key: str, value: S) -> bool:
        """Write a document, unless there is one already. Return whether it was written."""
        while True:
            if await self.find_stable(key) is not None:
                return False
            with contextlib.suppress(Conflict):
                await self.put(key, value, expected=0)
                return True

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Delete a document. Return whether there was one. Raises Conflict."""
        return await self._store.delete(self._kind, key, expected=expected)

    @contextlib.asynccontextmanager
    async def removing(self, kind: str, key: str) -> AsyncIterator[S]:
        """Block new use of a document, and remove it at the end of the block; the document stays if the block raises.

        Raises Unknown(`kind`) if there is none, or a kernel is removing it. Must not be cancelled: see `run_shielded`.
        """
        me = await this_epoch(self._store)
        while True:
            entry = await self._find(key)
            if entry is None or await self._is_being_removed(entry.value):
                raise Unknown(kind, key)
            restored_value = replace(entry.value, going=None)
            with contextlib.suppress(Conflict):
                version = await self.put(key, replace(restored_value, going=me), expected=entry.version)
                break
        try:
            yield restored_value
        except BaseException:
            await self.put(key, restored_value, expected=version)
            raise
        await self.delete(key, expected=version)

    async def _find(self, key: str) -> VersionedDocument[S] | None:
        document = await self._store.get(self._kind, key) if _ID.match(key) else None
        return self._read(document) if document is not None else None

    async def _is_being_removed(self, value: S) -> bool:
        return value.going is not None and await is_live(self._store, value.going)

    def _read(self, document: Document) -> VersionedDocument[S]:
        value = document.decode(self._type)
        if value.version > VERSION:
            raise Damaged(self._kind, document.key, f"it is of version {value.version}, and this ramet reads {VERSION}")
        return VersionedDocument(value, document.version)
