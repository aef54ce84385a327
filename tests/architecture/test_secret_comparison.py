"""Keys, tokens and their hashes are compared in constant time, wherever a client or another machine presents them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet

SOURCE = Path(ramet.__file__).parent  #: of the package that is tested, which `make mutants` replaces
#: Where keys are presented by clients, by other kernels and by pods.
PLACES = (
    "isolation/transport",
    "services/http",
    "services/cluster",
    "services/server/operator_token.py",
    "services/server/server.py",
    "services/teams",
    "services/operator",
)
#: Names of variables, attributes and functions that hold or return a key, or the hash of one.
SECRETS = frozenset(
    {"key", "hash", "hashes", "hash_of", "key_hash", "_hash", "_pass", "token", "nonce", "presented", "shown"}
    | {"bearer_key", "next_key", "next_hash"}
)
#: Functions that decide whether a key is the right one.
DECIDING = (
    ("isolation/transport/join_keys.py", "admit"),
    ("isolation/transport/join_keys.py", "confirm"),
    ("services/cluster/directory.py", "team_of"),
    ("services/cluster/auth.py", "check"),
    ("services/teams/keys.py", "key_matches"),
    ("services/teams/keys.py", "rights_of_hash"),
    ("services/teams/service.py", "_teams_of_key"),
)


def own_name(node: ast.expr) -> str:
    """Return the last name of a variable, an attribute or a called function; empty for anything else."""
    match node:
        case ast.Call(func=func):
            return own_name(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value):
            return own_name(value)
    return ""


def compared_secrets(source: str) -> Iterator[str]:
    """Yield the comparisons in a module by ==, != and `in` with a secret, known by its name, on one side."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands = (node.left, *node.comparators)
            if any(isinstance(each, ast.Constant) for each in operands):
                continue
            early = any(isinstance(each, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for each in node.ops)
            if early and SECRETS & {own_name(each) for each in operands}:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_key_is_compared_by_an_operator_that_stops_early() -> None:
    """`==` and `in` take the longer the more of a guess is right."""
    files = [file for path in PLACES for file in [SOURCE / path, *(SOURCE / path).rglob("*.py")] if file.is_file()]

    found = {str(file.relative_to(SOURCE)): list(compared_secrets(file.read_text())) for file in files}

    assert len(files) > 20
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(("file", "function"), DECIDING)
def test_a_function_that_decides_on_a_key_compares_in_constant_time(file: str, function: str) -> None:
    """Functions that decide on a key call hmac.compare_digest."""
    functions = [
        node
        for node in ast.walk(ast.parse((SOURCE / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    ]

    assert len(functions) == 1
    assert "hmac.compare_digest(" in ast.unparse(functions[0])


@pytest.mark.parametrize(
    "line", ["hash_of(key) == hash", "hash != each.key", "key in known", "self._hashes[key] == hashes[0]"]
)
def test_a_comparison_of_keys_is_recognised(line: str) -> None:
    """Control: the check finds known comparisons of keys."""
    assert list(compared_secrets(f"def opens():\n    return {line}\n"))
