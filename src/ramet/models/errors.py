"""Translate a provider's exception to one ModelFailed, for any SDK, without importing an SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from ramet.core.errors import ModelFailed
from ramet.models.error_causes import MAX_CAUSES, description, is_malformed, is_program_error, was_never_sent
from ramet.models.retry_after import quota_reset_s, retry_after_s

#: Statuses after which the same request may succeed. The SDKs also retry 408 and 409 (lock timeout).
RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429})

#: Error codes in the body of an error, also in the middle of a stream whose status was 200.
_STATUS_BY_CODE: Final[dict[str, int]] = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "timeout_error": 504,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "invalid_request_error": 400,
}
#: HTTP 429 too, but waiting does not help: the account is empty.
_PERMANENT_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})

#: Classes of HTTP libraries and SDKs that mean "the connection failed, not the request".
_CONNECTION_CLASSES: Final = frozenset(
    {
        "APIConnectionError",
        "ConnectionClosedError",
        "ConnectionError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "IncompleteRead",
        "IncompleteReadError",
        "ModelConnectionError",
        "ModelTimeoutError",
        "ReadTimeoutError",
        "StreamError",
        "TimeoutError",
        "TransportError",
    }
)


def translate(
    error: Exception, model: str, now: datetime | None = None, *, has_waited: bool = True, asks_once: bool = True
) -> ModelFailed:
    """Return `error` as ModelFailed: status, whether a retry may help, and the provider's requested wait.

    `now` is the reference for an HTTP date in Retry-After. `has_waited` is whether the model's code has yielded to the
    event loop: before that it cannot have received an answer. `asks_once` is whether it sends one request: of several,
    `error` describes only one.
    """
    source = _error_with_status(error)
    codes = tuple(_error_codes(source))
    status = _status(source, codes)
    retryable = _is_retryable(source, status, codes)
    wait_s = _wait_s(source, status, now or datetime.now(UTC)) if retryable else None
    unsent = status is None and (
        (asks_once and was_never_sent(error)) or not (has_waited or _is_connection_error(error))
    )
    reason = _reason(error, status)
    return ModelFailed(model, reason, status=status, retryable=retryable, retry_after_s=wait_s, unsent=unsent)


def is_overflow(error: Exception) -> bool:
    """Return whether the request was longer than the model's window: compaction helps where retries do not.

    `error` is a provider's, or the ModelFailed made from it.
    """
    cause = error.__cause__ if isinstance(error, ModelFailed) else error
    return cause is not None and any(cls.__name__ == "ContextOverflowError" for cls in type(cause).__mro__)


def _error_with_status(error: Exception) -> Exception:
    """Return the exception that has the status of the provider's answer: `error`, or one from which it was raised.

    LangChain's package for Google raises errors without a status from those of the SDK. If no exception has a status,
    `error` itself is returned.
    """
    each: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if not isinstance(each, Exception):
            break
        if _status(each, tuple(_error_codes(each))) is not None:
            return each
        each = each.__cause__
    return error


def _wait_s(error: Exception, status: int | None, now: datetime) -> float | None:
    headers = _headers(error)
    wait_s = retry_after_s(headers, now)
    if wait_s is None and status == HTTPStatus.TOO_MANY_REQUESTS:
        wait_s = quota_reset_s(headers, _body(error), now)
    return wait_s


def _status(error: Exception, codes: tuple[str, ...]) -> int | None:
    response = getattr(error, "response", None)
    candidates = [getattr(error, "status_code", None), getattr(response, "status_code", None)]
    if isinstance(response, Mapping):  # botocore: a dict where others have an object
        candidates.append(_metadata(response).get("HTTPStatusCode"))
    candidates += [getattr(error, "http_status", None), getattr(error, "code", None)]  # google.genai: `code`
    for candidate in candidates:
        if isinstance(candidate, int) and 400 <= candidate <= 599:
            return candidate
    return next((_STATUS_BY_CODE[code] for code in codes if code in _STATUS_BY_CODE), None)


def _is_retryable(error: Exception, status: int | None, codes: tuple[str, ...]) -> bool:
    if any(code in _PERMANENT_CODES for code in codes):
        return False
    header = _headers(error).get("x-should-retry")  # Anthropic and OpenAI send it and their SDKs obey it
    if header in ("true", "false"):
        return header == "true"
    if status is not None:
        return status in RETRYABLE_STATUSES or status >= 500
    if is_malformed(error) or is_program_error(error):  # An SDK may have wrapped it as a connection error.
        return False
    # langchain_core.exceptions.ModelError has `is_retryable`.
    return getattr(error, "is_retryable", None) is True or _is_connection_error(error)


def _is_connection_error(error: Exception) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    return not names.isdisjoint(_CONNECTION_CLASSES)


def _error_codes(error: Exception) -> Iterator[str]:
    """Yield the error's codes: `code` and `type`, on the exception or in the body of the answer."""
    yield from _codes_in(error.__dict__)
    body = getattr(error, "body", None)
    for part in (body, body.get("error") if isinstance(body, Mapping) else None):
        if isinstance(part, Mapping):
            yield from _codes_in(part)


def _codes_in(part: Mapping[str, object]) -> Iterator[str]:
    for key in ("code", "type"):
        code = part.get(key)
        if isinstance(code, str):
            yield code


def _body(error: Exception) -> object:
    """Return the body of an answer as data, where the SDK keeps it; google.genai: `details`."""
    body = getattr(error, "body", None)
    return body if body is not None else getattr(error, "details", None)


def _headers(error: Exception) -> Mapping[str, str]:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None)
    if headers is None and isinstance(response, Mapping):
        headers = _metadata(response).get("HTTPHeaders")
    return headers if isinstance(headers, Mapping) else {}


def _metadata(response: Mapping[str, object]) -> Mapping[str, object]:
    metadata = response.get("ResponseMetadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _reason(error: Exception, status: int | None) -> str:
    text = description(error) if status is None and (_is_connection_error(error) or was_never_sent(error)) else None
    text = text or " ".join(str(error).split()) or "no further details"
    return f"{type(error).__name__}: {text[:500]}"
