"""Requests of an agent to its host, from a real guest process, and the use of the answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ramet import sub_agent_client
from ramet.core.errors import RametError, SpawnRefused, Unknown
from ramet.core.outcome import Artifact, ErrorInfo, Usage
from ramet.guest import client
from ramet.guest.models import model_endpoint
from ramet.wire.code.capsule import unpack
from ramet.wire.guest_protocol.answer_data import Checkpoint, StopReply, Text
from ramet.wire.guest_protocol.guest_to_host import (
    Cancel,
    LoadCheckpoint,
    ReadArtifact,
    SaveCheckpoint,
    Send,
    Spawn,
    Watch,
)
from ramet.wire.guest_protocol.host_to_guest import Stop
from ramet.wire.values.values import decode, encode
from tests.unit.guest import agents
from tests.unit.guest.scripted_host import Host, guest


def answer_spawn(host: Host, run: str) -> tuple[Spawn, bytes]:
    """Answer the guest's next request, which must be a spawn."""
    spawn, capsule = host.expect(Spawn)
    host.bear(spawn.id, run)
    return spawn, capsule


def test_a_spawned_child_returns_a_typed_value() -> None:
    """The annotation of the child's function gives the type."""
    with guest() as host:
        host.start(agents.parent, 128)
        spawn, capsule = answer_spawn(host, "r2")
        call = unpack(capsule, spawn.capsule_tag)
        assert host.watched() == "r2"
        host.end_child("r2", agents.Report("bees", (1,)))

        expected = [0, "completed", "r2", agents.Report("bees", (1,)), "Report"]
        assert host.value(list[agents.Report | str | int]) == expected
    assert spawn.policy is not None
    assert (spawn.function, spawn.policy.memory_mb, call.args) == ("report", 128, ("bees",))


def test_a_child_that_failed_returns_a_result() -> None:
    """The parent decides about the failure, so that nothing is raised."""
    with guest() as host:
        host.start(agents.failed_child)
        answer_spawn(host, "r2")
        host.watched()
        error = ErrorInfo(type="OutOfMemory", message="too much")
        files = (Artifact(name="a.txt", size=3),)
        host.end_child(
            "r2",
            None,
            status="oom",
            exit_code=137,
            error=error,
            artifacts=files,
            usage=Usage(agents=1),
            stdout="so far",
        )

        assert host.value() == ["oom", 137, "OutOfMemory", "too much", "a.txt", 1, "so far", None]


def test_a_value_that_does_not_fit_the_annotation_is_a_failed_result() -> None:
    """The error names the place in the value."""
    with guest() as host:
        host.start(agents.failed_child)
        answer_spawn(host, "r2")
        host.watched()
        host.end_child("r2", {"topic": 5})

        status, code, kind, message, *_ = host.value()
    assert (status, code, kind) == ("failed", 1, "InvalidValue")
    assert message.startswith("output: ")


def test_a_refused_spawn_is_raised_as_spawn_refused() -> None:
    """The error has the limit, the reason and the free amount."""
    with guest() as host:
        host.start(agents.refused_parent)
        spawn, _ = host.expect(Spawn)
        host.refuse(spawn.id, SpawnRefused("memory_mb", "128 asked", free=64))

        assert host.value() == ["memory_mb", "128 asked", 64, "spawn refused (memory_mb): 128 asked; free now: 64"]


def test_an_uncaught_error_fails_the_guest() -> None:
    """The host gets the error with its fields."""
    with guest() as host:
        host.start(agents.parent)
        spawn, _ = host.expect(Spawn)
        host.refuse(spawn.id, SpawnRefused("depth", "no level below"))
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.type == "SpawnRefused"
    assert failure.fields == {"limit": "depth", "reason": "no level below", "free": None}


def test_threads_spawn_concurrently_and_get_their_own_results() -> None:
    """Answers may come in any order; the numbers of requests rise."""
    count = 20
    with guest() as host:
        host.start(agents.parent_of_many, count)
        spawns = [host.expect(Spawn) for _ in range(count)]
        assert [spawn.id for spawn, _ in spawns] == list(range(1, count + 1))
        calls = {f"r{spawn.id}": unpack(body, spawn.capsule_tag) for spawn, body in spawns}
        for spawn, _ in reversed(spawns):
            host.bear(spawn.id, f"r{spawn.id}")
        for run in sorted(host.watched() for _ in range(count)):
            host.end_child(run, calls[run].function(*calls[run].args))

        assert host.value() == [index + 1 for index in range(count)]


def test_a_child_can_be_awaited() -> None:
    """Several children are awaited in one event loop."""
    with guest() as host:
        host.start(agents.awaiting)
        answer_spawn(host, "a")
        answer_spawn(host, "b")
        for run in {host.watched(), host.watched()}:
            host.end_child(run, run)

        assert host.value() == ["a", "b"]


def test_a_cancelled_await_does_not_lose_the_end_of_a_child() -> None:
    """The end is not asked for twice."""
    with guest() as host:
        host.start(agents.giving_up)
        answer_spawn(host, "slow")
        host.watched()
        cancel, _ = host.expect(Cancel)
        assert (cancel.target, cancel.reason) == ("slow", "too slow")
        host.end_child("slow", None, status="cancelled", exit_code=130, error=ErrorInfo(type="Aborted", message=""))
        host.answer(cancel.id, StopReply(stopped=("main/slow",)))

        assert host.value() == "('main/slow',) cancelled"


def test_cancelling_an_ended_child_is_no_error() -> None:
    """The list of stopped runs is empty."""
    with guest() as host:
        host.start(agents.cancel_twice)
        answer_spawn(host, "r2")
        first, _ = host.expect(Cancel)
        host.answer(first.id, StopReply(stopped=("main/r2",)))
        second, _ = host.expect(Cancel)
        host.refuse(second.id, Unknown("running agent", "r2", ("main",)))

        assert host.value() == [1, 0]


def test_a_wait_may_time_out_and_be_repeated() -> None:
    """TimeoutError leaves the child running, and the child can get messages."""
    with guest() as host:
        host.start(agents.impatient)
        spawn, _ = answer_spawn(host, "slow")
        host.watched()
        send, _ = host.expect(Send)
        assert (spawn.name, send.to, send.text) == ("slow", "slow", "hurry")
        host.answer(send.id, Text(text="queued"))
        host.end_child("slow", 3)

        assert host.value() == "slow queued 3"


def test_a_map_keeps_the_order_and_bound_of_its_items() -> None:
    """A third child is spawned when either of two has ended."""
    with guest() as host:
        host.start(agents.mapper, [-1, -2, -3], 2)
        answer_spawn(host, "a")
        assert host.watched() == "a"
        answer_spawn(host, "b")
        assert host.watched() == "b"
        host.end_child("b", 2)
        answer_spawn(host, "c")
        assert host.watched() == "c"
        host.end_child("c", 3)
        host.end_child("a", 1)

        assert host.value() == [1, 2, 3]


def test_a_map_takes_items_only_as_children_end() -> None:
    """The next item is taken when a child has ended."""
    with guest() as host:
        host.start(agents.ends_seen, 4, 2)
        answer_spawn(host, "a")
        assert host.watched() == "a"
        for before, run in zip("abc", "bcd", strict=True):
            answer_spawn(host, run)
            assert host.watched() == run
            host.end_child(before)
        host.end_child("d")

        assert host.value() == [0, 0, 1, 2]


def test_a_map_waits_for_free_capacity() -> None:
    """A spawn refused for lack of capacity is repeated when a child has ended."""
    with guest() as host:
        host.start(agents.mapper, [-1, -2], 8)
        answer_spawn(host, "a")
        host.watched()
        second, _ = host.expect(Spawn)
        host.refuse(second.id, SpawnRefused("memory_mb", "full", free=0))
        host.end_child("a", 1)
        answer_spawn(host, "b")
        host.watched()
        host.end_child("b", 2)

        assert host.value() == [1, 2]


def test_a_refused_map_cancels_its_running_children() -> None:
    """A refusal that waiting cannot change is raised."""
    with guest() as host:
        host.start(agents.mapper, [-1, -2], 8)
        answer_spawn(host, "a")
        host.watched()
        second, _ = host.expect(Spawn)
        host.refuse(second.id, SpawnRefused("policy.max_sub_agents", "1 is all", free=0))
        cancel, _ = host.expect(Cancel)
        assert cancel.target == "a"
        host.answer(cancel.id, StopReply(stopped=("main/a",)))

        failure = host.failure()
    assert failure.error is not None
    assert failure.error.type == "SpawnRefused"


@pytest.mark.parametrize("moment", ["before it is answered", "while it waits"])
def test_a_waiting_agent_fails_when_its_host_leaves(moment: str) -> None:
    """The error says that the host has closed the channel."""
    with guest() as host:
        host.start(agents.wait_for_child)
        if moment == "while it waits":
            answer_spawn(host, "r2")
            host.expect(Watch)
        else:
            host.expect(Spawn)
        host.leave()
        code, _, err = host.ended()

    assert code == 1
    assert "RametError: the host has closed the channel" in err


def test_an_invalid_message_of_the_host_ends_the_wait() -> None:
    """The error gives the reason."""
    with guest() as host:
        host.start(agents.wait_for_child)
        host.expect(Spawn)
        host.tell(Text(text="not of the vocabulary"))  # type: ignore[arg-type]
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.message.startswith("the host broke the rules of the channel: ")


def test_a_stop_is_raised_in_the_wait_and_a_checkpoint_can_be_saved() -> None:
    """Signals come only later."""
    with guest() as host:
        host.start(agents.stopped)
        answer_spawn(host, "r2")
        host.watched()
        host.tell(Stop(reason="cancelled by a user"))
        save, body = host.expect(SaveCheckpoint)
        assert decode(body, save.json_size) == "half"
        host.answer(save.id)

        assert host.value() == "cancelled by a user"


def test_a_checkpoint_is_loaded_as_the_requested_type() -> None:
    """A checkpoint of another version is not found."""
    with guest() as host:
        host.start(agents.checkpoints)
        load, _ = host.expect(LoadCheckpoint)
        host.answer(load.id, Checkpoint(found=False))
        save, body = host.expect(SaveCheckpoint)
        host.answer(save.id)
        for _ in range(2):
            load, _ = host.expect(LoadCheckpoint)
            host.answer(load.id, Checkpoint(found=True, json_size=save.json_size, version=save.version), body)

        assert host.value() == ["nothing", "nothing", "Report", [3]]
    assert save.version == 2


def test_a_file_of_a_child_is_read() -> None:
    """The content is bytes."""
    with guest() as host:
        host.start(agents.artifact)
        request, _ = host.expect(ReadArtifact)
        host.answer(request.id, None, b"\x00notes")

        assert host.value() == b"\x00notes"
    assert (request.run, request.name) == ("child", "notes.txt")


def test_a_wrong_argument_leaves_the_channel_usable() -> None:
    """The argument is refused before it is sent."""
    with guest() as host:
        host.start(agents.wrong_argument)
        send, _ = host.expect(Send)
        host.answer(send.id, Text(text=f"sent {send.text}"))

        assert host.value() == "InvalidValue sent five"


def test_a_forked_process_cannot_ask() -> None:
    """The process would take answers that belong to its parent."""
    with guest() as host:
        host.start(agents.ask_in_a_fork)
        send, _ = host.expect(Send)
        host.answer(send.id, Text(text="sent"))

        assert host.value().startswith("RametError: this process was forked by an agent")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: client.spawn_sub_agent(agents.add),
        lambda: client.start_sub_agent(agents.add),
        lambda: client.map_sub_agents(abs, [1]),
        lambda: client.save_checkpoint(1),
        client.load_checkpoint,
        lambda: client.read_artifact("x", "y"),
        lambda: client.send_message("x", "y"),
    ],
)
def test_outside_of_an_agent_each_call_says_how_to_run_one(ask: object) -> None:
    """The process of the test is not an agent."""
    with pytest.raises(RametError, match=r"does not run inside an agent.*run_agent"):
        ask()  # type: ignore[operator]


def test_the_public_module_has_the_same_client_names() -> None:
    """The objects are the same, and the client is imported at the first use."""
    for name in sub_agent_client.__all__:
        module = model_endpoint if hasattr(model_endpoint, name) else client
        assert getattr(sub_agent_client, name) is getattr(module, name)
    script = "import sys, ramet.sub_agent_client; print('ramet.guest.client' in sys.modules)"
    process_result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert process_result.stdout == "False\n"


def test_values_of_children_are_sent_as_they_were_encoded() -> None:
    """A scripted host sends what a real one would."""
    json_size, body = encode(agents.Report("x", (1,)))

    assert decode(body, json_size, returns=agents.Report) == agents.Report("x", (1,))
