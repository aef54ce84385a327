"""Tests of a state without an event loop: keys, namespaces, directories, and objects that were changed after a read."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Damaged, InvalidValue, RametError, UnsavedChanges
from ramet.store.memory import MemoryStore
from ramet.store.state.blob_cache import BlobCache
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.versioned import Versioned

REGISTRY = "__local_agent_registry__"


@dataclass
class Point:
    x: int


def test_the_example_of_the_specification_works_unchanged() -> None:
    """The example needs no loop, no store, and no await."""
    base_state = state = Versioned()
    state.set(
        REGISTRY,
        {
            "math_solver_123": {
                "primer": "You are a math solver...",
                "capabilities": [{"type": "module", "name": "math"}, {"type": "class", "name": "Agent"}],
                "task_definitions": {"solve_math_problem": {"docstring": "Solve", "signature": {}}},
            }
        },
    )
    architect_state = Namespaced(base_state, "architect")
    math_solver_state = Namespaced(base_state, "architect/math_solver")
    equation_parser_state = Namespaced(base_state, "architect/math_solver/equation_parser")
    for number, each in enumerate((architect_state, math_solver_state, equation_parser_state)):
        each.set("number", number)
    state.commit_sync("all of it")

    assert state.entry(REGISTRY, "math_solver_123")["primer"] == "You are a math solver..."
    assert [each.get("number") for each in (architect_state, math_solver_state, equation_parser_state)] == [0, 1, 2]
    assert state.namespaces(recursive=True) == [
        "architect",
        "architect/math_solver",
        "architect/math_solver/equation_parser",
    ]


def test_a_namespace_sees_only_keys_below_it() -> None:
    """AC-S4-8: a child's key is invisible to a sibling; a parent lists its descendants."""
    base = Versioned()
    parent, one, two = (Namespaced(base, path) for path in ("p", "p/one", "p/two"))
    lookalike = Namespaced(base, "p/one-more")
    one.set("key", 1)
    one.set("deep/key", 2)
    two.set("key", 3)
    lookalike.set("key", 4)
    base.set("p", "a key of the same name as a namespace")

    assert (one.keys(), two.keys(), one.get("two/key", "none")) == (["deep/key", "key"], ["key"], "none")
    assert parent.keys() == ["one-more/key", "one/deep/key", "one/key", "two/key"]
    assert (parent.keys(recursive=False), one.keys(recursive=False)) == ([], ["key"])
    assert parent.namespaces() == ["one", "one-more", "two"]
    assert base.namespaces(recursive=True) == ["p", "p/one", "p/one-more", "p/one/deep", "p/two"]
    for way_out in ("../two/key", "..", "/p/two/key", "./key"):
        with pytest.raises(InvalidValue):
            one.get(way_out)

    assert parent.remove_namespace("one") == 2
    assert base.keys() == ["p", "p/one-more/key", "p/two/key"]
    assert base.namespaces() == ["p"]
    base.commit_sync()
    assert parent.remove_namespace("two") == 1
    assert parent.namespaces() == ["one-more"]


def test_a_nested_namespace_joins_both_paths() -> None:
    """A namespace in a namespace and the joined path have equal keys."""
    base = Versioned()
    Namespaced(Namespaced(base, "a"), "b/c").set("key", 1)

    assert base.get("a/b/c/key") == 1
    assert Namespaced(Namespaced(base, "a"), "b/c").path == "a/b/c"
    for path in ("", "a/../b", "a/", "x" * 1_024):
        with pytest.raises(InvalidValue):
            Namespaced(base, path)


def test_a_directory_stores_each_entry_separately() -> None:
    """A directory is set and read as a whole or entry by entry."""
    state = Versioned()
    state.set(REGISTRY, {"b": 1, "a": 2, "with/slash": 3})
    state.set_entry(REGISTRY, "c", 4)
    assert state.get(REGISTRY) == {"a": 2, "b": 1, "c": 4, "with/slash": 3}
    assert (state.entry(REGISTRY, "b"), state.entry(REGISTRY, "none", "default")) == (1, "default")
    assert dict(state.entries(REGISTRY, limit=2)) == {"a": 2, "b": 1}
    state.commit_sync()

    state.set(REGISTRY, {"b": 1, "d": 5})
    assert state.unsaved == [f"{REGISTRY}[a]", f"{REGISTRY}[c]", f"{REGISTRY}[d]", f"{REGISTRY}[with/slash]"]
    assert dict(state.entries(REGISTRY, limit=2)) == {"b": 1, "d": 5}
    assert state.remove_entry(REGISTRY, "d") is True
    assert state.remove_entry(REGISTRY, "d") is False
    assert state.keys() == [REGISTRY]
    state.remove_entry(REGISTRY, "b")
    assert (state.get(REGISTRY), REGISTRY in state, state.keys()) == ({}, True, [REGISTRY])
    assert state.remove(REGISTRY) is True
    assert (state.get(REGISTRY), REGISTRY in state, state.keys()) == (None, False, [])


def test_a_directory_accepts_mappings_only_and_other_keys_no_entries() -> None:
    """The refusals name the key and the path inside the value."""
    state = Versioned()
    with pytest.raises(InvalidValue, match="mapping"):
        state.set(REGISTRY, [1])
    with pytest.raises(InvalidValue) as refusal:
        state.set(REGISTRY, {"a": {"b": object()}})
    assert refusal.value.field == f"{REGISTRY}[a].b"
    assert REGISTRY not in state
    with pytest.raises(InvalidValue, match="directory"):
        state.set_entry("ordinary", "a", 1)
    for name in ("", "a\0", "\ud800", "x" * 1_025):
        with pytest.raises(InvalidValue):
            state.set_entry(REGISTRY, name, 1)


def test_a_set_value_is_visible_at_once_and_discarded_with_all_others() -> None:
    """A state is a working copy."""
    state = Versioned()
    state.set("a", 1)
    state.commit_sync()
    state.set("a", 2)
    state.set("b", "x" * 1_000)
    state.remove("none")
    assert (state.get("a"), "b" in state, state.is_changed, state.unsaved) == (2, True, True, ["a", "b"])
    state.set("a", 1)
    assert state.unsaved == ["b"]

    state.discard()

    assert (state.get("a"), "b" in state, state.is_changed, state.keys()) == (1, False, False, ["a"])


def test_a_commit_refuses_objects_that_were_changed_after_their_read() -> None:
    """AC-S4-7: the refusal names the key, and the caller decides to keep or to leave the change."""
    state = Versioned()
    state.set("a", {"list": [1]})
    state.set("b", [1])
    state.commit_sync()
    state.get("a")["list"].append(2)
    state.set("b", [2])

    with pytest.raises(UnsavedChanges) as refusal:
        state.commit_sync()
    assert refusal.value.keys == ("a",)
    assert state.get("a") == {"list": [1]}  # made anew each time
    with pytest.raises(UnsavedChanges):
        state.merge_sync("main")

    state.commit_sync(mutated="leave")
    assert (state.get("a"), state.get("b")) == ({"list": [1]}, [2])

    state.get("a")["list"].append(3)
    state.commit_sync(mutated="keep")
    assert state.get("a") == {"list": [1, 3]}


def test_setting_a_changed_object_stores_the_change() -> None:
    """A further change after `set` is noticed again."""
    state = Versioned()
    state.set("a", [1])
    value = state.get("a")
    value.append(2)
    state.set("a", value)
    state.commit_sync()
    assert state.get("a") == [1, 2]

    value.append(3)
    with pytest.raises(UnsavedChanges):
        state.commit_sync()
    state.set("a", [4])
    state.commit_sync()
    assert state.get("a") == [4]


def test_a_late_change_of_a_part_of_an_object_is_noticed() -> None:
    """Further reads do not hide it, and objects that nobody references are forgotten."""
    state = Versioned()
    for number in range(500):
        state.set(f"key-{number}", {"inner": [[number]]})
    values = [state.get(f"key-{number}")["inner"][0] for number in (3, 400)]
    value = state.get("key-5")
    for _ in range(5):
        for number in range(500):
            state.get(f"key-{number}")
    gc.collect()
    if sys.implementation.name == "cpython":
        assert len(state._line.copy.tracker._tracked_objects) < 200

    values[1].append("late")
    value["late"] = True

    with pytest.raises(UnsavedChanges) as refusal:
        state.commit_sync()
    assert sorted(refusal.value.keys) == ["key-400", "key-5"]


def test_changed_objects_of_named_types_are_noticed() -> None:
    """Dataclasses, and a whole directory of them, are checked."""
    state = Versioned()
    state.set("p", Point(1), as_=Point)
    state.set(REGISTRY, {"p": Point(1)}, as_=Point)
    state.commit_sync()
    state.get("p", as_=Point).x = 2
    state.get(REGISTRY, as_=Point)["p"].x = 3

    with pytest.raises(UnsavedChanges) as refusal:
        state.commit_sync()
    assert refusal.value.keys == ("p", REGISTRY)
    state.commit_sync(mutated="keep")
    assert (state.get("p"), state.get(REGISTRY)) == ({"x": 2}, {"p": {"x": 3}})


def test_two_changed_objects_of_one_key_are_refused() -> None:
    """Keeping one change would lose the other."""
    state = Versioned()
    state.set("a", [1])
    one, other = state.get("a"), state.get("a")
    one.append(2)
    other.append(3)

    with pytest.raises(UnsavedChanges, match="several"):
        state.commit_sync(mutated="keep")


def test_every_operation_works_without_an_event_loop() -> None:
    """Each asynchronous method has a synchronous one."""
    state = Versioned()
    state.set("a", 1)
    first = state.commit_sync("one")
    child = state.fork_sync("child")
    child.set("a", 2)
    second = child.commit_sync("two")
    state.merge_sync(child)
    assert (state.get("a"), sorted(state.branches_sync())) == (2, ["child", "main"])
    state.revert_sync(second)
    assert state.get("a") == 1
    assert len(state.history_sync()) == 4
    assert state.diff_sync(first, second) == [("a", None, 1, 2)]
    state.checkout_sync(second)
    assert state.get("a") == 2
    child.delete_sync()
    state.checkout_sync()
    assert list(state.branches_sync()) == ["main"]


async def test_synchronous_methods_are_refused_in_a_loop() -> None:
    """The error names the method to await, and the loop does not block."""
    state = Versioned()
    with pytest.raises(RametError, match="await commit"):
        state.commit_sync()


async def test_synchronous_methods_work_in_a_thread_outside_the_loop(tmp_path: Any) -> None:
    """A program may run the loop of the store in another thread."""
    from ramet.store.sqlite.store import SqliteStore

    store = await SqliteStore(os.path.join(tmp_path, "journal.db")).open()  # noqa: PTH118 - a path is taken as text, too
    try:
        state = await Versioned.open(store, "notes")

        def work() -> Any:
            state.set("a", [1])
            state.commit_sync()
            return state.checkout_sync(), state.get("a")

        _, value = await asyncio.to_thread(work)
    finally:
        await store.close()
    assert value == [1]


@pytest.mark.parametrize("bytes_", [b'[0,{"a":[2]}]', b"", b"[7]", b"no JSON", b"[1,2,3,4]"])
def test_a_changed_blob_raises_damaged(bytes_: bytes) -> None:
    """A state notices bytes that another program wrote into the store."""
    state = Versioned()
    state.set("a", 1)
    root = state.commit_sync().root
    store = state._line.blob_cache.store
    assert isinstance(store, MemoryStore)
    store._tables.all_blobs[root] = bytes_
    state._line.blob_cache = state._line.copy.blob_cache = BlobCache(store)

    with pytest.raises(Damaged, match=root):
        state.get("a")


@pytest.mark.parametrize(
    "settings", [{"on_conflict": "force"}, {"mutated": "yes"}, {"on_conflict": "merge"}, {"message": 1}]
)
def test_a_commit_refuses_unknown_settings(settings: Any) -> None:
    """InvalidValue is raised for a wrong value of a setting."""
    with pytest.raises(InvalidValue):
        Versioned().commit_sync(**settings)


async def test_the_newest_commit_of_a_moment_is_found_however_many_are_newer() -> None:
    """No number of later commits hides an earlier one; before the first commit there is none."""
    clock = FakeClock()
    state = await Versioned.open(await MemoryStore().open(), "s", clock=clock)
    made = []
    for number in range(12):
        state.set("number", number)
        made.append(await state.commit(f"number {number}"))
        await clock.advance(1)

    found = [await state.newest_by(each.at) for each in made]

    assert [each and each.message for each in found] == [each.message for each in made]
    assert await state.newest_by(made[0].at - timedelta(seconds=1)) is None
