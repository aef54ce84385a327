"""A function in a real guest process: whatever it does, the host hears how it ended, once."""

from __future__ import annotations

import pytest

from ramet.core.errors import BudgetExceeded
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol import Done, Send, StartFunction
from tests.unit.guest import agents
from tests.unit.guest.scripted_host import guest


def test_a_function_is_called_and_its_value_sent() -> None:
    """Its own prints go to stdout; the process ends with 0."""
    with guest() as host:
        host.start(agents.add, 2, 3)

        assert host.value() == 5
        assert host.ended() == (0, "adding\n", "")


def test_an_async_function_runs_in_a_loop_of_its_own() -> None:
    """Nobody has to say that it is one."""
    with guest() as host:
        host.start(agents.later, "word")

        assert host.value() == "WORD"


def test_a_lambda_of_the_test_itself_travels() -> None:
    """By value, with what it closes over."""
    base = 40
    with guest() as host:
        host.start(lambda: base + 2)

        assert host.value() == 42


def test_a_dataclass_arrives_as_itself_where_the_reader_names_it() -> None:
    """The class came in as source, the value goes out as data."""
    with guest() as host:
        host.start(agents.report, "bees")

        assert host.value(agents.Report) == agents.Report("bees", (1, 2))


def test_an_exception_is_told_by_type_and_message_and_its_traceback_printed() -> None:
    """The traceback shows the user's own lines."""
    with guest() as host:
        host.start(agents.fail, "no honey")
        done = host.failure()
        code, _, err = host.ended()

    assert done.error is not None
    assert (done.error.type, done.error.message, done.oom) == ("ValueError", "no honey", False)
    assert code == 1
    assert "raise ValueError(text)" in err
    assert "_result" not in err


def test_an_endless_message_is_clipped() -> None:
    """On the channel and on stderr."""
    with guest() as host:
        host.start(agents.fail, "\ud800" + "x" * 10**7)
        done = host.failure()
        _, _, err = host.ended()

    assert done.error is not None
    assert 3_990 < len(done.error.message) <= 4_010
    assert len(err) <= 32 * 1024


def test_an_error_that_cannot_be_told_is_told() -> None:
    """Its __str__ ends the process, or tries to."""
    with guest() as host:
        host.start(agents.fail_hostile)
        done = host.failure()

    assert done.error is not None
    assert (done.error.type, done.error.message) == ("Hostile", "(its message cannot be read: SystemExit)")


@pytest.mark.parametrize(
    ("code", "shown"), [(0, "0"), (None, ""), (7, "7"), ("bye", "'bye'"), ([1], "…"), (2**70, "…")]
)
def test_sys_exit_is_no_result(code: object, shown: str) -> None:
    """With any code, 0 too: a run is completed only with a value."""
    with guest() as host:
        host.start(agents.leave, code)
        done = host.failure()

        assert host.ended()[:2] == (1, "leaving\n")
    assert done.error is not None
    assert (done.error.type, done.error.message) == (
        "SystemExit",
        f"it called sys.exit({shown}) in place of returning a result",
    )


def test_an_interrupt_is_told() -> None:
    """As a failure, like any other."""
    with guest() as host:
        host.start(agents.interrupt)
        done = host.failure()

    assert done.error is not None
    assert (done.error.type, done.error.message) == ("KeyboardInterrupt", "it was interrupted")


def test_a_function_without_memory_can_still_say_so() -> None:
    """Out of a reserve."""
    with guest() as host:
        host.start(agents.hoard)
        done = host.failure()

    assert done.oom


def test_a_value_that_cannot_travel_is_named_by_its_path() -> None:
    """And the error is rebuilt as NotShippable."""
    with guest() as host:
        host.start(agents.unshippable)
        done = host.failure()

    assert done.error is not None
    assert done.error.type == "NotShippable"
    assert done.fields["what"] == "result['rows'][1]['handle']"
    assert str(decode_error(done.error, done.fields)) == done.error.message


def test_a_value_above_the_limit_is_not_sent() -> None:
    """The guest measures it itself."""
    with guest() as host:
        host.start(agents.large, max_result_bytes=1_000)
        done = host.failure()

    assert done.error is not None
    assert done.error.type == "OutputTooLarge"
    assert (done.fields["what"], done.fields["limit"], done.fields["size"] > 1_000) == (
        "bytes of the result",
        1_000,
        True,
    )


def test_a_module_that_is_not_inside_is_named() -> None:
    """With what to do."""
    with guest() as host:
        host.start(agents.missing)
        done = host.failure()

    assert done.error is not None
    assert done.error.type == "ModuleNotFoundError"
    assert done.error.message.startswith("module 'a_module_that_is_nowhere' is not installed in the sandbox: ")


def test_a_capsule_of_another_python_is_refused_before_it_is_opened() -> None:
    """Its bytes would not even be looked at."""
    with guest() as host:
        host.tell(StartFunction(run="r", path="main", name="f", capsule_tag="3.1/cloudpickle-0"), b"\x80anything")
        done = host.failure()

    assert done.error is not None
    assert done.error.type == "NotShippable"
    assert "3.1/cloudpickle-0" in done.error.message


def test_nothing_is_said_after_the_last_word_and_what_was_printed_is_out() -> None:
    """Though a thread of the function goes on talking."""
    with guest() as host:
        host.start(agents.print_and_run_on)
        heard = host.hear()
        while heard is not None and isinstance(heard[0], Send):
            heard = host.hear()
        after = host.hear()
        code, out, err = host.ended()

    assert heard is not None
    assert isinstance(heard[0], Done)
    assert after is None
    assert (code, out) == (0, "out\n")
    assert err.startswith("err\n")


def test_a_forked_child_that_comes_back_says_nothing() -> None:
    """Only the agent's own process has a last word."""
    with guest() as host:
        host.start(agents.fork_and_return)

        assert host.value() == "the child ended with 0"


def test_an_error_of_ramets_own_is_told_with_its_fields() -> None:
    """So that the host can raise it again."""

    def overspend() -> None:
        raise BudgetExceeded("tokens", asked=5, left=1, scope="main/x")

    with guest() as host:
        host.start(overspend)
        done = host.failure()

    assert done.error is not None
    rebuilt = decode_error(done.error, done.fields)
    assert isinstance(rebuilt, BudgetExceeded)
    assert (rebuilt.asked, rebuilt.left, rebuilt.scope, done.error.scope) == (5, 1, "main/x", "main/x")


def test_a_host_that_leaves_before_the_first_word_ends_the_guest() -> None:
    """Without a word."""
    with guest() as host:
        host.leave()

        assert host.ended() == (1, "", "")
