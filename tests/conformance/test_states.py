"""State on every store: commits, branches, concurrent writers, and what remains after a reopen."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Conflict, Damaged, InvalidValue, MergeConflict, Unknown, UnsavedChanges
from ramet.store.contract import Store
from ramet.store.state.gc import reachable
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.values import MISSING
from ramet.store.state.versioned import Versioned
from ramet.testing.conformance.store.suite import StoreFixture
from tests.conformance.stores import STORES

REGISTRY = "__local_agent_registry__"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """Name of a store."""
    name: str = request.param
    return name


@pytest.fixture
def store_fixture(store: str, tmp_path: Path) -> StoreFixture:
    """Fixture of one store, which opens it."""
    return STORES[store](tmp_path)


@pytest.fixture
async def open_store(store_fixture: StoreFixture) -> AsyncIterator[Store]:
    """Store that is open."""
    async with store_fixture.open() as store:
        yield store


async def test_a_commit_outlives_the_store_it_was_written_through(store_fixture: StoreFixture) -> None:
    """AC-S4-7: values, history and branches outlive the store that they were written through."""
    async with store_fixture.open() as store:
        state = await Versioned.open(store, "notes", author="run-1", clock=FakeClock())
        state.set("small", {"a": [1, 2.5, None, True, "ä"]})
        state.set("large", "x" * 10_000)
        first = await state.commit("one")
        state.remove("small")
        second = await state.commit("two")
    async with store_fixture.open() as store:
        state = await Versioned.open(store, "notes")
        before = await Versioned.open(store, "notes", at=first)

        assert (state.keys(), state.get("large"), state.get("small", "none")) == (["large"], "x" * 10_000, "none")
        assert (before.get("small"), await before.read("large")) == ({"a": [1, 2.5, None, True, "ä"]}, "x" * 10_000)
        assert await state.history() == [second, first]
        assert (second.parents, second.message, second.author) == ((first.id,), "two", "run-1")
        assert await state.branches() == {"main": second.id}


async def test_diff_shows_and_revert_undoes_one_commit(open_store: Store) -> None:
    """AC-S4-7: a revert is one more commit, and later changes stay."""
    state = await Versioned.open(open_store, "notes")
    state.set("a", 1)
    state.set("b", 1)
    first = await state.commit()
    state.set("a", 2)
    state.set("c", 1)
    second = await state.commit()
    state.set("b", 2)
    third = await state.commit()

    assert await state.diff(first, second) == [("a", None, 1, 2), ("c", None, MISSING, 1)]
    assert await state.diff(None, first) == [("a", None, MISSING, 1), ("b", None, MISSING, 1)]
    assert await state.diff(third, second) == [("b", None, 2, 1)]

    await state.revert(second.id)

    assert {key: state.get(key) for key in state.keys()} == {"a": 1, "b": 2}
    assert len(await state.history()) == 4


async def test_a_revert_of_a_key_changed_since_is_refused_or_resolved(open_store: Store) -> None:
    """A revert never overwrites a later change silently."""
    state = await Versioned.open(open_store, "notes")
    for value in (1, 2, 3):
        state.set("a", value)
        commit = await state.commit()
    second = (await state.history())[1]

    with pytest.raises(MergeConflict) as refusal:
        await state.revert(second)
    assert refusal.value.keys == ("a",)
    assert state.head == commit

    await state.revert(second, resolve=lambda key, base, ours, theirs: [key, base, ours, theirs])
    assert state.get("a") == ["a", 2, 3, 1]


async def test_unchanged_values_are_not_written_again(open_store: Store) -> None:
    """AC-S4-7: a commit of one key among many writes at most five blobs, whatever the size of the state."""
    state = await Versioned.open(open_store, "notes")
    for number in range(1_000):
        state.set(f"key-{number}", {"n": number, "text": "x" * 300})
    await state.commit()
    before = set(await open_store.list_blobs())

    state.set("key-500", "changed")
    state.set("key-501", {"n": 501, "text": "x" * 300})  # as it was
    await state.commit()

    added = set(await open_store.list_blobs()) - before
    assert len(added) <= 5
    assert sum(map(len, (await open_store.get_blobs([*added])).values())) < 8_000
    assert (await state.commit()) == state.head  # nothing changed, nothing written


async def test_the_second_of_two_commits_follows_the_first(open_store: Store) -> None:
    """AC-S4-7, retry: changes of different keys are both there."""
    ours, theirs = await Versioned.open(open_store, "notes"), await Versioned.open(open_store, "notes")
    ours.set("ours", 1)
    ours.set("same", "equal")
    theirs.set("theirs", 2)
    theirs.set("same", "equal")

    await theirs.commit()
    commit = await ours.commit()

    assert (ours.get("ours"), ours.get("theirs")) == (1, 2)
    assert commit.parents == (theirs.head and theirs.head.id,)


async def test_changes_of_the_same_key_are_refused_merged_or_abandoned(open_store: Store) -> None:
    """AC-S4-7, retry | merge | abandon: a refusal keeps the changes, abandoning drops them."""
    states = [await Versioned.open(open_store, "notes") for _ in range(4)]
    for number, state in enumerate(states):
        state.set("key", number)
        state.set(f"own-{number}", number)
    first, second, third, fourth = states
    await first.commit()

    with pytest.raises(MergeConflict) as refusal:
        await second.commit()
    assert (refusal.value.keys, second.get("key"), second.is_changed) == (("key",), 1, True)
    with pytest.raises(MergeConflict):
        await second.commit()

    asked = list[tuple[Any, ...]]()

    def both(*sides: Any) -> list[Any]:
        asked.append(sides)
        return [sides[2], sides[3]]

    await third.commit(on_conflict="merge", resolve=both)
    assert asked == [("key", MISSING, 2, 0)]
    assert (third.get("key"), third.keys()) == ([2, 0], ["key", "own-0", "own-2"])

    with pytest.raises(Conflict):
        await fourth.commit(on_conflict="abandon")
    assert (fourth.get("key"), fourth.keys(), fourth.is_changed) == ([2, 0], ["key", "own-0", "own-2"], False)


async def test_twenty_concurrent_writers_lose_nothing(open_store: Store) -> None:
    """Each commit is in the history once, and the history is one line."""

    async def work(number: int) -> None:
        state = await Versioned.open(open_store, "notes", author=f"run-{number}")
        for step in range(3):
            state.set(f"{number}/{step}", step)
            await state.commit()

    await asyncio.gather(*map(work, range(20)))

    state = await Versioned.open(open_store, "notes")
    commits = await state.history()
    assert len(state.keys()) == 60
    assert len(commits) == 60
    assert all(len(commit.parents) <= 1 for commit in commits)


async def test_a_parent_merges_the_branch_of_its_child_exactly_once(store_fixture: StoreFixture) -> None:
    """AC-S4-10: a child forks at a real commit.

    The parent sees nothing of it before the merge, and merges it exactly once, also after the parent's restart.
    """
    async with store_fixture.open() as store:
        parent = await Versioned.open(store, "notes")
        parent.set("task", "count")
        forked = await parent.commit()
        child = await parent.fork("child-1", author="run-2")
        assert child.head == forked
        child.set("answer", 42)
        await child.commit()
        assert "answer" not in parent
        assert "answer" not in await Versioned.open(store, "notes")
    async with store_fixture.open() as store:  # the parent is another process by now
        parent = await Versioned.open(store, "notes")
        assert "answer" not in parent
        parent.set("other", 1)
        await parent.commit()

        merged = await parent.merge("child-1")
        again = await parent.merge("child-1")

        assert (parent.get("answer"), parent.get("other"), parent.get("task")) == (42, 1, "count")
        assert again == merged
        assert len(merged.parents) == 2
        assert [each.author for each in await parent.history()].count("run-2") == 1


async def test_a_merge_asks_only_for_keys_that_both_sides_changed(open_store: Store) -> None:
    """Entries of a directory are decided one by one. A removal on one side and a change on the other conflict, too."""
    ours = await Versioned.open(open_store, "notes")
    ours.set(REGISTRY, {"a": 1, "b": 1, "c": 1})
    ours.set("gone", 1)
    await ours.commit()
    theirs = await ours.fork("theirs")
    ours.set_entry(REGISTRY, "a", 2)
    ours.set_entry(REGISTRY, "b", 2)
    ours.remove("gone")
    await ours.commit()
    theirs.set_entry(REGISTRY, "b", 3)
    theirs.set_entry(REGISTRY, "d", 3)
    theirs.set("gone", 2)
    await theirs.commit()

    with pytest.raises(MergeConflict) as refusal:
        await ours.merge(theirs)
    assert refusal.value.keys == (f"{REGISTRY}[b]", "gone")

    asked = list[tuple[Any, ...]]()

    def ours_first(*sides: Any) -> Any:
        asked.append(sides)
        return sides[2]

    await ours.merge(theirs, resolve=ours_first)
    assert asked == [(f"{REGISTRY}[b]", 1, 2, 3), ("gone", 1, MISSING, 2)]
    assert ours.get(REGISTRY) == {"a": 2, "b": 2, "c": 1, "d": 3}
    assert "gone" not in ours


async def test_an_older_commit_can_be_forked_but_not_committed_to(open_store: Store) -> None:
    """Unsaved changes at an older commit go into a fork. Committing them, or a checkout over them, is refused."""
    state = await Versioned.open(open_store, "notes")
    state.set("a", 1)
    first = await state.commit()
    state.set("a", 2)
    await state.commit()

    await state.checkout(first.id)
    assert state.get("a") == 1
    state.set("b", 1)
    with pytest.raises(UnsavedChanges, match="fork"):
        await state.commit()
    with pytest.raises(UnsavedChanges):
        await state.checkout()
    rescue = await state.fork("rescue", with_changes=True)
    await rescue.commit()
    await state.checkout()

    assert (state.get("a"), rescue.get("a"), rescue.get("b"), "b" in state) == (2, 1, 1, False)


async def test_a_missing_or_wrong_commit_or_branch_is_refused(open_store: Store) -> None:
    """An unknown commit or branch, an existing branch and a commit of another state each raise their own error."""
    state = await Versioned.open(open_store, "notes")
    other = await Versioned.open(open_store, "others")
    foreign = await other.commit()
    await state.commit()

    with pytest.raises(Unknown, match="0000"):
        await state.checkout("0" * 64)
    with pytest.raises(Unknown, match="main"):
        await state.merge("nobody")
    with pytest.raises(Conflict):
        await state.fork("main")
    with pytest.raises(InvalidValue, match="others"):
        await state.checkout(foreign.id)


async def test_a_commit_never_brings_back_a_removed_branch(open_store: Store) -> None:
    """A commit to a removed branch is refused.

    A new branch of the same name and base takes the commit without losing its own.
    """
    state = await Versioned.open(open_store, "notes")
    await state.commit()
    held, child = await state.fork("child"), await Versioned.open(open_store, "notes", "child")
    held.set("a", 1)
    await child.delete()
    with pytest.raises(Conflict):
        await held.commit()
    assert list(await state.branches()) == ["main"]

    state.set("main", 1)
    await state.commit()
    await state.fork("child")  # the same name, the same version of its document
    await held.commit()

    anew = await Versioned.open(open_store, "notes", "child")
    assert (anew.get("a"), anew.get("main"), len(await anew.history())) == (1, 1, 3)  # nothing was written over


async def test_a_commit_to_an_unrelated_branch_of_its_name_is_refused(open_store: Store) -> None:
    """A branch of the same name that begins elsewhere is another branch."""
    state = await Versioned.open(open_store, "notes")
    await state.commit()
    held, child = await state.fork("child"), await Versioned.open(open_store, "notes", "child")
    held.set("a", 1)
    child.set("b", 1)
    await child.commit()
    await child.delete()
    held_at = held.head
    fresh = await Versioned.open(open_store, "notes", "child")
    fresh.set("c", 1)
    await fresh.commit()

    with pytest.raises(Conflict):
        await held.commit()
    assert held.head == held_at


async def test_a_branch_with_unseen_commits_is_not_removed(open_store: Store) -> None:
    """A delete is refused if another writer committed to the branch since."""
    state = await Versioned.open(open_store, "notes")
    await state.commit()
    child = await state.fork("child")
    beside = await Versioned.open(open_store, "notes", "child")
    beside.set("late", 1)
    await beside.commit()

    with pytest.raises(Conflict):
        await child.delete()


async def test_exactly_the_blobs_of_branches_are_reachable(open_store: Store) -> None:
    """A garbage collection may remove the blobs that no branch leads to."""
    state = await Versioned.open(open_store, "notes")
    for number in range(50):
        state.set(f"key-{number}", "x" * (number * 20))
    await state.commit()
    child = await state.fork("child")
    child.set("key-1", "y" * 5_000)
    lost = await child.commit()
    held = set(await open_store.list_blobs())
    assert await reachable(open_store) == held

    await open_store.put_blob(b"of somebody else")
    await child.delete()

    gone = held - await reachable(open_store)
    assert {lost.id, hashlib.sha256(b'"' + b"y" * 5_000 + b'"').hexdigest()} <= gone
    for name in gone:
        await open_store.delete_blob(name)
    state = await Versioned.open(open_store, "notes")
    assert [len(state.get(f"key-{number}")) for number in range(50)] == [number * 20 for number in range(50)]


async def test_a_missing_blob_raises_damaged_with_its_name(open_store: Store) -> None:
    """A read through a missing blob never returns a missing or a different value."""
    state = await Versioned.open(open_store, "notes")
    state.set("a", 1)
    commit = await state.commit()
    await open_store.delete_blob(commit.root)

    again = await Versioned.open(open_store, "notes")
    with pytest.raises(Damaged, match=commit.root):
        again.get("a")


async def test_a_cancelled_commit_is_whole_or_absent_and_can_be_repeated(open_store: Store) -> None:
    """A commit after a cancelled one leaves exactly one commit with every change."""
    for turns in range(8):
        state = await Versioned.open(open_store, f"notes-{turns}")
        state.set("a", turns)
        state.set("large", "x" * 1_000)
        writing = asyncio.ensure_future(state.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

        await state.commit()

        again = await Versioned.open(open_store, f"notes-{turns}")
        assert (again.get("a"), again.get("large"), len(await again.history())) == (turns, "x" * 1_000, 1)


async def test_a_value_set_during_a_commit_is_in_the_next_commit(open_store: Store) -> None:
    """A commit holds the values at the moment of the call."""
    state = await Versioned.open(open_store, "notes")
    state.set("a", 1)
    state.set("b", "x" * 1_000)
    writing = asyncio.ensure_future(state.commit())
    await asyncio.sleep(0)
    state.set("a", 2)
    state.set("b", "y" * 1_000)
    first = await writing

    assert (state.get("a"), state.get("b"), state.is_changed) == (2, "y" * 1_000, True)
    await state.commit()
    assert (await Versioned.open(open_store, "notes", at=first)).get("a") == 1
    assert (await Versioned.open(open_store, "notes")).get("b") == "y" * 1_000


async def test_a_value_set_during_a_merge_revert_or_checkout_is_kept(
    open_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge and a revert leave the new value unsaved on top of their result. A checkout is refused."""
    state = await Versioned.open(open_store, "notes")
    state.set("a", 1)
    await state.commit()
    child = await state.fork("child")
    child.set("b", 1)
    theirs = await child.commit()

    def meanwhile(method: str, key: str) -> None:
        real = getattr(open_store, method)

        async def called(*args: Any) -> Any:
            monkeypatch.setattr(open_store, method, real)
            state.set(key, 1)
            return await real(*args)

        monkeypatch.setattr(open_store, method, called)

    meanwhile("put_together", "c")
    await state.merge("child")
    assert (state.unsaved, state.get("b")) == (["c"], 1)
    await state.commit()
    meanwhile("put_together", "d")
    await state.revert(theirs)
    assert (state.unsaved, state.keys()) == (["d"], ["a", "c", "d"])
    await state.commit()
    meanwhile("get_blobs", "e")
    with pytest.raises(UnsavedChanges):
        await state.checkout(theirs)
    assert (state.unsaved, state.keys()) == (["e"], ["a", "c", "d", "e"])


async def test_one_entry_of_a_large_directory_is_read_alone(open_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are found and listed one by one: fewer than 40 blobs are read of 20,000 entries.

    A change loses no other entry.
    """
    state = await Versioned.open(open_store, "notes")
    many = 20_000
    state.set(REGISTRY, {f"specialist-{number}": {"primer": f"number {number}"} for number in range(many)})
    await state.commit()
    asked = list[int]()
    real = open_store.get_blobs_now

    def counted(names: Sequence[str]) -> Mapping[str, bytes]:
        asked.append(len(names))
        return real(names)

    monkeypatch.setattr(open_store, "get_blobs_now", counted)

    again = await Versioned.open(open_store, "notes")
    assert again.entry(REGISTRY, "specialist-777") == {"primer": "number 777"}
    assert again.entry(REGISTRY, "nobody") is None
    assert [*again.entries(REGISTRY, "specialist-19", 3)] == ["specialist-19", "specialist-190", "specialist-1900"]
    assert again.keys() == [REGISTRY]
    assert sum(asked) < 40
    again.set_entry(REGISTRY, "specialist-777", {"primer": "another"})
    again.remove_entry(REGISTRY, "specialist-778")
    await again.commit()

    await state.checkout()
    assert len(state.get(REGISTRY)) == many - 1


async def test_namespaces_are_forked_and_removed_as_one(open_store: Store) -> None:
    """AC-S4-8: a fork has the keys below each path, and removes a path as one. The original keeps them."""
    state = await Versioned.open(open_store, "notes")
    solver = Namespaced(Namespaced(state, "architect"), "math_solver")
    solver.set(REGISTRY, {"parser": {"primer": "parse"}})
    await solver.commit()
    child = await solver.fork("child")
    assert child.remove_namespace("architect") == 2
    await child.commit()

    assert (child.keys(), state.namespaces(recursive=True)) == ([], ["architect", "architect/math_solver"])
    assert Namespaced(state, "architect/math_solver").entry(REGISTRY, "parser") == {"primer": "parse"}
