"""The meaning of the exceptions of providers, without their SDKs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.models.errors import translate
from ramet.models.retry_after import quota_reset_s, retry_after_s

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


class SDKError(Exception):
    """Exception of any SDK: only its attributes matter."""

    def __init__(self, message: str = "said no", **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


def answer(status: int, **headers: str) -> SDKError:
    """Return an answer with this status and these headers."""
    headers_by_name = {name.replace("_", "-"): value for name, value in headers.items()}
    return SDKError(status_code=status, response=SimpleNamespace(status_code=status, headers=headers_by_name))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_passing_statuses_are_retryable(status: int) -> None:
    """Too many requests, overload and errors of the server are worth another try."""
    failure = translate(answer(status), "m", NOW)

    assert (failure.status, failure.retryable) == (status, True)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_lasting_statuses_are_not_retryable(status: int) -> None:
    """The server would refuse the same request again."""
    failure = translate(answer(status, retry_after="5"), "m", NOW)

    assert (failure.status, failure.retryable, failure.retry_after_s) == (status, False, None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Fri, 20 Nov 2026 12:01:30 GMT"}, 90.0),
        ({"retry-after": "Fri, 20 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Fri, 99 Nov 2026 99:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds and dates are accepted; anything else gives no wait."""
    assert retry_after_s(headers, NOW) == seconds


def test_botocore_keeps_its_answer_in_a_dict() -> None:
    """The throttling of Bedrock is seen, with its wait."""
    metadata = {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}}
    failure = translate(SDKError(response={"ResponseMetadata": metadata}), "m", NOW)

    assert (failure.status, failure.retryable, failure.retry_after_s) == (429, True, 3.0)


def test_google_calls_its_status_code() -> None:
    """google.genai.errors.APIError has `code` and no `status_code`."""
    assert translate(SDKError(code=503), "m", NOW).retryable
    assert not translate(SDKError(code=400), "m", NOW).retryable


def test_an_answer_is_found_behind_an_error_that_hides_it() -> None:
    """LangChain's package for Google raises errors without a status from those of Google's SDK."""
    refused = SDKError("Error calling model")
    refused.__cause__ = SDKError(code=429, details={"error": {"details": [{"retryDelay": "7s"}]}})
    wrong = SDKError("Error calling model", is_retryable=True)
    wrong.__cause__ = answer(403)
    endless = SDKError("Error calling model")
    endless.__cause__ = SDKError()
    endless.__cause__.__cause__ = endless

    failure = translate(refused, "m", NOW)
    assert (failure.status, failure.retryable, failure.retry_after_s) == (429, True, 7.0)
    assert failure.reason == "SDKError: Error calling model"
    failure = translate(wrong, "m", NOW)
    assert (failure.status, failure.retryable) == (403, False)
    assert translate(endless, "m", NOW).status is None


def test_an_empty_account_is_not_retried() -> None:
    """OpenAI answers 429 for it, too."""
    empty = answer(429)
    empty.code = "insufficient_quota"  # type: ignore[attr-defined]

    assert not translate(empty, "m", NOW).retryable


def test_the_header_of_the_server_on_retrying_counts() -> None:
    """The SDKs obey x-should-retry."""
    assert not translate(answer(500, x_should_retry="false"), "m", NOW).retryable
    assert translate(answer(400, x_should_retry="true"), "m", NOW).retryable


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        BrokenPipeError("gone"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 10),
        type("RemoteProtocolError", (type("TransportError", (Exception,), {}),), {})("peer closed"),
        SDKError(is_retryable=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_connection_may_be_retried(error: Exception) -> None:
    """The request was fine; nobody knows whether it arrived."""
    failure = translate(error, "m", NOW)

    assert failure.retryable
    assert failure.status is None


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("choices"), FileNotFoundError("x"), SDKError()])
def test_other_errors_are_not_retried(error: Exception) -> None:
    """Waiting does not remove a mistake in code."""
    assert not translate(error, "m", NOW).retryable


def test_a_status_of_success_is_ignored() -> None:
    """The status in the middle of a stream is still 200; the error is in the body."""
    body = {"type": "error", "error": {"type": "overloaded_error"}}
    failure = translate(SDKError(status_code=200, body=body), "m", NOW)

    assert (failure.status, failure.retryable) == (529, True)


def test_the_reason_is_short_and_on_one_line() -> None:
    """Events and screens show it."""
    failure = translate(SDKError("a\nb" * 10_000), "gpt-5", NOW)

    assert "\n" not in failure.reason
    assert len(failure.reason) < 600
    assert failure.model == "gpt-5"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-reset-tokens": "17ms"}, 0.017),
        ({"x-ratelimit-reset-tokens": "1d"}, 86_400.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "8s",
          "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "90s"}, 90.0),
        ({"x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "2h0m0s",
          "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "90s"}, 90.0),
        ({"x-ratelimit-reset-requests": "2h", "x-ratelimit-reset-tokens": "90s"}, 90.0),
        ({"anthropic-ratelimit-requests-reset": "2026-11-20T12:05:00Z"}, 300.0),
        ({"anthropic-ratelimit-input-tokens-reset": "2026-11-20T13:05:00+01:00"}, 300.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-11-20T11:00:00Z"}, 0.0),
        ({"anthropic-ratelimit-unified-reset": str(int(NOW.timestamp()) + 7200)}, 7200.0),
        ({"x-ratelimit-reset-requests": "soon"}, None),
        ({"x-ratelimit-reset-requests": "nan"}, None),
        ({"x-ratelimit-reset-requests": "1e300"}, None),
        ({"x-ratelimit-reset-requests": "9999d"}, None),
        ({"x-ratelimit-reset-requests": "9" * 5000 + "s"}, None),
        ({"x-ratelimit-reset-requests": ""}, None),
        ({"anthropic-ratelimit-tokens-reset": "9999-12-31T23:59:59Z"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_resets_of_limits_are_read(headers: dict[str, str], seconds: float | None) -> None:
    """Durations, times and numbers are accepted; what no provider means gives no wait."""
    assert quota_reset_s(headers, None, NOW) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry-after": str(33 * 86_400)}, None), ({"retry-after": "1" * 400}, None), ({"retry-after": "7200"}, 7200.0)],
)
def test_a_wait_of_more_than_a_month_is_a_mistake(headers: dict[str, str], seconds: float | None) -> None:
    """Such a value counts as none, so that our own waits apply."""
    assert retry_after_s(headers, NOW) == seconds


def google_error(*details: Any) -> dict[str, Any]:
    """Return the body of a refusal of Google."""
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": list(details)}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
PER_DAY = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (google_error(RETRY_INFO), 34.07),
        ([google_error(RETRY_INFO)], 34.07),
        (google_error({"violations": [{"quotaId": "GenerateRequestsPerMinute"}]}, RETRY_INFO), 34.07),
        (google_error(PER_DAY, RETRY_INFO), 20 * 3600.0),
        (google_error({"retryDelay": "-1s"}), None),
        (google_error({"retryDelay": 3}, {"violations": "PerDay"}, "PerDay"), None),
        (google_error(), None),
        ("busy", None),
        (None, None),
    ],
)
def test_the_details_of_google_are_read(body: object, seconds: float | None) -> None:
    """The delay of RetryInfo counts; a quota of a day is back at midnight in California, eight hours behind UTC."""
    assert quota_reset_s({}, body, NOW) == seconds


def test_resets_count_only_for_a_refusal_of_a_limit() -> None:
    """Each answer has these headers: after a server error they say nothing about the next request."""
    headers = {"x_ratelimit_reset_requests": "6m0s"}
    assert translate(answer(429, **headers), "m", NOW).retry_after_s == 360
    assert translate(answer(500, **headers), "m", NOW).retry_after_s is None


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_an_empty_account_does_not_come_back_by_itself(code: str) -> None:
    """The headers of an error may name a time; the request is not repeated all the same."""
    refusal = answer(429, retry_after="60", x_ratelimit_reset_requests="6m0s")
    refusal.__dict__["body"] = {"code": code, "type": code}
    failure = translate(refusal, "m", NOW)
    assert (failure.retryable, failure.retry_after_s) == (False, None)
