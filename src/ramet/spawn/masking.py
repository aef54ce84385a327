"""Masking of secrets and variables in texts for people: values of a run and of the runs above it."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import ToolMessage
from msgspec.structs import replace

from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant
from ramet.core.policy.rights import IMPORTS
from ramet.isolation.masking.secret_forms import LEAST, MAX_LINES, forms_of, mask_text
from ramet.spawn.run import Run


def secret_forms(run: Run) -> frozenset[str]:
    """Return the forms of the secrets of a run and of all runs above it."""
    return forms_of(value for grant in run.grants() for value in grant.secrets.values())


def private_forms(run: Run) -> frozenset[str]:
    """Return the forms of secrets, and of values of variables that are too long to occur by chance."""
    return _private_forms([*run.grants()][::-1])  # Lines count from above: a guest has no word there.


def forms_of_grant(grant: Grant) -> frozenset[str]:
    """Return the forms of the secrets and variables of one grant."""
    return _private_forms([grant])


def masked_text(run: Run, text: str, most: int | None = None) -> str:
    """Return a text from or about a run, without private values, cut to `most` characters.

    Text far behind the cut is not searched: a guest may write much text that takes long to search.
    """
    if not text:
        return text
    if most is None:
        return mask_text(text, private_forms(run))
    return mask_text(text[: 2 * most], private_forms(run))[:most]


def masked_error(run: Run, error: ErrorInfo | None, most: int | None = None) -> ErrorInfo | None:
    """Return an error with the name of its type and its message masked, and cut to `most` characters if given."""
    if error is None:
        return None
    if most is not None:
        return ErrorInfo(type=masked_text(run, error.type, 100), message=masked_text(run, error.message, most))
    if not (forms := private_forms(run)):
        return error
    return replace(error, type=mask_text(error.type, forms), message=mask_text(error.message, forms))


def masked_failure(run: Run, message: ToolMessage) -> ToolMessage:
    """Return a tool's answer with its texts masked if it is an error; a result is data and stays unchanged."""
    if message.status != "error":
        return message
    forms = private_forms(run)
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": mask_text(content, forms)})
    blocks = [mask_text(each, forms) if isinstance(each, str) else _masked_block(each, forms) for each in content]
    return message.model_copy(update={"content": blocks})


def _masked_block(block: dict[str, object], forms: frozenset[str]) -> dict[str, object]:
    return {key: mask_text(value, forms) if isinstance(value, str) else value for key, value in block.items()}


def _private_forms(grants: Sequence[Grant]) -> frozenset[str]:
    """Return the forms of secrets and of variables except the folders that ramet itself lets agents import from."""
    secrets = [value for grant in grants for value in grant.secrets.values()]
    variables = [
        value for grant in grants for name, value in grant.env_vars.items() if len(value) >= LEAST and name != IMPORTS
    ]
    return forms_of(secrets) | forms_of(dict.fromkeys(variables), max_lines=MAX_LINES)
