"""Functions in a real guest process: the host gets exactly one end, whatever the function does."""

from __future__ import annotations

import pytest

from ramet.core.errors import BudgetExceeded
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol.guest_to_host import Done, Send
from ramet.wire.guest_protocol.host_to_guest import StartFunction
from tests.unit.guest import agents
from tests.unit.guest.scripted_host import guest


def test_a_functions_value_is_sent() -> None:
    """The function's output goes to stdout, and the process ends with 0."""
    with guest() as host:
        host.start(agents.add, 2, 3)

        assert host.value() == 5
        assert host.ended() == (0, "adding\n", "")


def test_an_async_function_runs_in_a_loop_of_its_own() -> None:
    """The function needs no declaration."""
    with guest() as host:
        host.start(agents.later, "word")

        assert host.value() == "WORD"


def test_a_lambda_is_sent_by_value() -> None:
    """The closure of the lambda is sent, too."""
    base = 40
    with guest() as host:
        host.start(lambda: base + 2)

        assert host.value() == 42


def test_a_dataclass_is_decoded_as_the_type_that_the_reader_names() -> None:
    """The class is sent as source, and its value comes back as data."""
    with guest() as host:
        host.start(agents.report, "bees")

        assert host.value(agents.Report) == agents.Report("bees", (1, 2))


def test_an_exception_is_sent_and_its_traceback_printed() -> None:
    """The host gets type and message; the traceback shows the user's own lines."""
    with guest() as host:
        host.start(agents.fail, "no honey")
        failure = host.failure()
        code, _, err = host.ended()

    assert failure.error is not None
    assert (failure.error.type, failure.error.message, failure.oom) == ("ValueError", "no honey", False)
    assert code == 1
    assert "raise ValueError(text)" in err
    assert "_result" not in err


def test_a_long_error_message_is_clipped() -> None:
    """The bound holds on the channel and on stderr."""
    with guest() as host:
        host.start(agents.fail, "\ud800" + "x" * 10**7)
        failure = host.failure()
        _, _, err = host.ended()

    assert failure.error is not None
    assert 3_990 < len(failure.error.message) <= 4_010
    assert len(err) <= 32 * 1024


def test_an_error_with_a_broken_str_is_sent() -> None:
    """The `__str__` of this error calls sys.exit."""
    with guest() as host:
        host.start(agents.fail_hostile)
        failure = host.failure()

    assert failure.error is not None
    assert (failure.error.type, failure.error.message) == ("Hostile", "(its message cannot be read: SystemExit)")


@pytest.mark.parametrize(
    ("code", "expected"), [(0, "0"), (None, ""), (7, "7"), ("bye", "'bye'"), ([1], "…"), (2**70, "…")]
)
def test_sys_exit_is_no_result(code: object, expected: str) -> None:
    """Any code, 0 too, is a failure: a run completes only with a value."""
    with guest() as host:
        host.start(agents.leave, code)
        failure = host.failure()

        assert host.ended()[:2] == (1, "leaving\n")
    assert failure.error is not None
    assert (failure.error.type, failure.error.message) == (
        "SystemExit",
        f"it called sys.exit({expected}) in place of returning a result",
    )


def test_an_interrupt_is_sent_as_a_failure() -> None:
    """The message says that the function was interrupted."""
    with guest() as host:
        host.start(agents.interrupt)
        failure = host.failure()

    assert failure.error is not None
    assert (failure.error.type, failure.error.message) == ("KeyboardInterrupt", "it was interrupted")


def test_a_function_without_memory_can_report_it() -> None:
    """A memory reserve pays for the message."""
    with guest() as host:
        host.start(agents.hoard)
        failure = host.failure()

    assert failure.oom


def test_an_unshippable_value_is_named_by_its_path() -> None:
    """The host rebuilds the error as NotShippable."""
    with guest() as host:
        host.start(agents.unshippable)
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.type == "NotShippable"
    assert failure.fields["what"] == "result['rows'][1]['handle']"
    assert str(decode_error(failure.error, failure.fields)) == failure.error.message


def test_a_value_above_the_limit_is_not_sent() -> None:
    """The guest measures the value itself."""
    with guest() as host:
        host.start(agents.large, max_result_bytes=1_000)
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.type == "OutputTooLarge"
    assert (failure.fields["what"], failure.fields["limit"], failure.fields["size"] > 1_000) == (
        "bytes of the result",
        1_000,
        True,
    )


def test_a_module_missing_in_the_sandbox_is_named() -> None:
    """The message says what to do."""
    with guest() as host:
        host.start(agents.missing)
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.type == "ModuleNotFoundError"
    assert failure.error.message.startswith("module 'a_module_that_is_nowhere' is not installed in the sandbox: ")


def test_a_capsule_of_another_python_is_refused_before_it_is_opened() -> None:
    """The capsule's bytes are not read."""
    with guest() as host:
        host.tell(StartFunction(run="r", path="main", name="f", capsule_tag="3.1/cloudpickle-0"), b"\x80anything")
        failure = host.failure()

    assert failure.error is not None
    assert failure.error.type == "NotShippable"
    assert "3.1/cloudpickle-0" in failure.error.message


def test_nothing_is_sent_after_the_last_message_and_output_is_flushed() -> None:
    """A thread of the function keeps sending."""
    with guest() as host:
        host.start(agents.print_and_run_on)
        message_received = host.hear()
        while message_received is not None and isinstance(message_received[0], Send):
            message_received = host.hear()
        after = host.hear()
        code, out, err = host.ended()

    assert message_received is not None
    assert isinstance(message_received[0], Done)
    assert after is None
    assert (code, out) == (0, "out\n")
    assert err.startswith("err\n")


def test_a_forked_child_that_returns_sends_nothing() -> None:
    """The agent's own process alone sends the last message."""
    with guest() as host:
        host.start(agents.fork_and_return)

        assert host.value() == "the child ended with 0"


def test_an_error_of_ramet_is_sent_with_its_fields() -> None:
    """The host can raise the same error."""

    def overspend() -> None:
        raise BudgetExceeded("tokens", asked=5, left=1, scope="main/x")

    with guest() as host:
        host.start(overspend)
        failure = host.failure()

    assert failure.error is not None
    rebuilt_error = decode_error(failure.error, failure.fields)
    assert isinstance(rebuilt_error, BudgetExceeded)
    assert (rebuilt_error.asked, rebuilt_error.left, rebuilt_error.scope, failure.error.scope) == (
        5,
        1,
        "main/x",
        "main/x",
    )


def test_a_host_that_leaves_early_ends_the_guest() -> None:
    """The guest ends with status 1 and prints nothing."""
    with guest() as host:
        host.leave()

        assert host.ended() == (1, "", "")
