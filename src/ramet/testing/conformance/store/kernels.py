"""Checks of the owners of trees, and of the information that several kernels of one store have of each other."""

from __future__ import annotations

import asyncio

from ramet.core.errors import Conflict, InvalidValue, OwnedElsewhere
from ramet.store.contract import Document, DocumentWrite, KernelInfo, Store
from ramet.testing.conformance.checks import checks_of, expect, raises, raises_now
from ramet.testing.conformance.store.harness import Check, StoreFixture, append_durably, entry, wait_until


async def an_open_kernel_is_alive(fixture: StoreFixture) -> None:
    """Check that the kernel that has the store open is alive, at its announced address."""
    async with fixture.open() as store:
        (kernel,) = await store.kernels()
        expect(
            kernel == KernelInfo(store.kernel, 1, "", alive=True),
            f"an open kernel is alive, with epoch 1 and without an address: {kernel}",
        )
        await store.announce("http://here:1")
        await store.announce("http://here:2")
        expect(
            await store.kernels() == [kernel._replace(address="http://here:2")],
            "the last announced address is returned",
        )
        await raises(InvalidValue, store.announce("a\0b"), "an address that is not a text")
    async with fixture.open() as store:
        (kernel,) = await store.kernels()
        expect((kernel.address, kernel.alive) == ("", True), "the address of an ended kernel is not kept")


async def a_tree_has_an_owner(fixture: StoreFixture) -> None:
    """Check that the first writer of a tree owns it until release, and that a tree without an owner can be claimed."""
    async with fixture.open() as store:
        expect(await store.owner_of("tree") is None, "an unknown tree has no owner")
        await append_durably(store, entry(1))
        (kernel,) = await store.kernels()
        expect(await store.owner_of("tree") == kernel, "the writer of an event owns the tree")
        await store.put("kind", "key", b"", tree="other")
        expect(await store.owner_of("other") == kernel, "the writer of a document of a tree owns the tree")
        expect(
            list(await store.claim(["tree", "new", "new"])) == ["new", "tree"],
            "a kernel claims its own trees, and those without an owner",
        )
        expect(await store.owner_of("new") == kernel, "a claimed tree belongs to its claimer")
        expect(list(await store.claim([])) == [], "an empty request claims nothing")
        expect(list(await store.claim_orphaned()) == [], "there are no trees of dead kernels")
        for _ in range(2):
            await store.release("tree")
            expect(await store.owner_of("tree") is None, "a released tree has no owner")
        await append_durably(store, entry(2))
        expect(await store.owner_of("tree") == kernel, "a released tree can be owned again")
        for field in ("a\0", "\ud800"):
            await raises(InvalidValue, store.claim([field]), "a tree with an invalid name")
            await raises(InvalidValue, store.owner_of(field), "an owner of a tree with an invalid name")
        await raises(InvalidValue, store.claim_orphaned(-1), "a negative number")


async def writes_to_another_kernels_tree_are_refused(fixture: StoreFixture) -> None:
    """Check that writes to another kernel's tree are refused, with name and address, and all other writes succeed."""
    async with fixture.open() as store, fixture.open_kernel("other") as other:
        await store.announce("http://one")
        await append_durably(store, entry(1))
        losses: list[OwnedElsewhere] = []
        other.on_tree_loss(losses.append)
        tickets = [other.append(each) for each in (entry(1, tree="mine"), entry(2), entry(2, tree="mine"))]
        refusal = await raises(OwnedElsewhere, other.durable(tickets[1]), "an event of a tree of another kernel")
        expect(
            (refusal.tree, refusal.kernel, refusal.address) == ("tree", store.kernel, "http://one"),
            "OwnedElsewhere names the tree, the kernel and its address",
        )
        await other.durable(tickets[0])
        await other.durable(tickets[2])
        expect([each.tree for each in losses] == ["tree"], "a listener is called once")
        raises_now(OwnedElsewhere, lambda: other.append(entry(3)), "a known refusal is raised at once")
        await raises(
            OwnedElsewhere, other.put("kind", "key", b"", tree="tree"), "a document of a tree of another kernel"
        )
        expect(await other.get("kind", "key") is None, "the refused document does not exist")
        expect(list(await other.claim(["tree", "mine"])) == ["mine"], "a tree of a live kernel is not claimed")
        await other.release("tree")
        expect(
            await _owner_name(store, "tree") == store.kernel,
            "a tree of another kernel is not released",
        )
        await append_durably(store, entry(2))
        stored = [(each.tree, each.seq) for each in await store.read()]
        expect(
            sorted(stored) == [("mine", 1), ("mine", 2), ("tree", 1), ("tree", 2)],
            f"only the accepted events exist: {stored}",
        )


async def a_takeover_is_atomic(fixture: StoreFixture) -> None:
    """Check that trees and documents are taken over together, or not at all."""
    async with fixture.open() as store:
        await store.put("team", "a", b"one's")
        documents = await store.take_over(
            "one", ["tree"], [DocumentWrite("team", "a", b"ours", 1), DocumentWrite("team", "b", b"new", 0)]
        )
        expect([each.version for each in documents or ()] == [2, 1], f"the written documents are returned: {documents}")
        expect(
            await _owner_name(store, "tree") == store.kernel,
            "the tree belongs to the new kernel",
        )
        late = store.take_over(
            "one", ["other"], [DocumentWrite("team", "b", b"lost", 1), DocumentWrite("team", "a", b"late", 1)]
        )
        await raises(Conflict, late, "a document that was changed meanwhile")
        expect((await store.get("team", "b") or Document("", "", 0, b"")).data == b"new", "no document was written")
        expect(await store.owner_of("other") is None, "no tree was claimed")
        documents = await store.take_over(store.kernel, ["tree"], [DocumentWrite("team", "a", b"again", 2)])
        expect([each.version for each in documents or ()] == [3], "a takeover from itself succeeds")
        expect(list(await store.take_over("", [], []) or ()) == [], "an empty takeover succeeds")
        await raises(InvalidValue, store.take_over("one", ["a\0"], []), "a tree with an invalid name")


async def a_living_kernel_is_not_taken_over(fixture: StoreFixture) -> None:
    """Check that a takeover from a live kernel fails, and also one that includes a tree of a live kernel.

    A takeover from a dead kernel succeeds, once.
    """
    put = [DocumentWrite("team", "a", b"theirs")]
    async with fixture.open() as store, fixture.open_kernel("other") as other:
        async with fixture.open_kernel("gone") as ended:
            await ended.claim(["left"])
            await store.claim(["tree"])
            expect(await other.take_over("gone", ["left"], put) is None, "a live kernel is not taken over")
        expect(
            await other.take_over("gone", ["left", "tree"], put) is None,
            "a tree of a live kernel prevents the takeover",
        )
        expect(await store.get("team", "a") is None, "no document was written")
        expect(await _owner_name(store, "left") == "gone", "no tree was claimed")
        expect(await other.take_over("gone", ["left"], put) is not None, "an ended kernel is taken over")
        expect(await store.has_closed("gone", 1), "the ended kernel has left in order")
        expect(not await store.has_closed("gone", 2), "a later epoch has not left")
        expect(not await store.has_closed("other", 1), "a live kernel has not left")
        expect(await store.take_over("other", ["left"], put) is None, "the new owner is alive, so it is not taken over")
        await append_durably(other, entry(1, tree="left"))


async def trees_of_an_ended_kernel_are_claimed_once(fixture: StoreFixture) -> None:
    """Check that live kernels claim the trees of an ended one, each tree exactly once, for the claimer to write to."""
    trees = [f"tree-{n:02}" for n in range(30)]
    async with fixture.open_kernel("one") as one, fixture.open_kernel("two") as two:
        async with fixture.open_kernel("gone") as ended:
            for tree in trees:
                ended.append(entry(1, tree=tree))
            await ended.claim(["never written"])
            expect(list(await one.claim_orphaned()) == [], "trees of a live kernel are not claimed")
        claims = await asyncio.gather(_claim_all(one), _claim_all(two))
        expect(sorted([*claims[0], *claims[1]]) == sorted([*trees, "never written"]), "each tree was claimed once")
        for store, claimed in zip((one, two), claims, strict=True):
            for tree in claimed:
                expect(
                    await _owner_name(one, tree) == store.kernel,
                    "the claimer owns the tree",
                )
            await append_durably(store, *(entry(2, tree=tree) for tree in claimed))
        expect(
            {kernel.name for kernel in await one.kernels()} == {"one", "two"},
            "an ended kernel without trees is removed",
        )


async def kernels_are_notified_of_each_other(fixture: StoreFixture) -> None:
    """Check that listeners learn of kernels that begin, announce themselves or end, and can claim their trees."""
    async with fixture.open() as store:
        notified = asyncio.Event()
        remove = store.on_kernels(notified.set)

        async def is_known(*expected: tuple[str, str]) -> bool:
            notified.clear()
            if [(each.name, each.address) for each in await store.kernels() if each.alive] == list(expected):
                return True
            await notified.wait()
            return False

        own = (store.kernel, "")
        async with fixture.open_kernel("later") as later:
            await wait_until(lambda: is_known(own, ("later", "")), "a new kernel is reported")
            await later.announce("http://later")
            await wait_until(lambda: is_known(own, ("later", "http://later")), "an announced address is reported")
            await append_durably(later, entry(1, tree="left"))
        await wait_until(lambda: is_known(own), "the end of a kernel is reported")
        expect(list(await store.claim(["left"])) == ["left"], "a tree of an ended kernel can be claimed")
        remove()


async def _owner_name(store: Store, tree: str) -> str:
    owner = await store.owner_of(tree)
    return "" if owner is None else owner.name


async def _claim_all(store: Store) -> list[str]:
    trees: list[str] = []
    while batch := await store.claim_orphaned(4):
        trees += batch
    return trees


CHECKS: tuple[Check, ...] = checks_of(__name__)
