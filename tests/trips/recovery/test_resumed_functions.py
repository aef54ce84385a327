"""Another kernel resumes the turns of function agents whose kernel was killed or stopped in order."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from ramet.core import events
from ramet.core.events import SandboxStarted
from ramet.core.policy.policy import Policy
from ramet.services.agent_types.function.call import BEGINS_AGAIN
from ramet.services.contract import Chunk
from ramet.store.postgres import PostgresStore
from tests.support.kernels import Kernels, all_kernels, stack
from tests.support.outliving_kernels import begin_outliving, outliving_kernels
from tests.support.tars import tar
from tests.support.turns import Reader, counting
from tests.support.waiting import eventually

__all__ = ["all_kernels", "stack"]  # fixtures are used by their names

pytestmark = pytest.mark.parametrize("stores", ["postgres"])  # It is there for those who say so.

COUNTS, HOLDS, WAITS = (
    {"function": f"tests.support.slow_functions:{each}"} for each in ("counts", "holds", "waits_for")
)


def request_body(text: str) -> bytes:
    """Return the body of a request with one message of a user."""
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


def assert_one_complete_turn(chunks: Sequence[Chunk]) -> None:
    """Assert that the chunks are of one turn, each once, and end with `done`."""
    assert [each.number for each in chunks] == list(range(1, len(chunks) + 1))
    assert len({each.turn for each in chunks}) == 1
    assert chunks[-1].kind == "done", chunks[-1]


def count_calls(folder: pathlib.Path) -> int:
    """Return how often the function was called, where it works in the host."""
    return len(list(folder.glob("called-*")))


async def test_a_killed_kernels_function_is_called_again_in_the_same_turn(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """The reader gets every chunk once. Earlier turns stay in the history, and queued turns follow."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 1}, name="crew")
    bob = await two.spawn_agent("crew", "bob", "slow-function", COUNTS, key=team.key)
    reader = Reader(two, bob, counting(1, 2, tmp_path))
    await reader.done
    assert reader.text == "1 \nafter 0"
    first = Reader(two, bob, counting(9, 5, tmp_path))
    await eventually(lambda: first.text.endswith("4 "))
    second = Reader(two, bob, counting(3, 4, tmp_path))
    await eventually(lambda: second.turn_id)
    kernels[0].kill()
    (tmp_path / "go").touch()
    await asyncio.gather(first.done, second.done)
    assert (first.text, second.text) == ("1 2 3 4 5 6 7 8 9 \nafter 2", "1 2 3 \nafter 4"), first.chunks
    for each in (first, second):
        assert_one_complete_turn(each.chunks)
    assert count_calls(tmp_path) == 4, "the one that was cut off was called again, and no other"
    history = await two.history(bob.agent.id, key=bob.nonce)
    assert [each["content"] for each in history if each["role"] == "assistant"] == [
        reader.text,
        first.text,
        second.text,
    ]
    await two.delete_team("crew", key=team.key)
    store = await PostgresStore(all_kernels.dsn, kernel="looks").open()
    assert await store.list("function-turn") == []
    await store.close()


async def test_a_repeated_function_with_other_output_announces_the_new_start(
    all_kernels: Kernels, stack: AsyncExitStack
) -> None:
    """The first sandbox ended with its kernel. The new one sees the bundle that was loaded in between."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    bundle = (await two.upload_bundle(tar({"kit.py": b"WORD = 'here'"}))).id
    team = await one.create_team({"agents": 1}, name="crew")
    bob = await two.spawn_agent("crew", "bob", "slow-function", WAITS, policy=Policy(), key=team.key)
    turn = Reader(two, bob, request_body("kit"))
    await eventually(lambda: turn.text.endswith("\n"))
    kernels[0].kill()
    await two.get_agent(bob.agent.id, key=bob.nonce)  # It is there: what changes something is not asked for twice.
    await two.control(bob.agent.id, {"@type": "load_bundle", "bundle": bundle}, key=bob.nonce)
    await turn.done
    first, *_, note, _, second, word = turn.text.split("\n")
    assert (note, word, turn.text.count(second)) == (BEGINS_AGAIN, "here", 1), turn.chunks
    assert first != second
    assert_one_complete_turn(turn.chunks)
    assert (await two.history(bob.agent.id, key=bob.nonce))[-1]["content"] == f"{second}\nhere"


async def test_a_stopping_kernel_waits_for_a_function_in_the_host(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """The function ends on the stopping kernel, and no other kernel calls it again."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 1}, name="crew")
    bob = await two.spawn_agent("crew", "bob", "slow-function", COUNTS, key=team.key)
    turn = Reader(two, bob, counting(9, 5, tmp_path))
    await eventually(lambda: turn.text.endswith("4 "))
    kernels[0].process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    await turn.done
    assert turn.text == "1 2 3 4 5 6 7 8 9 \nafter 0", turn.chunks
    assert_one_complete_turn(turn.chunks)
    assert count_calls(tmp_path) == 1
    assert await asyncio.to_thread(kernels[0].process.wait) == 0
    assert len(await two.history(bob.agent.id, key=bob.nonce)) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")
@pytest.mark.parametrize("mode", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
async def test_a_function_in_a_sandbox_that_outlives_its_kernel_is_called_once(
    mode: signal.Signals, stores: str
) -> None:
    """The next kernel adopts the sandbox: the turn and the process stay the same."""
    async with outliving_kernels() as (all_kernels, _):
        first = begin_outliving(all_kernels)
        async with all_kernels.client(first) as client:
            team = await client.create_team({"agents": 1}, name="crew")
            ada = await client.spawn_agent("crew", "ada", "slow-function", HOLDS, policy=Policy(), key=team.key)
            turn = Reader(client, ada, request_body("3"))
            await eventually(lambda: turn.text.endswith("\n"))
            first.process.send_signal(mode)
            await asyncio.to_thread(first.process.wait)
            await turn.leave()
        async with all_kernels.client(begin_outliving(all_kernels)) as client:
            last = turn.chunks[-1]
            rest = [chunk async for chunk in client.read_turn(ada.agent.id, last.turn, last.number, key=ada.nonce)]
            run = (await client.get_agent(ada.agent.id, key=ada.nonce)).run
            history = await client.history(ada.agent.id, key=ada.nonce)
        all_kernels.all[-1].kill()
        sandbox_starts = await sandboxes_of(run, all_kernels.dsn)
    turn.chunks += rest
    me, _, second_id = turn.text.partition("\n")
    assert second_id == me, turn.chunks
    assert_one_complete_turn(turn.chunks)
    assert [each["content"] for each in history] == ["3", f"{me}\n{me}"]
    assert [each.adopted for each in sandbox_starts] == [False, True]


async def sandboxes_of(run: str, dsn: str) -> list[SandboxStarted]:
    """Return the sandbox starts of a run."""
    store = await PostgresStore(dsn, kernel="looks").open()
    tree_events = [events.decode(each.data) for each in await store.read(tree=run)]
    await store.close()
    return [each for each in tree_events if isinstance(each, SandboxStarted)]
