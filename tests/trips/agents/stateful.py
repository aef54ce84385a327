"""Functions that keep an agent state, in sandboxes and in the host."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from ramet import Policy
from ramet.sub_agent_client import agent_state, spawn_sub_agent, start_sub_agent


def keeps(n: int) -> dict[str, Any]:
    """Commit one run of an agent that counts its runs."""
    state = agent_state()
    numbers = state.get("seen", [])
    state.set("seen", [*numbers, n])
    state.set("plan", {"done": n})
    commit = state.commit(f"run {n}")
    state.set("unsaved", True)
    return {
        "before": numbers,
        "commit": commit.id,
        "keys": state.keys(),
        "has": ["seen" in state, "unseen" in state, state.has("plan")],
        "author": commit.author,
        "messages": [each.message for each in state.history()],
    }


async def keeps_async(n: int) -> list[int]:
    """Commit in an event loop of the host, where calls are awaited."""
    state = agent_state()
    numbers: list[int] = await state.get("seen", [])
    state_set = state.set("seen", [*numbers, n])
    await state_set
    await state.commit()
    return numbers


async def keeps_in_thread(n: int) -> Any:
    """Commit in a thread of the host, where no call is awaited."""
    return await asyncio.to_thread(keeps, n)


def looks_back() -> dict[str, Any]:
    """Check out an older commit, and return to the newest."""
    state = agent_state()
    commits = []
    for n in range(3):
        state.set("n", n)
        commits.append(state.commit(f"n is {n}"))
    state.set("n", 99)
    state.discard()
    state.checkout(commits[0])
    then, refused_type = state.get("n"), ""
    state.set("n", 7)
    try:
        state.commit()
    except Exception as error:
        refused_type = type(error).__name__
    state.discard()
    state.checkout()
    unchanged_commit = state.commit("nothing is changed")
    removals = [state.remove("n"), state.remove("n")]
    state.commit("without n")
    return {
        "then": then,
        "refused": refused_type,
        "same": unchanged_commit.id == commits[2].id,
        "removed": removals,
        "now": state.get("n", "none"),
    }


def hostile() -> dict[str, str]:
    """Try to exceed the own state in many ways; return the error type of each."""
    state = agent_state()
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    tries: dict[str, Any] = {
        "above": lambda: state.set("../victim/secret", 1),
        "root": lambda: state.get("/victim/secret"),
        "nul": lambda: state.set("a\0b", 1),
        "huge key": lambda: state.set("k" * 100_000, 1),
        "huge value": lambda: state.set("k", "v" * 2_000_000),
        "deep": lambda: state.set("k", deep),
        "no data": lambda: state.set("k", object()),
        "no key": lambda: state.get(7),  # type: ignore[arg-type]
        "registry": lambda: state.set("__local_agent_registry__", {"x": {}}),
        "registry below": lambda: state.remove("solver/__local_agent_registry__"),
        "stranger": lambda: state.checkout("0" * 64),
        "branch of others": lambda: state.merge("main"),
        "branch elsewhere": lambda: state.merge("../main"),
        "message": lambda: state.commit("m" * 5_000),
        "conflict": lambda: state.commit(on_conflict="overwrite"),
    }
    outcomes = {}
    for name, attempt in tries.items():
        try:
            outcomes[name] = repr(attempt())
        except Exception as error:
            outcomes[name] = type(error).__name__
    flood = 0
    with contextlib.suppress(Exception):
        for flood in range(30):
            state.set(f"flood{flood}", "v" * 1_000_000)
    outcomes["flood stopped"] = str(flood < 20)
    state.discard()
    state.set("fine", 1)
    outcomes["commit"] = state.commit().message
    return outcomes


def secret() -> None:
    """Keep a value of its own."""
    state = agent_state()
    state.set("secret", 42)
    state.commit("the secret")


def forges() -> list[str]:
    """Try to check out a value that has the form of a commit."""
    import hashlib
    import json

    state = agent_state()
    state.set("a", 1)
    real = state.commit()
    fake = {
        "at": "2026-11-22T08:00:00Z",
        "author": "",
        "height": 2,
        "message": "m" * 2_000,
        "parents": [real.id],
        "root": "",
        "state": "agents",
    }
    state.set("fake", fake)
    state.commit()
    raw = json.dumps(fake, separators=(",", ":"), sort_keys=True).encode()
    order = []
    for _ in range(30):
        try:
            state.checkout(hashlib.sha256(raw).hexdigest())
            order.append("stood on it")
        except Exception as error:
            order.append(type(error).__name__)
    return order


def delegate(word: str) -> str:
    """Work on the parent's state, on a branch."""
    state = agent_state()
    state.set("plan", {**state.get("plan"), "word": word})
    state.set(f"by {word}", True)
    return str(state.commit(f"said {word}").id)


MAY = Policy(allow_sub_agents=True)


def delegates() -> dict[str, Any]:
    """Spawn a delegate, and see its changes only after the merge."""
    state = agent_state()
    state.set("plan", {"of": "the parent"})
    first = state.commit("a plan")
    child = start_sub_agent(delegate, args=("hello",), branch=True)
    result = child.result()
    before = [state.get("plan"), state.keys()]
    branches = state.branches()
    state.set("mine", 1)
    state.commit("meanwhile")
    merge_commit = state.merge(child)
    second_merge = state.merge(child.id)
    return {
        "before": before,
        "branches": {run: commit == result.output for run, commit in branches.items()},
        "child": child.id,
        "plan": state.get("plan"),
        "keys": state.keys(),
        "parents": len(merge_commit.parents),
        "told": [merge_commit.message, merge_commit.author],
        "once": merge_commit.id == second_merge.id,
        "first": first.id,
        "dropped": [state.drop(child), state.drop(child), state.branches()],
    }


def disagrees() -> list[Any]:
    """Change the same keys as the delegate, and merge."""
    state = agent_state()
    state.set("plan", {"of": "the parent"})
    state.set("by hello", "nobody")
    state.commit()
    error_type = ""
    state.set("unsaved", 1)
    try:
        start_sub_agent(delegate, args=("hello",), branch=True)
    except Exception as error:
        error_type = type(error).__name__
    state.discard()
    child = start_sub_agent(delegate, args=("hello",), branch=True)
    child.result()
    state.set("plan", {"of": "another plan"})
    state.set("by hello", "the parent")
    state.commit()
    conflict = ""
    try:
        state.merge(child)
    except Exception as error:
        conflict = f"{type(error).__name__} {getattr(error, 'keys', None)}"
    requests = []

    def resolve(key: str, base: Any, ours: Any, theirs: Any) -> Any:
        requests.append([key, base, ours, theirs])
        return {**ours, "word": theirs["word"]} if key == "plan" else ours

    state.merge(child, resolve=resolve)
    return [error_type, conflict, requests, state.get("plan"), state.get("by hello")]


def nested() -> dict[str, Any]:
    """Spawn a delegate that delegates; only the delegate can merge the inner branch."""
    state = agent_state()
    state.set("plan", {})
    state.commit()
    child = start_sub_agent(middle, MAY, branch=True)
    inner = child.result().output
    before = state.get("plan")
    error_type = ""
    try:
        state.merge(inner)
    except Exception as error:
        error_type = type(error).__name__
    state.merge(child)
    return {"before": before, "refused": error_type, "after": state.get("plan"), "branches": len(state.branches())}


def middle() -> str:
    """Delegate as a delegate, and merge."""
    state = agent_state()
    child = start_sub_agent(delegate, args=("deep",), branch=True)
    child.result()
    assert state.get("plan") == {}
    state.merge(child)
    return child.id


def parent_of_two() -> list[Any]:
    """Spawn two children without a branch, whose states the parent lists and siblings do not see."""
    state = agent_state()
    state.set("mine", 1)
    state.commit()
    one = spawn_sub_agent(named_one).output
    two = spawn_sub_agent(named_two).output
    before = state.keys()
    state.checkout()
    return [one, two, before, state.namespaces(), state.keys()]


def named_one() -> list[str]:
    """Keep state as the first child."""
    return _child("one")


def named_two() -> list[str]:
    """Keep state as the second child."""
    return _child("two")


def _child(word: str) -> list[str]:
    state = agent_state()
    state.set(word, True)
    state.commit()
    keys: list[str] = state.keys()
    return keys


def thief() -> Any:
    """Spawn a function with another agent's name."""

    def secret() -> Any:
        return agent_state().get("secret", "nothing")

    return spawn_sub_agent(secret).output


def remembers(text: str) -> str:
    """Return the earlier texts, as a served function does at each turn."""
    state = agent_state()
    before = state.get("said", [])
    state.set("said", [*before, text])
    state.commit()
    return json.dumps(before)


def leaves_a_branch(text: str) -> str:
    """Spawn a delegate, and do not merge its branch."""
    state = agent_state()
    state.set("plan", {"text": text})
    state.commit()
    start_sub_agent(delegate, args=("hello",), branch=True).result()
    return str(len(state.branches()))
