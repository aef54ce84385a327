"""Attacks 72 to 89 of the list: bytes on a guest's channel that no honest client would send."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ramet.wire import frames
from tests.security.attacks import channel, spawning
from tests.security.attacks.channel import message
from tests.security.kit import SLOW, Kernel

HEAD = struct.Struct("!II")
#: How a run may end whose guest broke the rules of the channel.
BROKEN = {"failed", "crashed", "lost"}
#: A spawn whose body is no function.
SPAWN: dict[str, Any] = {"type": "spawn", "id": 1_000, "function": "one", "capsule_tag": "no such tag"}


def to_hex(data: bytes) -> str:
    """Return bytes as hexadecimal text, since a kernel receives its arguments as JSON."""
    return data.hex()


def assert_broken(kernel: Kernel, result: dict[str, Any]) -> None:
    """Assert that a run failed for breaking the rules of the channel. Assert that the kernel serves the next run."""
    assert result["status"] in BROKEN, result
    assert result["exit_code"] != 0
    assert result["output"] is None
    assert result["error"]["message"]
    assert kernel.attack(spawning.one) == 1


def test_an_honest_frame_is_answered(kernel: Kernel) -> None:
    """Positive control of the tests below: a correct frame gets an answer."""
    [answer] = kernel.attack(channel.ask, [{"type": "list_runs", "id": 1_000}])

    assert (answer["type"], answer["id"]) == ("answer", 1_000)
    assert len(answer["data"]["runs"]) == 1


@pytest.mark.parametrize(
    "head",
    [(0, 0), (0, 10), (2**31, 0), (2**32 - 1, 0), (frames.MAX_CONTROL + 1, 0), (2, 2**31), (2, 2**32 - 1)],
    ids=str,
)
def test_72_a_length_beyond_the_cap_closes_the_channel(kernel: Kernel, head: tuple[int, int]) -> None:
    """72: a head with a length of zero or above the cap ends the run. The host allocates no memory for it."""
    before = kernel.play("facts")["peak_mb"]

    result = kernel.run(channel.send_hex, to_hex(HEAD.pack(*head) + b"{}" * 100))

    assert_broken(kernel, result)
    assert kernel.play("facts")["peak_mb"] - before < 32


WRONG: dict[str, bytes] = {
    "no JSON": HEAD.pack(4, 0) + b"\xff\xfe\x00\x01",
    "a list": HEAD.pack(2, 0) + b"[]",
    "no type": message({"id": 1_000}),
    "unknown type": message({"type": "run_on_host", "id": 1_000, "argv": ["id"]}),
    "a word of the host": message({"type": "answer", "id": 1_000}),
    "unknown field": message({"type": "list_runs", "id": 1_000, "as_root": True}),
    "id is text": message({"type": "list_runs", "id": "1000"}),
    "id is null": message({"type": "list_runs", "id": None}),
    "no id": message({"type": "list_runs"}),
    "deep": HEAD.pack(200_000, 0) + b"[" * 200_000,
    "huge number": message({"type": "list_runs", "id": 10**400}),
    "negative size": message({"type": "save_checkpoint", "id": 1_000, "json_size": -1}, b"{}"),
    "size beyond body": message({"type": "save_checkpoint", "id": 1_000, "json_size": 10**9}, b"{}"),
    "keys and urls": message(
        {
            "type": "ask_model",
            "id": 1_000,
            "step": "s",
            "provider": "x",
            "base_url": "http://127.0.0.1/",
            "api_key": "k",
        }
    ),
    "policy with unknown field": message({**SPAWN, "policy": {"privileged": True}}),
    "policy with wrong type": message({**SPAWN, "policy": {"memory_mb": "all of it"}}),
}


@pytest.mark.parametrize("name", WRONG)
def test_72_88_a_malformed_message_is_refused(kernel: Kernel, name: str) -> None:
    """72, 88, 95: the host refuses malformed JSON, unknown types and fields, and an address or key of a provider."""
    result = kernel.run(channel.send_hex, to_hex(WRONG[name]))

    if name.startswith(("policy", "negative", "size", "keys")) and result["status"] == "completed":
        assert result["output"].startswith("answered"), result  # an error as an answer will do for these
        assert '"error"' in result["output"]
    else:
        assert_broken(kernel, result)


@pytest.mark.parametrize("ids", [[1_000, 1_000], [1_000, 999], [1_000, -5], [1_000, 0]], ids=str)
def test_84_an_id_that_does_not_rise_closes_the_channel(kernel: Kernel, ids: list[int]) -> None:
    """84: a request whose id repeats or falls ends the run."""
    questions = b"".join(message({"type": "list_runs", "id": number}) for number in ids)

    assert_broken(kernel, kernel.run(channel.send_hex, to_hex(questions)))


OTHERS: list[dict[str, Any]] = [
    {"type": "cancel", "target": "TARGET"},
    {"type": "output", "target": "TARGET"},
    {"type": "read_artifact", "run": "TARGET", "name": "mine.txt"},
    {"type": "send", "to": "TARGET", "text": "hello"},
]


def test_85_a_foreign_run_gets_the_error_of_a_missing_run(kernel: Kernel) -> None:
    """85, NEG-3, NEG-8: a request with the id of another tree's run gets the error of a run that does not exist."""
    agent = "tests.security.attacks.answers:write_and_wait"
    other = kernel.play("start", key="other tree", agent=agent, args=["private", 60])
    questions = [
        {**each, "id": 1_000 + at, **{key: target for key, value in each.items() if value == "TARGET"}}
        for at, (each, target) in enumerate((each, target) for each in OTHERS for target in (other, "0" * len(other)))
    ]

    answers = kernel.attack(channel.ask, questions)
    still = kernel.play("status")["sessions"]
    ended = kernel.play("cancel", key="other tree")

    assert len(answers) == len(questions)
    for true, false in zip(answers[::2], answers[1::2], strict=True):
        assert true["error"] is not None
        assert str(true["error"]).replace(other, "ID") == str(false["error"]).replace("0" * len(other), "ID")
    assert other in still
    assert ended["error"]["message"] != "cancelled by its parent"


def test_85_a_watch_of_a_foreign_run_reveals_nothing(kernel: Kernel) -> None:
    """85: a watch of another tree's run gets the reply for a missing run, and no notice of its end."""
    agent = "tests.security.attacks.answers:write_and_wait"
    other = kernel.play("start", key="watched", agent=agent, args=["private", 0.3])

    true, false = (
        kernel.run(channel.send_hex, to_hex(message({"type": "watch", "run": run})), 1.0)["output"]
        for run in (other, "0" * len(other))
    )

    assert kernel.play("result", key="watched")["output"] == "waited"
    assert true.replace(other, "ID") == false.replace("0" * len(other), "ID")


def test_82_a_raw_spawn_frame_of_a_run_that_may_not_spawn_is_refused(kernel: Kernel) -> None:
    """82: the host itself refuses to spawn, without the client's check in the guest."""
    [answer] = kernel.attack(channel.ask, [SPAWN], allow_sub_agents=False)

    assert answer["error"]["type"] == "SpawnRefused"


def test_93_the_host_does_not_unpack_a_function(kernel: Kernel) -> None:
    """93, 97: the host does not unpickle the body of a spawn message."""
    import pickle

    from ramet.wire.code.capsule import current_tag
    from tests.security.attacks.answers import Bomb

    trap = kernel.base / "scratch" / "opened"
    bombs = [pickle.dumps(Bomb(f"touch {trap}")), b"\x80\x05not a pickle", b""]
    for tag in (current_tag(), "cpython-0.0/0", ""):
        for bomb in bombs:
            policy: dict[str, Any] = {"allow_sub_agents": True}
            kernel.run(channel.send_hex, to_hex(message({**SPAWN, "capsule_tag": tag}, bomb)), 0.5, **policy)

    assert not trap.exists()
    assert kernel.attack(spawning.one) == 1


def test_95_a_malformed_final_message_is_an_error(kernel: Kernel) -> None:
    """93, 95: a final message with a wrong size, a pickle or a false marker fails the run.

    The host unpickles nothing.
    """
    import pickle

    from tests.security.attacks.answers import Bomb

    trap = kernel.base / "scratch" / "unpickled"
    bomb = pickle.dumps(Bomb(f"touch {trap}"))
    done: dict[str, Any] = {"type": "done", "ok": True}
    lies = {
        "pickle": message({**done, "json_size": len(bomb)}, bomb),
        "pickle behind": message({**done, "json_size": 2}, b"{}" + bomb),
        "too long": message({**done, "json_size": 10**9}, b"{}"),
        "negative": message({**done, "json_size": -1}, b"{}"),
        "no body": message({**done, "json_size": 5}),
        "marker": message({**done, "json_size": 30}, b'{"@type":"os.system","value":1'),
        "array": message(
            {**done, "json_size": 62}, b'{"@array":{"dtype":"O","shape":[1000000000],"at":0,"size":8}}'.ljust(62)
        ),
        "deep": message({**done, "json_size": 200_000}, b"[" * 100_000 + b"]" * 100_000),
        "no JSON": message({**done, "json_size": 4}, b"\xff\xff\xff\xff"),
        "wrong type": message({"type": "done", "ok": "yes"}),
    }
    for name, lie in lies.items():
        result = kernel.run(channel.send_hex, to_hex(lie))
        assert result["status"] != "completed", name
        assert result["output"] is None
        assert result["error"]["message"]

    assert not trap.exists()
    assert kernel.attack(spawning.one) == 1


def test_106_a_second_final_message_never_becomes_the_result(kernel: Kernel) -> None:
    """106: after two final messages the first one is the result, or the run has failed."""
    first = message({"type": "done", "ok": True, "json_size": 1}, b"1")
    second = message({"type": "done", "ok": True, "json_size": 1}, b"2")

    result = kernel.run(channel.send_hex, to_hex(first + second))

    assert (result["status"], result["output"]) == ("completed", 1) or result["status"] in BROKEN


def test_106_a_crash_after_the_result_ends_the_same_way_each_time(kernel: Kernel) -> None:
    """106: a guest that sends a result and exits with code 3 gets the same status and output in each of three runs."""
    last = message({"type": "done", "ok": True, "json_size": 1}, b"1")

    ends = [kernel.run(channel.send_hex_and_leave, to_hex(last), 3) for _ in range(3)]

    assert len({(end["status"], end["output"]) for end in ends}) == 1


def test_a_forged_event_does_not_stop_the_kernel(kernel: Kernel) -> None:
    """NEG-3, 85: a guest that sends an event of another tree ends normally or with an error.

    The kernel serves the next run.
    """
    body = b'{"type":"run_ended","run":"main","path":"main","root":"x","status":"completed"}'

    result = kernel.run(channel.send_hex, to_hex(message({"type": "record"}, body)), 0.5)

    assert result["status"] in {*BROKEN, "completed"}
    assert kernel.attack(spawning.one) == 1


def test_programs_of_an_agent_do_not_get_its_channel(kernel: Kernel) -> None:
    """The socket of the channel is closed in a program that the agent executes."""
    assert kernel.attack(channel.lend_channel) != "0"


def test_75_a_flood_of_requests_is_slowed_and_other_runs_are_not(kernel: Kernel) -> None:
    """75: the host answers a flood of requests at the rate limit, and completes other runs meanwhile."""
    agent = "tests.security.attacks.channel:ask_much"
    kernel.play("begin", key="flood", agent=agent, args=[1_000_000, 3.0])

    assert [kernel.attack(spawning.say, str(number)) for number in range(10)] == list("0123456789")

    result = kernel.play("result", key="flood")
    if result["status"] == "completed":
        found = result["output"]
        assert 0 < found["answered"] <= 400 + 250 * (found["seconds"] + 1)
    else:
        assert result["status"] in BROKEN


def test_75_unread_replies_do_not_grow_the_host(kernel: Kernel) -> None:
    """75: a guest that sends requests and never reads adds less than 64 MB to the host's memory."""
    before = kernel.play("facts")["peak_mb"]
    question = {"type": "save_checkpoint", "json_size": 2}

    result = kernel.run(channel.ask_and_never_read, 200_000, question, timeout_seconds=8)

    assert result["status"] in {*BROKEN, "completed", "timeout"}
    assert kernel.play("facts")["peak_mb"] - before < 64


@pytest.mark.parametrize("name", SLOW)
def test_73_a_frame_has_a_deadline(kernel: Kernel, name: str) -> None:
    """73: a guest that sends part of a frame, or one byte at a time, ends with an error for its channel."""
    result = kernel.play("result", key=name)

    assert result["status"] in BROKEN
    assert result["error"]["message"]
