"""Checks of a journal that must hold whatever happened to the kernels that wrote it."""

from __future__ import annotations

import json
import pathlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.core import events
from ramet.core.errors import StoreFailed
from ramet.core.events import Event
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay
from ramet.store.contract import Store
from ramet.store.sqlite.store import SqliteStore
from tests.chaos.planned import PLANS

#: What a run does, as opposed to what is said about it.
_DEEDS = (events.ToolStarted, events.ModelAsked, events.SandboxStarted, events.RunResumed, events.TurnStarted)


@dataclass
class Death:
    """Records and questions that existed when a kernel died."""

    asked: int = 0  #: questions to the model so far
    replies: set[str] = field(default_factory=set)  #: that are on record
    events: int = 0


def store_of(folder: pathlib.Path, server: Sequence[str] = ()) -> Store:
    """Return the store of a trip, opened for reading only."""
    if server:
        from ramet.store.postgres import PostgresStore

        return PostgresStore(server[0], schema=server[1], read_only=True)
    return SqliteStore(folder / "journal.db", read_only=True)


async def read_events(folder: pathlib.Path, server: Sequence[str] = ()) -> dict[str, list[Event]]:
    """Read the events of each tree."""
    if not server and not (folder / "journal.db").exists():
        return {}
    try:
        store = await store_of(folder, server).open()
    except StoreFailed as problem:
        if "there is no journal" in str(problem):  # A kernel that was killed before it had made one.
            return {}
        raise
    try:
        found: dict[str, list[Event]] = defaultdict(list)
        for each in await store.read(limit=100_000):
            found[each.tree].append(events.decode(each.data))
        return dict(found)
    finally:
        await store.close()


def lines(file: pathlib.Path) -> list[str]:
    """Return the whole lines of a file, and none if the file is missing."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


def death_of(folder: pathlib.Path, trees: dict[str, list[Event]]) -> Death:
    """Return the replies, questions and events that existed when a kernel died."""
    stories = [TreeReplay().apply_all(tree_events) for tree_events in trees.values()]
    return Death(
        asked=len(lines(folder / "asked")),
        replies={reply for story in stories for run in story.runs.values() for reply in _replies(run)},
        events=sum(map(len, trees.values())),
    )


def the_tree(trees: dict[str, list[Event]]) -> list[Event]:
    """Return the one tree that did work. Other trees may hold a spawn that was never answered, and nothing below it."""
    done = [tree_events for tree_events in trees.values() if any(isinstance(each, _DEEDS) for each in tree_events)]
    assert len(done) == 1, f"{len(done)} trees were at work"
    return done[0]


def check(folder: pathlib.Path, trees: dict[str, list[Event]], deaths: Sequence[Death]) -> TreeReplay:
    """Check what holds for every trip after its end."""
    tree_events = the_tree(trees)
    story = TreeReplay().apply_all(tree_events)
    assert story.is_over, f"not over: {[run.spawn_event.path for run in story.runs.values() if not run.is_over]}"
    assert [each.seq for each in tree_events] == list(range(1, len(tree_events) + 1)), "its events have no gaps"
    _nothing_after_the_end(tree_events)
    _usage_adds_up(story)
    _nothing_twice(folder)
    _not_asked_again(folder, deaths)
    _nothing_held(folder)
    return story


def not_started(tree_events: Sequence[Event]) -> set[str]:
    """Return the runs whose kernel died after recording the sandbox and before sending the start message.

    Each began again in a new sandbox.
    """
    text = "not received its start message"
    return {each.run for each in tree_events if isinstance(each, events.Notice) and text in each.text}


def check_notices(story: TreeReplay) -> None:
    """Check that each background child's end is reported once, in its parent's conversation and in no other."""
    for run in story.runs.values():
        texts = [str(each.get("content")) for each in run.messages if each.get("type") == "human"]
        notices = Counter(
            child.spawn_event.path
            for child in story.runs.values()
            for text in texts
            if f'task_id="{child.id}"' in text and text.startswith("<task-notification")
        )
        children = {each.spawn_event.path for each in story.runs.values() if each.spawn_event.parent == run.id}
        due = {each.spawn_event.path for each in story.runs.values() if each.spawn_event.background} & children
        assert notices == dict.fromkeys(due, 1), (
            f"{run.spawn_event.path} was told of {dict(notices)}, not of {due} once each"
        )


def effects(folder: pathlib.Path) -> dict[str, set[str]]:
    """Return each effect with the steps that it was done in."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in lines(folder / "effects"):
        step, effect = json.loads(line)
        found[effect].add(step)
    return found


def _replies(run: RunReplay) -> list[str]:
    """Return the recorded replies of a run's model, named as the model names the questions."""
    briefs = [at for at, each in enumerate(run.messages) if each.get("type") == "human" and each["content"] in PLANS]
    if not briefs:
        return []
    replies = [each for each in run.messages[briefs[0] :] if each.get("type") == "ai"]
    return [f"{run.messages[briefs[0]]['content']}:{number}" for number in range(len(replies))]


def _nothing_after_the_end(tree_events: list[Event]) -> None:
    over: set[str] = set()
    for each in tree_events:
        assert not (isinstance(each, _DEEDS) and each.run in over), f"{each.path} went on after its end: {each}"
        if isinstance(each, events.RunEnded):
            assert each.run not in over, f"{each.path} ended twice"
            over.add(each.run)


def _usage_adds_up(story: TreeReplay) -> None:
    for run in story.runs.values():
        assert run.result is not None
        assert run.result.usage == run.usage, f"{run.spawn_event.path}: {run.result.usage} is not {run.usage}"
        if not any(each.spawn_event.background for each in story.runs.values() if each.spawn_event.parent == run.id):
            assert run.result.usage_subtree == run.subtree, (
                f"{run.spawn_event.path}: {run.result.usage_subtree} {run.subtree}"
            )


def _nothing_twice(folder: pathlib.Path) -> None:
    twice = {effect: steps for effect, steps in effects(folder).items() if len(steps) != 1}
    assert not twice, f"done under several steps: {twice}"


def _not_asked_again(folder: pathlib.Path, deaths: Sequence[Death]) -> None:
    asked = lines(folder / "asked")
    for death in deaths:
        again = death.replies & set(asked[death.asked :])
        assert not again, f"replies on record were asked for again: {again}"


def _nothing_held(folder: pathlib.Path) -> None:
    ended = folder / "ended"
    if ended.exists():
        held = json.loads(ended.read_text()).get("held", {})
        assert not held, f"reserved after the end: {held}"
