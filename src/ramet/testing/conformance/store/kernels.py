"""Checks of the owners of trees, and of the information that several kernels of one store have of each other."""

from __future__ import annotations

import asyncio

from ramet.core.errors import Conflict, InvalidValue, OwnedElsewhere
from ramet.store.contract import Document, DocumentWrite, KernelInfo, Store
from ramet.testing.conformance.store.harness import (
    Check,
    StoreFixture,
    comes_true,
    entry,
    holds,
    keep,
    raises,
    raises_now,
)


async def an_open_kernel_is_alive(fixture: StoreFixture) -> None:
    """Check that the kernel that has the store open is alive, at its announced address."""
    async with fixture.open() as store:
        (kernel,) = await store.kernels()
        holds(
            kernel == KernelInfo(store.kernel, 1, "", alive=True),
            f"it is alive, of epoch 1, without an address: {kernel}",
        )
        await store.announce("http://here:1")
        await store.announce("http://here:2")
        holds(await store.kernels() == [kernel._replace(address="http://here:2")], "it answers where it said last")
        await raises(InvalidValue, store.announce("a\0b"), "an address that is no text")
    async with fixture.open() as store:
        (kernel,) = await store.kernels()
        holds((kernel.address, kernel.alive) == ("", True), "what was announced ends with its kernel")


async def a_tree_has_an_owner(fixture: StoreFixture) -> None:
    """Check that the first writer of a tree owns it until release, and that a tree without an owner can be claimed."""
    async with fixture.open() as store:
        holds(await store.owner_of("tree") is None, "nobody has what is not known")
        await keep(store, entry(1))
        (kernel,) = await store.kernels()
        holds(await store.owner_of("tree") == kernel, "an event makes a tree its writer's")
        await store.put("kind", "key", b"", tree="other")
        holds(await store.owner_of("other") == kernel, "so does a document that is written as its owner")
        holds(list(await store.claim(["tree", "new", "new"])) == ["new", "tree"], "its own, and what nobody has")
        holds(await store.owner_of("new") == kernel, "that is its own now")
        holds(list(await store.claim([])) == [], "nothing asked, nothing claimed")
        holds(list(await store.claim_fallen()) == [], "nobody has fallen")
        for _ in range(2):
            await store.let_go("tree")
            holds(await store.owner_of("tree") is None, "what was let go is nobody's")
        await keep(store, entry(2))
        holds(await store.owner_of("tree") == kernel, "and may be had again")
        for field in ("a\0", "\ud800"):
            await raises(InvalidValue, store.claim([field]), "a tree of no name")
            await raises(InvalidValue, store.owner_of(field), "likewise")
        await raises(InvalidValue, store.claim_fallen(-1), "less than none")


async def writes_to_another_kernels_tree_are_refused(fixture: StoreFixture) -> None:
    """Check that writes to another kernel's tree are refused, with name and address, and all other writes succeed."""
    async with fixture.open() as store, fixture.kernel("other") as other:
        await store.announce("http://one")
        await keep(store, entry(1))
        lost: list[OwnedElsewhere] = []
        other.on_tree_loss(lost.append)
        tickets = [other.append(each) for each in (entry(1, tree="mine"), entry(2), entry(2, tree="mine"))]
        refusal = await raises(OwnedElsewhere, other.durable(tickets[1]), "an event of another's tree")
        holds((refusal.tree, refusal.kernel, refusal.address) == ("tree", store.kernel, "http://one"), "it says whose")
        await other.durable(tickets[0])
        await other.durable(tickets[2])
        holds([each.tree for each in lost] == ["tree"], "whoever listens is told once")
        raises_now(OwnedElsewhere, lambda: other.append(entry(3)), "what is known is refused at once")
        await raises(OwnedElsewhere, other.put("kind", "key", b"", tree="tree"), "a document of another's tree")
        holds(await other.get("kind", "key") is None, "it is not there")
        holds(list(await other.claim(["tree", "mine"])) == ["mine"], "what lives is not claimed")
        await other.let_go("tree")
        holds(
            (await store.owner_of("tree") or KernelInfo("", 0, "", alive=False)).name == store.kernel, "nor let go of"
        )
        await keep(store, entry(2))
        stored = [(each.tree, each.seq) for each in await store.read()]
        holds(
            sorted(stored) == [("mine", 1), ("mine", 2), ("tree", 1), ("tree", 2)], f"what was refused is not: {stored}"
        )


async def a_takeover_is_atomic(fixture: StoreFixture) -> None:
    """Check that trees and documents are taken over together, or not at all."""
    async with fixture.open() as store:
        await store.put("team", "a", b"one's")
        documents = await store.take_over(
            "one", ["tree"], [DocumentWrite("team", "a", b"ours", 1), DocumentWrite("team", "b", b"new", 0)]
        )
        holds([each.version for each in documents or ()] == [2, 1], f"documents are as they were written: {documents}")
        holds(
            (await store.owner_of("tree") or KernelInfo("", 0, "", alive=False)).name == store.kernel, "and trees had"
        )
        late = store.take_over(
            "one", ["other"], [DocumentWrite("team", "b", b"lost", 1), DocumentWrite("team", "a", b"late", 1)]
        )
        await raises(Conflict, late, "a document that somebody changed")
        holds((await store.get("team", "b") or Document("", "", 0, b"")).data == b"new", "nothing was written then")
        holds(await store.owner_of("other") is None, "nor claimed")
        documents = await store.take_over(store.kernel, ["tree"], [DocumentWrite("team", "a", b"again", 2)])
        holds([each.version for each in documents or ()] == [3], "what is its own already")
        holds(list(await store.take_over("", [], []) or ()) == [], "nothing of nobody")
        await raises(InvalidValue, store.take_over("one", ["a\0"], []), "a tree of no name")


async def a_living_kernel_is_not_taken_over(fixture: StoreFixture) -> None:
    """Check that a takeover from a live kernel fails, and also one that includes a tree of a live kernel.

    A takeover from a dead kernel succeeds, once.
    """
    put = [DocumentWrite("team", "a", b"theirs")]
    async with fixture.open() as store, fixture.kernel("other") as other:
        async with fixture.kernel("gone") as ended:
            await ended.claim(["left"])
            await store.claim(["tree"])
            holds(await other.take_over("gone", ["left"], put) is None, "it lives")
        holds(await other.take_over("gone", ["left", "tree"], put) is None, "one of the trees is had")
        holds(await store.get("team", "a") is None, "and nothing was written")
        holds((await store.owner_of("left") or KernelInfo("", 0, "", alive=True)).name == "gone", "nor claimed")
        holds(await other.take_over("gone", ["left"], put) is not None, "it is gone")
        holds(await store.has_left("gone", 1), "it left in order")
        holds(not await store.has_left("gone", 2), "it did not begin again")
        holds(not await store.has_left("other", 1), "who lives has not left")
        holds(await store.take_over("other", ["left"], put) is None, "who has it now lives")
        await keep(other, entry(1, tree="left"))


async def trees_of_an_ended_kernel_are_claimed_once(fixture: StoreFixture) -> None:
    """Check that live kernels claim the trees of an ended one, each tree exactly once, for the claimer to write to."""
    trees = [f"tree-{n:02}" for n in range(30)]
    async with fixture.kernel("one") as one, fixture.kernel("two") as two:
        async with fixture.kernel("gone") as ended:
            for tree in trees:
                ended.append(entry(1, tree=tree))
            await ended.claim(["never written"])
            holds(list(await one.claim_fallen()) == [], "a kernel that lives keeps what it has")
        claims = await asyncio.gather(_claim_all(one), _claim_all(two))
        holds(sorted([*claims[0], *claims[1]]) == sorted([*trees, "never written"]), "each was claimed once")
        for store, claimed in zip((one, two), claims, strict=True):
            for tree in claimed:
                holds(
                    (await one.owner_of(tree) or KernelInfo("", 0, "", alive=False)).name == store.kernel,
                    "by its owner",
                )
            await keep(store, *(entry(2, tree=tree) for tree in claimed))
        holds({kernel.name for kernel in await one.kernels()} == {"one", "two"}, "who left nothing is forgotten")


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
        async with fixture.kernel("later") as later:
            await comes_true(lambda: is_known(own, ("later", "")), "one that begins is heard of")
            await later.announce("http://later")
            await comes_true(lambda: is_known(own, ("later", "http://later")), "where it answers is heard")
            await keep(later, entry(1, tree="left"))
        await comes_true(lambda: is_known(own), "that it ended is heard")
        holds(list(await store.claim(["left"])) == ["left"], "what it left may be claimed")
        remove()


async def _claim_all(store: Store) -> list[str]:
    trees: list[str] = []
    while batch := await store.claim_fallen(4):
        trees += batch
    return trees


CHECKS: tuple[Check, ...] = (
    an_open_kernel_is_alive,
    a_tree_has_an_owner,
    writes_to_another_kernels_tree_are_refused,
    a_takeover_is_atomic,
    a_living_kernel_is_not_taken_over,
    trees_of_an_ended_kernel_are_claimed_once,
    kernels_are_notified_of_each_other,
)
