"""The form of a refusal: a problem document, or the error format of the provider whose client sent the request."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.errors import InvalidValue, NotYours
from ramet.services.errors import BodyTooLarge, KeyReused
from ramet.services.formats import anthropic, openai
from ramet.services.formats.registry import Format, format_of
from ramet.services.http import responses
from ramet.services.http.responses import Refusal
from ramet.services.problems import Problem, to_problem

_log = logging.getLogger("ramet.serve")
#: Paths of the providers: the first part after /v1. The client's headers decide about paths that ramet has, too.
_PATHS: Final = {
    anthropic.NAME: ("complete", "messages", "skills"),
    openai.NAME: (
        "assistants", "audio", "batches", "chat", "completions", "containers", "conversations", "embeddings", "evals",
        "files", "fine_tuning", "models", "moderations", "organization", "realtime", "responses", "threads", "uploads",
        "vector_stores", "videos",
    ),
}  # fmt: skip


def provider_of(request: Request) -> Format | None:
    """Return the format of the provider whose client sends a request; None for one of ramet's own paths."""
    if "anthropic-version" in request.headers:
        return format_of(anthropic.NAME)
    if request.headers.get("user-agent", "").startswith(("OpenAI/", "AsyncOpenAI/")):
        return format_of(openai.NAME)
    _, _, rest = request.scope["path"].partition("/v1/")
    first = rest.partition("/")[0]
    return next((format_of(name) for name, paths in _PATHS.items() if first in paths), None)


def provider_refusal(format: Format, error: BaseException) -> Response:
    """Return an error as an answer for clients of a provider."""
    problem = provider_problem(error)
    parameter = error.field if isinstance(error, InvalidValue) else ""
    body = format.error(problem.detail, problem.status, parameter)
    return Response(body, problem.status, responses.headers_of(error, problem.status), "application/json")


def provider_problem(error: BaseException) -> Problem:
    """Return an error as a problem, with the status that providers use for it."""
    if isinstance(error, Refusal):
        return error.problem
    problem = to_problem(error)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("an answer failed", exc_info=error)
    if isinstance(error, NotYours):
        detail = "this key is not valid for an agent"
        return replace(problem, status=HTTPStatus.UNAUTHORIZED, detail=detail, fields={})
    if isinstance(error, InvalidValue) and not isinstance(error, BodyTooLarge | KeyReused):
        return replace(problem, status=HTTPStatus.BAD_REQUEST, fields={})
    return problem
