"""Bundles and images of several kernels on one PostgreSQL: the records decide what each kernel has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import Damaged, InvalidValue, SpawnRefused, StoreFailed, Unknown
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.catalog.shared import DRAFT, PART
from ramet.services.packaging.contract import BundleLimits, BundleTooLarge, Job
from ramet.services.packaging.service import PackagingService
from ramet.services.teams.tables import TeamTables
from ramet.store.contract import Document
from ramet.store.postgres import PostgresStore
from tests.support.image_jobs import wait_finished
from tests.support.postgres import Server, own_postgres, postgres
from tests.support.postgres_stores import open_store, schema
from tests.support.sites import Site
from tests.support.tars import tar
from tests.support.wheels import wheel
from tests.unit.services.test_images import install_settings, make_image, run_in_image

__all__ = ["own_postgres", "postgres", "schema"]  # fixtures are used by their names

SUMS = {"tools/__init__.py": b"", "tools/sums.py": b"def add(a, b):\n    return a + b\n", "data.txt": b"x" * 700}
LARGE = {"noise.bin": random.Random(1).randbytes(3_500_000), "more/noise.py": b"x = 1\n"}


class Kernels:
    """Packaging of several kernels on one schema, each with a folder of its own."""

    def __init__(self, server: Server, schema: str, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self.folder = folder
        self.stores: dict[str, PostgresStore] = {}
        self._server, self._schema, self._stack = server, schema, stack

    async def begin(
        self, name: str, store: Callable[..., PostgresStore] = PostgresStore, **options: Any
    ) -> PackagingService:
        """Start the packaging of a kernel of that name."""
        self.stores[name] = store(self._server.dsn, schema=self._schema, kernel=name)
        await self._stack.enter_async_context(open_store(self.stores[name]))
        service = PackagingService(self.folder / name, store=self.stores[name], **options)
        return await self._stack.enter_async_context(service)

    async def remaining_documents(self, name: str) -> list[str]:
        """Return the keys of all pieces of archives and of drafts."""
        return [each.key for kind in (PART, DRAFT) for each in await self.stores[name].list(kind)]


@pytest.fixture
async def kernels(postgres: Server, schema: str, tmp_path: Path) -> AsyncIterator[Kernels]:
    """No kernel at first."""
    async with contextlib.AsyncExitStack() as stack:
        yield Kernels(postgres, schema, tmp_path, stack)


@contextlib.contextmanager
def deaf_index() -> Iterator[Installs]:
    """A package index that never answers, so that pip waits."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        yield Installs(pip_args=("-i", f"http://127.0.0.1:{deaf.getsockname()[1]}/"))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what one has, all have ------------------------------------------------------------------------------------------


async def test_a_bundle_uploaded_to_one_kernel_is_usable_at_all(kernels: Kernels) -> None:
    """Bytes, modes and info are equal, even after the first kernel has stopped."""
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    script = tar({"run.sh": b"#!/bin/sh\n"}, mode=0o755)
    uploaded = [await one.upload(tar(SUMS)), await one.upload(tar(LARGE, packed=True)), await two.upload(script)]
    ids = [each.id for each in uploaded]

    image = await make_image(two, ids)
    await one.close()
    await kernels.stores["one"].close()
    three = await kernels.begin("three")
    image_copy = await three.image(image.id)

    assert list(await three.list_bundles()) == sorted(uploaded, key=lambda info: info.id)
    assert await three.bundle(ids[0]) == uploaded[0]
    assert await three.list_images() == await two.list_images()
    assert await three.job(image.id) == Job(id=image.id, state="done", image=image.id)
    assert await three.create_image("", ids) == await three.job(image.id)
    assert image_copy.folders == tuple(kernels.folder / "three" / "bundles" / each for each in ids)
    assert [files_of(folder) for folder in image_copy.folders[:2]] == [SUMS, LARGE]
    assert os.access(image_copy.folders[2] / "run.sh", os.X_OK)
    assert await run_in_image(image_copy, "from tools.sums import add; print(add(2, 3))") == "5"
    assert image_copy.folders[0].stat().st_mode & 0o777 == 0o555
    loadable = await three.loadable((await two.upload(tar({"late.py": b""}))).id, image_copy.bundles)
    assert loadable.files == ("late.py",)


@pytest.mark.slow
async def test_each_kernel_installs_requirements_by_its_own_settings(kernels: Kernels) -> None:
    """Each installs once from its operator's source; a kernel without installs refuses the image."""
    wheel(kernels.folder / "wheels", "greeting", "1.0", "hello = 'hello'\n")
    installs = install_settings(kernels.folder / "wheels")
    one, two = [await kernels.begin(name, installs=installs) for name in ("one", "two")]
    three = await kernels.begin("three")
    bundle = await one.upload(tar({"requirements.txt": b"greeting==1.0\n"}))
    image = await make_image(one, [bundle.id])

    image_copy = await two.image(image.id)

    assert await run_in_image(image_copy, "import greeting; print(greeting.hello, greeting.__file__)") == (
        f"hello {kernels.folder}/two/packages/{image.packages[0].name}/greeting.py"
    )
    with pytest.raises(InvalidValue, match="this server does not install packages"):
        await three.image(image.id)
    with deaf_index() as deaf:
        four = await kernels.begin("four", installs=replace(deaf, timeout_s=0.01))
        with pytest.raises(SpawnRefused, match="at this kernel the requirements could not be installed"):
            await four.image(image.id)


async def test_concurrent_uploads_to_several_kernels_are_stored_once(kernels: Kernels) -> None:
    """The bundle has one id, and its image is made once."""
    three = [await kernels.begin(name) for name in ("one", "two", "three")]

    infos = await asyncio.gather(*(each.upload(tar(LARGE, mtime=at)) for at, each in enumerate(three * 2)))
    jobs = await asyncio.gather(*(each.create_image("", [infos[0].id]) for each in three * 2))
    jobs_done = await asyncio.gather(*(wait_finished(each, jobs[0].id) for each in three))

    assert len(set(infos)) == 1
    assert len({job.id for job in jobs}) == 1
    assert {job.state for job in jobs_done} == {"done"}
    for each in three:
        assert list(await each.list_bundles()) == [infos[0]]
        assert [info.id for info in await each.list_images()] == [jobs[0].id]
    parts = await kernels.remaining_documents("one")
    assert len(parts) == len({key.partition("/")[2] for key in parts}) == 4, "of one upload, and no draft"


async def test_a_bundle_outlives_the_draft_of_a_kernel_that_died(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel recorded the bundle and died before it could remove the draft: the next one removes only that."""
    one = await kernels.begin("one")
    store = kernels.stores["one"]
    delete = store.delete

    async def fail(kind: str, key: str, **options: Any) -> bool:
        if kind == DRAFT:
            raise StoreFailed(key, "the kernel was killed")
        return await delete(kind, key, **options)

    monkeypatch.setattr(store, "delete", fail)
    with pytest.raises(StoreFailed):
        await one.upload(tar(SUMS))
    monkeypatch.undo()
    await one.close()
    await store.close()

    two = await kernels.begin("two")
    [bundle] = await kernels.stores["two"].list("bundle")
    assert len(await kernels.remaining_documents("two")) == 1, "the parts, and no draft"
    await two.upload(tar(SUMS))
    image = await two.image((await make_image(two, [bundle.key])).id)
    assert [files_of(folder) for folder in image.folders] == [SUMS]
    three = await kernels.begin("three")
    image_copy = await three.image(image.id)
    assert [files_of(folder) for folder in image_copy.folders] == [SUMS]


async def test_kernels_share_one_limit_of_kept_bytes(kernels: Kernels) -> None:
    """A refused bundle leaves nothing, and a deletion by another kernel makes room."""
    limits = BundleLimits(quota=4_000)
    one, two = [await kernels.begin(name, limits=limits) for name in ("one", "two")]
    first = await one.upload(tar({"one.py": b"#" * 600}))
    with pytest.raises(BundleTooLarge):
        await two.upload(tar({"two.py": b"#" * 600}))
    assert list(await two.list_bundles()) == [first]
    assert list((kernels.folder / "two" / "bundles").iterdir()) == []
    await two.delete_bundle(first.id)
    assert (await two.upload(tar({"two.py": b"#" * 600}))).size == 600


async def test_files_without_content_count_for_all_kernels(kernels: Kernels) -> None:
    """Each file counts with its name and an entry, at whichever kernel it was uploaded."""
    limits = BundleLimits(quota=64 * 1024)
    one, two = [await kernels.begin(name, limits=limits) for name in ("one", "two")]
    await one.upload(tar({f"a{number}": b"" for number in range(40)}))

    with pytest.raises(BundleTooLarge, match="of all bundles that are kept"):
        await two.upload(tar({f"b{number}": b"" for number in range(40)}))


async def test_a_full_cache_drops_bundles_deleted_by_other_kernels(kernels: Kernels) -> None:
    """A kernel that runs for long has room for new bundles."""
    limits = BundleLimits(quota=4_000)
    one, two = [await kernels.begin(name, limits=limits) for name in ("one", "two")]
    old = await one.upload(tar({"old.py": b"#" * 600}))
    await two.loadable(old.id, ())
    await one.delete_bundle(old.id)
    new = await one.upload(tar({"new.py": b"#" * 600}))

    assert (await two.loadable(new.id, ())).files == ("new.py",)
    assert not (kernels.folder / "two" / "bundles" / old.id).exists()


# --- what is deleted is deleted everywhere ---------------------------------------------------------------------------


async def test_a_deletion_by_one_kernel_holds_for_all(kernels: Kernels) -> None:
    """The bundle is unknown even if another kernel still has its folder; a new upload restores it."""
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    bundle = await one.upload(tar(SUMS))
    image = await make_image(one, [bundle.id])
    assert await run_in_image(await two.image(image.id), "import tools.sums; print(1)") == "1"
    with pytest.raises(InUse) as refusal:
        await two.delete_bundle(bundle.id)
    assert refusal.value.users == (image.id,)

    await two.delete_image(image.id)
    await two.delete_bundle(bundle.id)

    assert (kernels.folder / "one" / "bundles" / bundle.id).is_dir(), "its folder lags"
    for each in (one, two):
        for refused_by in (each.image, each.delete_image):
            with pytest.raises(Unknown, match="image"):
                await refused_by(image.id)
        with pytest.raises(Unknown, match="bundle"):
            await each.loadable(bundle.id, ())
        with pytest.raises(Unknown, match="bundle"):
            await each.create_image("", [bundle.id])
        with pytest.raises(Unknown, match="bundle"):
            await each.delete_bundle(bundle.id)
        with pytest.raises(Unknown, match="job"):
            await each.job(image.id)
        assert await each.list_images() == []
        assert await each.list_bundles() == []
    assert await kernels.remaining_documents("one") == []
    assert (await one.upload(tar(SUMS))) == bundle
    assert (await make_image(two, [bundle.id])).id == image.id
    assert await run_in_image(await one.image(image.id), "import tools.sums; print(1)") == "1"


async def test_an_image_that_another_kernel_uses_is_not_deleted(kernels: Kernels) -> None:
    """No kernel can begin to use the image during the check; afterwards it is usable as before."""
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    bundle = await one.upload(tar(SUMS))
    image = await make_image(one, [bundle.id])
    calls: list[str] = []

    async def elsewhere() -> Sequence[str]:
        with pytest.raises(Unknown, match="image"):
            await two.image(image.id)
        calls.append("looked")
        return ["crew/bob"]

    with pytest.raises(InUse) as refusal:
        await one.delete_image(image.id, other_users=elsewhere)
    assert (refusal.value.users, calls) == (("crew/bob",), ["looked"])
    assert (await two.image(image.id)).bundles == (bundle.id,)
    assert (await one.image(image.id)).bundles == (bundle.id,)


async def test_a_spawn_fails_if_its_image_is_deleted_meanwhile(
    kernels: Kernels, postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was not on record when the other kernel checked; nothing of it is left."""
    one = await kernels.begin("one")
    image = await make_image(one, [(await one.upload(tar(SUMS))).id])
    rows = TeamTables(kernels.stores["one"])
    store = PostgresStore(postgres.dsn, schema=schema, kernel="two")
    packaging = PackagingService(kernels.folder / "two", store=store)
    async with Site(kernels.folder, store, images=packaging) as site, packaging:
        team = await site.team()
        spawned_agent = await site.agent(team, "there", image=image.id)

        async def elsewhere() -> Sequence[str]:
            return [row.path for row in await rows.foreign_agents(())]

        async def check(opening: object) -> None:
            with pytest.raises(InUse):
                await one.delete_image(image.id, other_users=elsewhere)
            await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
            await one.delete_image(image.id, other_users=elsewhere)

        monkeypatch.setattr(site.echo, "check", check)
        with pytest.raises(Unknown, match="image"):
            await site.agent(team, "late", image=image.id)
        assert await site.left() == ([], [])
        assert await site.free(team) == 3


async def test_a_kernel_that_is_lost_during_a_deletion_deletes_nothing(kernels: Kernels) -> None:
    """The mark of that kernel on the image no longer counts."""
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    bundle = await one.upload(tar(SUMS))
    image = await make_image(one, [bundle.id])

    async def lost() -> Sequence[str]:
        await kernels.stores["one"].close()
        return []

    with pytest.raises(StoreFailed):
        await one.delete_image(image.id, other_users=lost)
    assert (await two.image(image.id)).bundles == (bundle.id,)
    await two.delete_image(image.id)
    assert await two.list_images() == []


# --- jobs, and kernels that are lost ---------------------------------------------------------------------------------


async def test_a_job_is_known_everywhere_and_fails_with_its_kernel(kernels: Kernels) -> None:
    """Nothing of the failed job can be used; a repeated request is done by a live kernel."""
    wheel(kernels.folder / "wheels", "greeting", "1.0", "")
    with deaf_index() as installs:
        one = await kernels.begin("one", installs=installs)
        two = await kernels.begin("two", installs=install_settings(kernels.folder / "wheels"))
        bundle = await two.upload(tar({"requirements.txt": b"greeting\n"}))
        job = await one.create_image("", [bundle.id])
        async with asyncio.timeout(180):
            while (await two.job(job.id)).state != "running":  # noqa: ASYNC110 - of another kernel
                await asyncio.sleep(0.01)

        assert await two.create_image("", [bundle.id]) == await two.job(job.id), "one is at it"
        with pytest.raises(InUse) as refusal:
            await two.delete_bundle(bundle.id)
        assert refusal.value.users == (job.id,)
        with pytest.raises(Unknown, match="image"):
            await two.image(job.id)
        waiting = asyncio.create_task(wait_finished(two, job.id))
        await kernels.stores["one"].close()
        failed_job = await waiting
        await one.close()

    assert failed_job.state == "failed"
    assert failed_job.error is not None
    assert "kernel 'one' was lost while it made this image; request the image again" in failed_job.error.message
    with pytest.raises(Unknown, match="image"):
        await two.image(job.id)
    assert await two.list_images() == []
    assert (await make_image(two, [bundle.id])).id == job.id


async def test_a_failed_job_gives_its_reason_at_every_kernel(kernels: Kernels) -> None:
    """Any kernel may try again."""
    wheel(kernels.folder / "wheels", "greeting", "1.0", "")
    with deaf_index() as deaf:
        one = await kernels.begin("one", installs=replace(deaf, timeout_s=0.01))
        two = await kernels.begin("two", installs=install_settings(kernels.folder / "wheels"))
        bundle = await one.upload(tar({"requirements.txt": b"greeting\n"}))
        failed_job = await wait_finished(one, (await one.create_image("", [bundle.id])).id)
    assert failed_job.error is not None
    assert "not done within 0.01 s" in failed_job.error.message
    assert await two.job(failed_job.id) == failed_job
    assert (await make_image(two, [bundle.id])).id == failed_job.id
    assert (await one.job(failed_job.id)).state == "done"


class DyingStore(PostgresStore):
    """A store of a kernel that is lost when it writes the third piece of an archive."""

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        if kind == PART and key.endswith("/2"):
            await self.close()
        return await super().put(kind, key, data, expected=expected, tree=tree)


async def test_an_incomplete_upload_is_removed_by_the_next_kernel(kernels: Kernels) -> None:
    """Another kernel completes the same upload meanwhile, and it stays."""
    one, two = await kernels.begin("one", DyingStore), await kernels.begin("two")
    with pytest.raises(StoreFailed):
        await one.upload(tar(LARGE))
    assert await two.list_bundles() == []
    assert len(await kernels.remaining_documents("two")) == 3, "two pieces, and whose they are"
    bundle = await two.upload(tar(LARGE))
    await kernels.begin("three")
    assert len(await kernels.remaining_documents("two")) == 4
    assert [each.id for each in await two.list_bundles()] == [bundle.id]


async def test_an_incomplete_or_damaged_bundle_of_the_store_is_refused(kernels: Kernels) -> None:
    """A missing or replaced piece makes the bundle unusable, and nothing stays in the folder."""
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    store = kernels.stores["two"]
    bundle, other = await one.upload(tar(LARGE)), await one.upload(tar(SUMS))
    image = await make_image(one, [bundle.id])
    (small,) = [each for each in await store.list(PART) if len(each.data) < 1000]
    third = await one.upload(tar({"third.py": b""}))
    (another,) = [each for each in await store.list(PART) if len(each.data) < 1000 and each.key != small.key]
    await store.put(PART, small.key, another.data)
    with pytest.raises(Damaged, match=third.id):
        await two.loadable(other.id, ())
    await store.put(PART, small.key, small.data)
    parts = sorted(await store.list(PART), key=lambda each: -len(each.data))
    await store.put(PART, parts[0].key, parts[-1].data)
    with pytest.raises(Damaged, match="its record cannot be read"):
        await two.image(image.id)
    await store.delete(PART, parts[0].key)
    with pytest.raises(Damaged, match="is not in the store"):
        await two.image(image.id)
    assert list((kernels.folder / "two" / "bundles").iterdir()) == []
    assert await two.loadable(other.id, ())


async def test_the_folder_of_a_single_kernel_is_imported_into_the_store_once(kernels: Kernels) -> None:
    """Later deletions hold: the folder does not bring them back."""
    async with PackagingService(kernels.folder / "one") as service:
        bundle = await service.upload(tar(SUMS))
        image = await make_image(service, [bundle.id])
    one, two = [await kernels.begin(name) for name in ("one", "two")]
    assert await run_in_image(await two.image(image.id), "import tools.sums; print(1)") == "1"
    await one.close()
    await kernels.stores["one"].close()
    await two.delete_image(image.id)
    await two.delete_bundle(bundle.id)
    restarted_kernel = await kernels.begin("one")
    assert await restarted_kernel.list_images() == []
    assert await restarted_kernel.list_bundles() == []
    assert not (kernels.folder / "one" / "bundles" / bundle.id).exists()


async def test_invalid_ids_are_unknown(kernels: Kernels) -> None:
    """Paths, long ids and invalid text raise Unknown."""
    one = await kernels.begin("one")
    for id in ("nothing", "../images", "0" * 64, "x" * 2_000, "a\0b", "\udcff"):
        for call in (one.image, one.job, one.bundle, one.delete_image, one.delete_bundle):
            with pytest.raises(Unknown):
                await call(id)
