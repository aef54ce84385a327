"""Tests of `parse_module`: sources are parsed whatever other threads do."""

from __future__ import annotations

import ast

import pytest

from ramet.wire.code.syntax import parse_module


def test_a_parse_that_another_thread_disturbed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 raises this SystemError for valid sources."""
    parse, disturbed = ast.parse, 0

    def disturb_twice(source: str) -> ast.AST:
        nonlocal disturbed
        if disturbed < 2:
            disturbed += 1
            raise SystemError("AST constructor recursion depth mismatch (before=189, after=242)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", disturb_twice)

    assert isinstance(parse_module("x = 1"), ast.Module)
    assert disturbed == 2


def test_an_error_of_the_source_is_raised_at_once() -> None:
    """A second parse would raise the same SyntaxError."""
    with pytest.raises(SyntaxError):
        parse_module("x =")
