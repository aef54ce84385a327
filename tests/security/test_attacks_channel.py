"""Attacks 72 to 89 of the list: bytes on the own channel that no honest client would send."""

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


def hexed(data: bytes) -> str:
    """Bytes on their way to a kernel, which is told JSON."""
    return data.hex()


def assert_broken(kernel: Kernel, result: dict[str, Any]) -> None:
    """The run ended for its bad manners, with a reason; the kernel serves the next."""
    assert result["status"] in BROKEN, result
    assert result["exit_code"] != 0
    assert result["output"] is None
    assert result["error"]["message"]
    assert kernel.attack(spawning.one) == 1


def test_an_honest_frame_is_answered(kernel: Kernel) -> None:
    """The positive control of all below: the same bytes, if they are right, get an answer."""
    [said] = kernel.attack(channel.ask, [{"type": "list_runs", "id": 1_000}])

    assert (said["type"], said["id"]) == ("answer", 1_000)
    assert len(said["data"]["runs"]) == 1


@pytest.mark.parametrize(
    "head",
    [(0, 0), (0, 10), (2**31, 0), (2**32 - 1, 0), (frames.MAX_CONTROL + 1, 0), (2, 2**31), (2, 2**32 - 1)],
    ids=str,
)
def test_72_lengths_beyond_the_cap_close_the_channel(kernel: Kernel, head: tuple[int, int]) -> None:
    """72: control of 0, 2^31, 2^32-1, one above the cap; bodies likewise: closed at once, nothing is allocated."""
    before = kernel.play("facts")["peak_mb"]

    result = kernel.run(channel.send_hex, hexed(HEAD.pack(*head) + b"{}" * 100))

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
def test_72_88_what_is_no_message_is_refused(kernel: Kernel, name: str) -> None:
    """72, 88, 95: not JSON, unknown types and fields, wrong types, a provider's address and key: never acted upon."""
    result = kernel.run(channel.send_hex, hexed(WRONG[name]))

    if name.startswith(("policy", "negative", "size", "keys")) and result["status"] == "completed":
        assert result["output"].startswith("answered"), result  # an error as an answer will do for these
        assert '"error"' in result["output"]
    else:
        assert_broken(kernel, result)


@pytest.mark.parametrize("ids", [[1_000, 1_000], [1_000, 999], [1_000, -5], [1_000, 0]], ids=str)
def test_84_numbers_rise_or_the_channel_closes(kernel: Kernel, ids: list[int]) -> None:
    """84: a number that is used again, or runs backwards, is no request: no double spawn, no double charge."""
    questions = b"".join(message({"type": "list_runs", "id": number}) for number in ids)

    assert_broken(kernel, kernel.run(channel.send_hex, hexed(questions)))


OTHERS: list[dict[str, Any]] = [
    {"type": "cancel", "target": "TARGET"},
    {"type": "output", "target": "TARGET"},
    {"type": "read_artifact", "run": "TARGET", "name": "mine.txt"},
    {"type": "send", "to": "TARGET", "text": "hello"},
]


def test_85_runs_of_others_are_as_unknown_as_those_that_never_were(kernel: Kernel) -> None:
    """85, NEG-3, NEG-8: cancel, read, mail to another tree's run by its true id: the same words as for no such run."""
    agent = "tests.security.attacks.answers:write_and_wait"
    other = kernel.play("start", key="other tree", agent=agent, args=["private", 60])
    questions = [
        {**each, "id": 1_000 + at, **{key: target for key, value in each.items() if value == "TARGET"}}
        for at, (each, target) in enumerate((each, target) for each in OTHERS for target in (other, "0" * len(other)))
    ]

    said = kernel.attack(channel.ask, questions)
    still = kernel.play("status")["sessions"]
    ended = kernel.play("cancel", key="other tree")

    assert len(said) == len(questions)
    for true, false in zip(said[::2], said[1::2], strict=True):
        assert true["error"] is not None
        assert str(true["error"]).replace(other, "ID") == str(false["error"]).replace("0" * len(other), "ID")
    assert other in still
    assert ended["error"]["message"] != "cancelled by its parent"


def test_85_a_watch_on_others_tells_nothing(kernel: Kernel) -> None:
    """85: watching another tree's run brings the words that a run which never was brings, and none of its end."""
    agent = "tests.security.attacks.answers:write_and_wait"
    other = kernel.play("start", key="watched", agent=agent, args=["private", 0.3])

    true, false = (
        kernel.run(channel.send_hex, hexed(message({"type": "watch", "run": run})), 1.0)["output"]
        for run in (other, "0" * len(other))
    )

    assert kernel.play("result", key="watched")["output"] == "waited"
    assert true.replace(other, "ID") == false.replace("0" * len(other), "ID")


def test_82_a_run_that_may_not_spawn_is_refused_by_raw_frames_too(kernel: Kernel) -> None:
    """82: the host says no, not the client inside."""
    [said] = kernel.attack(channel.ask, [SPAWN], allow_sub_agents=False)

    assert said["error"]["type"] == "SpawnRefused"


def test_93_a_capsule_is_not_opened_by_the_host(kernel: Kernel) -> None:
    """93, 97: a body that runs a command when unpickled, sent as a function, does nothing here."""
    import pickle

    from ramet.wire.code.capsule import current_tag
    from tests.security.attacks.answers import Bomb

    trap = kernel.base / "scratch" / "opened"
    bombs = [pickle.dumps(Bomb(f"touch {trap}")), b"\x80\x05not a pickle", b""]
    for tag in (current_tag(), "cpython-0.0/0", ""):
        for bomb in bombs:
            policy: dict[str, Any] = {"allow_sub_agents": True}
            kernel.run(channel.send_hex, hexed(message({**SPAWN, "capsule_tag": tag}, bomb)), 0.5, **policy)

    assert not trap.exists()
    assert kernel.attack(spawning.one) == 1


def test_95_a_last_word_that_lies_about_its_value_is_an_error(kernel: Kernel) -> None:
    """93, 95: sizes that do not fit, pickles for data, markers that nobody wrote: never completed, never executed."""
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
        result = kernel.run(channel.send_hex, hexed(lie))
        assert result["status"] != "completed", name
        assert result["output"] is None
        assert result["error"]["message"]

    assert not trap.exists()
    assert kernel.attack(spawning.one) == 1


def test_106_two_last_words_are_one(kernel: Kernel) -> None:
    """106: after a last word nothing counts: the first one stands, or the run has failed; never the second."""
    first = message({"type": "done", "ok": True, "json_size": 1}, b"1")
    second = message({"type": "done", "ok": True, "json_size": 1}, b"2")

    result = kernel.run(channel.send_hex, hexed(first + second))

    assert (result["status"], result["output"]) == ("completed", 1) or result["status"] in BROKEN


def test_106_a_crash_after_the_last_word_is_told_as_it_is(kernel: Kernel) -> None:
    """106: a result, and then exit code 3: the result stands or the crash does, the same each time."""
    last = message({"type": "done", "ok": True, "json_size": 1}, b"1")

    ends = [kernel.run(channel.send_hex_and_leave, hexed(last), 3) for _ in range(3)]

    assert len({(end["status"], end["output"]) for end in ends}) == 1


def test_an_event_cannot_be_forged_for_another_run(kernel: Kernel) -> None:
    """NEG-3, 85: what a guest records is stamped by the host; a body that is no event ends the run or is dropped."""
    body = b'{"type":"run_ended","run":"main","path":"main","root":"x","status":"completed"}'

    result = kernel.run(channel.send_hex, hexed(message({"type": "record"}, body)), 0.5)

    assert result["status"] in {*BROKEN, "completed"}
    assert kernel.attack(spawning.one) == 1


def test_the_channel_is_not_for_programs_that_an_agent_starts(kernel: Kernel) -> None:
    """The socket is the identity: it is closed in whatever the agent executes."""
    assert kernel.attack(channel.lend_channel) != "0"


def test_75_a_flood_of_requests_is_slowed_and_others_are_not(kernel: Kernel) -> None:
    """75: requests as fast as they go: answered at the bucket's pace, while others are born as ever."""
    agent = "tests.security.attacks.channel:ask_much"
    kernel.play("begin", key="flood", agent=agent, args=[1_000_000, 3.0])

    assert [kernel.attack(spawning.say, str(number)) for number in range(10)] == list("0123456789")

    result = kernel.play("result", key="flood")
    if result["status"] == "completed":
        found = result["output"]
        assert 0 < found["answered"] <= 400 + 250 * (found["seconds"] + 1)
    else:
        assert result["status"] in BROKEN


def test_75_answers_that_nobody_reads_do_not_pile_up(kernel: Kernel) -> None:
    """75: a guest that asks and never reads is no longer read; the host's memory stays flat."""
    before = kernel.play("facts")["peak_mb"]
    question = {"type": "save_checkpoint", "json_size": 2}

    result = kernel.run(channel.ask_and_never_read, 200_000, question, timeout_seconds=8)

    assert result["status"] in {*BROKEN, "completed", "timeout"}
    assert kernel.play("facts")["peak_mb"] - before < 64


@pytest.mark.parametrize("name", SLOW)
def test_73_a_frame_has_a_deadline(kernel: Kernel, name: str) -> None:
    """73: part of a head, of a control, of a body, and a byte at a time: ended long before the run's own time."""
    result = kernel.play("result", key=name)

    assert result["status"] in BROKEN
    assert result["error"]["message"]
