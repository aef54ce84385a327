"""Calls count as repeated if tool, arguments and result are equal and no other call comes between."""

from __future__ import annotations

from typing import Any

from ramet.core.liveness.call_repeats import CallRepeats


class Talk:
    """A conversation of calls with one result each."""

    def __init__(self) -> None:
        self.repeats, self._number = CallRepeats(), 0

    def call(self, tool: str = "Read", result: Any = "text", status: str = "success", **args: Any) -> int:
        """Make a call in a reply of its own; return how often in a row it was made."""
        self._number += 1
        id = f"c{self._number}"
        reply = {"type": "ai", "content": "", "tool_calls": [{"id": id, "name": tool, "args": args}]}
        assert self.repeats.add(reply) is None
        answer = {"type": "tool", "tool_call_id": id, "content": result, "status": status}
        repeat = self.repeats.add(answer)
        assert repeat is not None
        assert (repeat.tool, repeat.call_id) == (tool, id)
        assert self.repeats.add(answer) is None, "an answer counts once"
        return repeat.times


def test_equal_calls_with_equal_results_are_counted() -> None:
    """The order of the arguments does not matter."""
    talk = Talk()
    assert [talk.call(file="a", limit=1), talk.call(limit=1, file="a"), talk.call(file="a", limit=1)] == [1, 2, 3]


def test_any_difference_begins_the_count_anew() -> None:
    """The tool, an argument, the type of an argument, the result, and its status count."""
    differences: list[dict[str, Any]] = [
        {"tool": "Grep", "file": "1"},
        {"file": "2"},
        {"file": 1},
        {"file": "1", "result": "other"},
        {"file": "1", "result": [{"type": "text", "text": "text"}]},
        {"file": "1", "status": "error"},
        {"file": "1", "limit": None},
    ]
    talk = Talk()
    for difference in differences:
        assert talk.call(file="1") == 1
        assert talk.call(file="1") == 2
        assert talk.call(**difference) == 1


def test_equal_calls_of_one_reply_are_counted() -> None:
    """Their results may come in any order."""
    repeats = CallRepeats()
    calls = [{"id": f"c{number}", "name": "Read", "args": {}} for number in range(3)]
    repeats.add({"type": "ai", "tool_calls": calls})
    answers = [
        repeats.add({"type": "tool", "tool_call_id": id, "content": "same", "status": "success"})
        for id in ("c2", "c0", "c1")
    ]
    assert [each.times for each in answers if each is not None] == [1, 2, 3]


def test_calls_whose_arguments_cannot_be_read_are_counted() -> None:
    """A model may repeat broken JSON."""
    repeats = CallRepeats()
    times = []
    for id in ("a", "b"):
        repeats.add({"type": "ai", "invalid_tool_calls": [{"id": id, "name": "Read", "args": "{", "error": "x"}]})
        repeat = repeats.add({"type": "tool", "tool_call_id": id, "content": "bad", "status": "error"})
        assert repeat is not None
        times.append(repeat.times)
    assert times == [1, 2]


def test_a_long_result_counts_without_the_place_of_its_file() -> None:
    """Its length and its beginning count."""
    talk = Talk()
    remark = "beginning\n… [{0} characters, the first 9 shown. The whole result is in /r/{1}-c.txt; read it in parts.]"
    assert [talk.call(result=remark.format(99, number)) for number in (1, 2)] == [1, 2]
    assert talk.call(result=remark.format(98, 3)) == 1


def test_only_hashes_of_the_newest_reply_are_kept() -> None:
    """A reply with very many calls, and one whose calls were never answered, take bounded memory."""
    repeats = CallRepeats()
    for reply in range(10):
        calls = [{"id": f"{reply}-{n}", "name": "R" * 10_000, "args": {"x": "y" * 100}} for n in range(2_000)]
        repeats.add({"type": "ai", "tool_calls": calls})
    assert len(repeats._calls) == 1_000
    assert max(len(each.tool) + len(each.digest) for each in repeats._calls.values()) == 216


def test_a_count_that_is_cleared_begins_anew() -> None:
    """What comes next is the first call."""
    talk = Talk()
    assert [talk.call(), talk.call()] == [1, 2]
    talk.repeats.clear()
    assert talk.call() == 1
