"""A server in a sandbox cannot flood its host with reports of progress."""

from __future__ import annotations

from ramet.guest.mcp.progress_limit import PROGRESS, REPORT_INTERVAL_S, ProgressLimit


def report(token: object) -> dict[str, object]:
    """Return a report of progress of a call."""
    return {"method": PROGRESS, "params": {"progressToken": token, "progress": 1}}


def test_more_calls_than_a_host_has_do_not_report_more() -> None:
    """A server that names a thousand calls, in turn, has as many reports as one with 64 calls."""
    seconds = 0.0
    limit = ProgressLimit(lambda: seconds)
    passed = 0
    for _ in range(10):
        for token in range(1_000):
            passed += limit.is_passed(report(token))
            seconds += REPORT_INTERVAL_S / 1_000

    assert 64 <= passed <= 64 * 11


def test_a_call_reports_again_after_a_while_and_other_notifications_never_pass() -> None:
    """A call that reports often keeps its place among the known ones."""
    seconds = 0.0
    limit = ProgressLimit(lambda: seconds)

    assert all(limit.is_passed(report(token)) for token in range(64))
    assert not limit.is_passed(report(0))
    seconds += REPORT_INTERVAL_S
    assert limit.is_passed(report(0))
    assert limit.is_passed(report(64))
    assert not limit.is_passed(report(0))
    assert not limit.is_passed(report("1"))
    assert not limit.is_passed({"method": "notifications/message", "params": {"progressToken": 2}})
    assert not limit.is_passed({"method": PROGRESS, "params": [2]})
