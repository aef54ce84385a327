"""The tree of a state has one form for each content, differences and merges add up, and a state behaves like a dict."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.core.errors import MergeConflict
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from ramet.store.state import tree
from ramet.store.state.blob_cache import BlobCache
from ramet.store.state.diff import differences
from ramet.store.state.gc import reachable
from ramet.store.state.nodes import cell
from ramet.store.state.sync import run_nowait
from ramet.store.state.values import MISSING
from ramet.store.state.versioned import Versioned

# Keys that are the beginnings of each other, that share half a character, and ordinary ones.
KEYS = [*("k" * n for n in range(1, 40)), *("kä" + "ö" * n for n in range(3)), *(f"n/{n}" for n in range(60))]
keys = st.sampled_from(KEYS) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
cells = st.integers(0, 3).map(lambda n: cell(b"%d" % n))
contents = st.dictionaries(keys, cells, max_size=60)
many = st.dictionaries(st.integers(0, 2_000).map("key-{:04}".format), cells, min_size=100, max_size=400) | contents


class Trees:
    """Trees of a store of their own."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        run_nowait(self.store.open())
        self.cache = BlobCache(self.store)

    def update(self, root: str, changes: dict[str, Any]) -> str:
        updated = self.cache.now(tree.update(root, changes))
        run_nowait(self.store.put_together([*updated.blobs.values()], []))
        return updated.root

    def content(self, root: str) -> dict[str, Any]:
        return self.cache.now(tree.scan(root))

    def differences(self, before: str, after: str) -> dict[str, Any]:
        return {key: tuple(each) for key, each in self.cache.now(differences(before, after)).items()}


@settings(max_examples=30)
@given(many, contents, st.randoms(use_true_random=False))
def test_equal_content_has_an_equal_root_whatever_its_history(content: Any, passing: Any, random: Any) -> None:
    """Content has the same root, written at once or key by key in any order, with other keys removed in between."""
    trees = Trees()
    at_once_written = trees.update(tree.EMPTY, content)
    root = trees.update(tree.EMPTY, passing)
    steps = [*content.items(), *((key, None) for key in passing if key not in content)]
    random.shuffle(steps)
    for key, value in steps:
        root = trees.update(root, {key: value})

    assert root == at_once_written
    assert trees.content(root) == content
    assert [*trees.content(root)] == sorted(content)
    for key in [*content, *passing]:
        assert trees.cache.now(tree.find(root, key)) == content.get(key)


def test_the_root_depends_only_on_the_content_at_every_size() -> None:
    """The root equals that of a fresh tree, while entries are added and removed one by one past every split."""
    trees = Trees()
    for names in (
        [f"key-{n:02}" for n in range(60)],
        ["k" * n for n in range(1, 60)],
        [f"{n:x}/{n}" for n in range(60)],
    ):
        content: dict[str, Any] = {}
        root = tree.EMPTY
        for name in names:
            content[name] = cell(b"1")
            root = trees.update(root, {name: content[name]})
            assert root == trees.update(tree.EMPTY, dict(reversed(content.items())))
        for name in names[::-2] + names[::2]:
            if content.pop(name, None) is not None:
                root = trees.update(root, {name: None})
            assert root == trees.update(tree.EMPTY, content)


@settings(max_examples=40)
@given(many, contents, contents)
def test_a_difference_leads_from_one_tree_to_the_other(one: Any, changes: Any, other: Any) -> None:
    """A difference holds every changed key and no other. The difference in the other direction is reversed."""
    trees = Trees()
    for after in ({**one, **changes}, other):
        first, second = trees.update(tree.EMPTY, one), trees.update(tree.EMPTY, after)
        expected = {key: (one.get(key), after.get(key)) for key in one.keys() | after if one.get(key) != after.get(key)}

        found = trees.differences(first, second)

        assert found == expected
        assert trees.update(first, {key: there for key, (_, there) in found.items()}) == second
        assert trees.differences(second, first) == {key: each[::-1] for key, each in expected.items()}
        assert trees.differences(first, first) == {}


@given(contents, keys, st.integers(0, 20))
def test_a_scan_finds_the_keys_of_a_prefix_in_order(content: Any, prefix: str, limit: int) -> None:
    """A scan returns the keys of a prefix in order, with a limit, and shortened at a separator."""
    trees = Trees()
    root = trees.update(tree.EMPTY, content)
    for begins in (prefix, prefix[:1], "n/", "", "k" * 20):
        expected = sorted(key for key in content if key.startswith(begins))
        assert [*trees.cache.now(tree.scan(root, begins))] == expected
        assert [*trees.cache.now(tree.scan(root, begins, limit=limit))] == expected[:limit]
        short = {tree.shorten_key(key, len(begins), "/\0") for key in expected}
        assert {*trees.cache.now(tree.scan(root, begins, cut="/\0"))} == short


def test_keys_that_are_prefixes_of_each_other_make_a_deep_tree() -> None:
    """A tree of 1,024 nested prefixes is read and compared without a deep Python stack."""
    trees = Trees()
    content = {"k" * n: cell(b"1") for n in range(1, 1_025)}
    root = trees.update(tree.EMPTY, content)

    assert trees.content(root) == content
    assert trees.cache.now(tree.find(root, "k" * 1_024)) == cell(b"1")
    assert trees.differences(root, trees.update(root, {"k" * 1_000: None})) == {"k" * 1_000: (cell(b"1"), None)}


@given(
    st.dictionaries(keys.filter(lambda key: "/" not in key and key not in (".", "..")), st.integers(0, 9), max_size=20)
)
@settings(max_examples=30)
def test_merging_different_keys_gives_the_same_content_either_way(content: Any) -> None:
    """Two branches that changed different keys merge to the same content in both directions."""
    names = [*content]
    state = Versioned()
    for key in names:
        state.set(key, content[key])
    state.commit_sync()
    one, other = state.fork_sync("one"), state.fork_sync("other")
    for number, key in enumerate(names):
        side = one if number % 2 else other
        side.set(key, [number]) if number % 3 else side.remove(key)
    one.set("one", 1)
    other.set("other", 1)
    ours, theirs = one.commit_sync(), other.commit_sync()

    left = one.merge_sync(theirs)
    right = other.merge_sync(ours)

    assert left.root == right.root
    assert one.merge_sync(other).root == left.root


class States(RuleBasedStateMachine):
    """State on SQLite with branches, compared with a plain dict for every commit, and reopened between steps."""

    names = st.sampled_from(["a", "b", "n/a", "n/b/c", "__d__", *(f"key-{n}" for n in range(30))])
    data = st.integers(0, 3) | st.text(max_size=3) | st.just("x" * 400) | st.lists(st.integers(0, 2), max_size=2)
    branches = st.sampled_from(["main", "one", "two"])

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="ramet-states-")
        self.committed: dict[str, dict[str, Any]] = {}  #: by branch
        self.bases: dict[str, dict[str, Any]] = {}  #: contents of commits by their ids
        self.working: dict[str, Any] = {}
        self.branch = "main"

    @initialize()
    def begin(self) -> None:
        self.runner.run(self._open("main"))

    async def _open(self, branch: str) -> None:
        self.store = await SqliteStore(Path(self.folder.name) / "journal.db").open()
        self.state = await Versioned.open(self.store, "notes", branch)

    @rule(key=names, value=data)
    def set(self, key: str, value: Any) -> None:
        value = {"e": value} if key == "__d__" else value
        self.state.set(key, value)
        self.working[key] = value

    @rule(key=names)
    def remove(self, key: str) -> None:
        assert self.state.remove(key) is (self.working.pop(key, MISSING) is not MISSING)

    @rule(name=st.sampled_from(["e", "f/g", "h"]), value=data)
    def set_entry(self, name: str, value: Any) -> None:
        self.state.set_entry("__d__", name, value)
        self.working["__d__"] = {**self.working.get("__d__", {}), name: value}

    @rule()
    def remove_namespace(self) -> None:
        gone = [key for key in self.working if key.startswith("n/")]
        assert self.state.remove_namespace("n") == len(gone)
        for key in gone:
            del self.working[key]

    @rule()
    def commit(self) -> None:
        commit = self.runner.run(self.state.commit())
        self.committed[self.branch] = self.bases[commit.id] = dict(self.working)

    @rule()
    def discard(self) -> None:
        self.state.discard()
        self.working = dict(self.committed.get(self.branch, {}))

    @rule()
    def reopen(self) -> None:
        """Reopen the store. Uncommitted changes are gone, and everything else is there."""
        self.runner.run(self.store.close())
        self.runner.run(self._open(self.branch))
        self.working = dict(self.committed.get(self.branch, {}))

    @precondition(lambda self: self.committed)
    @rule(branch=branches)
    def switch_branch(self, branch: str) -> None:
        """Switch to another branch, and create it if it does not exist."""
        self.discard()
        if branch not in self.committed and self.branch in self.committed:
            self.runner.run(self.state.fork(branch))
            self.committed[branch] = dict(self.working)
        self.state = self.runner.run(Versioned.open(self.store, "notes", branch))
        self.branch = branch
        self.working = dict(self.committed.get(branch, {}))

    @precondition(lambda self: self.branch in self.committed)
    @rule(branch=branches, decides=st.booleans())
    def merge(self, branch: str, decides: bool) -> None:
        """Merge a branch, and check that the result keeps equal keys and takes each other key from one side."""
        if branch not in self.committed:
            return
        self.discard()
        ours, theirs = self.working, self.committed[branch]
        try:
            commit = self.runner.run(
                self.state.merge(branch, resolve=(lambda key, base, ours, theirs: theirs) if decides else None)
            )
        except MergeConflict:
            assert not decides
            return
        merged = {key: self.state.get(key) for key in self.state.keys()}
        for key in ours.keys() | theirs.keys():
            if ours.get(key, MISSING) == theirs.get(key, MISSING):
                assert merged.get(key, MISSING) == ours.get(key, MISSING)
            elif key != "__d__":
                assert merged.get(key, MISSING) in (ours.get(key, MISSING), theirs.get(key, MISSING))
        self.working = merged
        self.committed[self.branch] = self.bases[commit.id] = dict(merged)

    @precondition(lambda self: self.bases)
    @rule(at=st.integers(0, 50))
    def look_back(self, at: int) -> None:
        """Check that an earlier commit still has its content."""
        commit, content = [*self.bases.items()][at % len(self.bases)]
        state = self.runner.run(Versioned.open(self.store, "notes", at=commit))
        assert {key: state.get(key) for key in state.keys()} == content

    @invariant()
    def the_state_equals_the_dict(self) -> None:
        if not hasattr(self, "state"):
            return
        assert self.state.keys() == sorted(self.working)
        assert {key: self.state.get(key) for key in self.working} == self.working
        assert self.state.is_changed == (self.working != self.committed.get(self.branch, {}))

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                blobs = self.runner.run(_all(self.store))
                assert self.runner.run(reachable(self.store)) <= blobs
                self.runner.run(self.store.close())
        finally:
            self.runner.close()
            self.folder.cleanup()


async def _all(store: SqliteStore) -> set[str]:
    return {*await store.list_blobs()}


TestStates = States.TestCase
TestStates.settings = settings(settings.get_profile("ramet"), max_examples=25, stateful_step_count=30)
