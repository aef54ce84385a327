"""Agents that put their secrets where people and files would see them."""

from __future__ import annotations

import json
import os
import pathlib
import sys

TOKEN = "/run/secrets/token"


def fail_with_secret(form: str) -> None:
    """Raise an error whose text, or whose type, holds the secret in a form."""
    secret = pathlib.Path(TOKEN).read_text()
    match form:
        case "plain":
            raise ValueError(f"the server refused {secret} today")
        case "repr":
            raise ValueError(f"refused: {secret!r}")
        case "json":
            raise ValueError(json.dumps({"token": secret}))
        case "type":
            raise type(f"Bad_{secret}", (Exception,), {})("refused")
        case "cut":  # Messages are cut at 4,000 characters: here in the middle of the secret.
            raise ValueError("x" * (4_000 - len(secret) // 2) + secret)
    raise AssertionError(form)


def fail_with_variable() -> None:
    """Raise an error whose text holds the value of a variable."""
    raise RuntimeError(f"cannot log in with {os.environ['DATABASE_URL']}")


def print_variable() -> None:
    """Print the value of a variable, and fail."""
    print("password:", os.environ["DATABASE_URL"], file=sys.stderr, flush=True)  # noqa: T201
    raise RuntimeError("failed")


def spawn_child_that_fails() -> str:
    """Return the error of a child that has a secret of its parent's."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    result = spawn_sub_agent(fail_with_secret, policy=Policy(secrets=["token"]), args=("plain",))
    return result.error.message if result.error is not None else "no error"


def read_variable() -> str:
    """Return a variable's value backwards, so that the result does not hold the value."""
    return os.environ["DATABASE_URL"][::-1]


def wait_for_ever() -> None:
    """Wait until the process is ended."""
    import threading

    print("waiting", flush=True)  # noqa: T201
    threading.Event().wait()
