"""Errors as problem documents: one status each, the values that a caller acts on, and no internals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.core import errors
from ramet.services.errors import BodyTooLarge, Missed, TakenOver, Undecodable
from ramet.services.problems import MAX_DETAIL, PREFIX, error_of, to_problem

CASES: list[tuple[str, BaseException, int, str, dict[str, Any]]] = [
    ("invalid", errors.InvalidValue("a", 1, "2"), 422, "invalid-value", {"field": "a", "accepted": "2"}),
    ("undecodable", Undecodable("body", "{", "JSON"), 400, "undecodable", {"field": "body"}),
    ("body", BodyTooLarge("body", size=9, limit=8), 413, "body-too-large", {"field": "body", "size": 9, "limit": 8}),
    ("not-yours", errors.NotYours("agent", "a"), 404, "not-yours", {"kind": "agent", "name": "a"}),
    ("unknown", errors.Unknown("operation", "a", ("b", "c")), 404, "unknown", {"known": ["b", "c"]}),
    ("busy", errors.BusyError("16 wait"), 429, "busy", {}),
    (
        "full",
        errors.OverCapacity("t", "cpu", asked=2, room={"cpu": 0.5, "agents": 1}),
        409,
        "over-capacity",
        {"resource": "cpu", "asked": 2, "free": 0.5, "room": {"cpu": 0.5, "agents": 1}},
    ),
    ("refused", errors.SpawnRefused("depth", "deep", free=0.0), 409, "spawn-refused", {"limit": "depth", "free": 0.0}),
    ("conflict", errors.Conflict("doc", "k", expected=1, found=2), 409, "conflict", {"expected": 1, "found": 2}),
    (
        "elsewhere",
        errors.OwnedElsewhere("t", "two", "http://in"),
        503,
        "owned-elsewhere",
        {"tree": "t", "kernel": "two"},
    ),
    ("taken", TakenOver("team", "t"), 503, "taken-over", {"kind": "team", "name": "t"}),
    ("denied", errors.Denied("shell", "no"), 403, "denied", {"what": "shell", "reason": "no"}),
    ("large", errors.OutputTooLarge("file", size=9, limit=8), 413, "output-too-large", {"size": 9, "limit": 8}),
    (
        "isolation",
        errors.IsolationUnavailable("strict", "none", ("bwrap",), "install it"),
        422,
        "isolation-unavailable",
        {"missing": ["bwrap"], "remedy": "install it"},
    ),
    ("sandbox", errors.SandboxFailed("the cluster refuses it"), 503, "sandbox-failed", {}),
    ("gone", errors.Gone("it ended"), 410, "gone", {}),
    ("missed", Missed("t", after=3, first=9), 410, "missed", {"turn": "t", "after": 3, "first": 9}),
    ("expired", errors.Expired("r", "today", 5.0), 410, "expired", {"run": "r", "ended": "today", "keep_s": 5.0}),
    ("model", errors.ModelFailed("m", "down", retryable=True), 502, "model-failed", {"model": "m", "retryable": True}),
    ("task", errors.TaskFailed("cannot", task="t"), 502, "task-failed", {"task": "t", "outcome": "failed"}),
]


@pytest.mark.parametrize(("error", "status", "type", "fields"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_error_has_its_status_type_and_fields(
    error: BaseException, status: int, type: str, fields: dict[str, Any]
) -> None:
    """The document has what the caller may know; a subclass is not reported as its base class."""
    document = json.loads(to_problem(error).encode())

    assert (document["status"], document["type"]) == (status, PREFIX + type)
    assert document["title"] == type.replace("-", " ").capitalize()
    assert document["detail"] == str(error)
    assert {name: document[name] for name in fields} == fields


@pytest.mark.parametrize(
    "error",
    [KeyError("/secret/path"), errors.Bug("/secret/path"), errors.StoreFailed("/secret/path", "full")],
    ids=["python", "bug", "store"],
)
def test_an_internal_error_reveals_nothing(error: BaseException) -> None:
    """The document has neither the message nor the type."""
    document = to_problem(error).encode()

    assert json.loads(document)["status"] == 500
    assert b"secret" not in document
    assert type(error).__name__.encode() not in document


def test_unsafe_names_still_make_a_valid_document() -> None:
    """Lone surrogates are replaced, and long texts are cut."""
    document = json.loads(to_problem(errors.Unknown("agent", "\ud800", ("x" * 10_000,))).encode())

    assert document["name"] == "?"
    assert len(document["known"][0]) == MAX_DETAIL
    assert len(to_problem(errors.Gone("x" * 10_000)).detail) == MAX_DETAIL


def test_a_field_of_an_error_never_replaces_a_member_of_the_document() -> None:
    """The error's own `status` appears as `outcome`."""
    document = json.loads(to_problem(errors.TaskFailed("no", status="timeout")).encode())

    assert (document["status"], document["outcome"]) == (502, "timeout")


def test_the_address_of_another_kernel_is_not_shown() -> None:
    """Holders of an agent's key see the agent's error."""
    error = errors.OwnedElsewhere("run-1", "two", "http://10.0.0.7:8470")
    assert error.address not in error_of(error).message
    assert error.address not in to_problem(error).detail
