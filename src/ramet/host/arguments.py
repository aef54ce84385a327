"""Checks of the arguments of a runtime or a session, made before anything starts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from langchain_core.messages import BaseMessage

from ramet.agent.definition import Agent, as_agent
from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue
from ramet.core.media.attachment import Attachment, check_attachments
from ramet.host.observability.audit import Audit
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.models.rate_limit import RetryPolicy


def check_messages(field: str, messages: object) -> None:
    """Raise InvalidValue if `messages` is not a list of messages; the error names the first wrong entry."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidValue(field, messages, "a list of LangChain messages")
    for index, each in enumerate(messages):
        check_instance(f"{field}[{index}]", each, BaseMessage, "a LangChain message")


def check_prompt_attachments(agent: Agent, prompt: str, attachments: object) -> Sequence[Attachment]:
    """Return the attachments of a prompt. Raises InvalidValue if they are none, or if this agent reads no files."""
    checked = check_attachments(attachments)
    if checked and (agent.function is not None or agent.external is not None):
        raise InvalidValue("attachments", checked, "none: this agent is no model, and reads a text alone")
    if checked and not prompt.strip():
        raise InvalidValue("attachments", checked, "none without a prompt")
    return checked


def definitions_of(agents: Any) -> tuple[Agent, ...]:
    """Return the definitions that a list contains.

    Raises InvalidValue for a value that is not a list, or for a bad entry.
    """
    if isinstance(agents, str | Mapping) or not isinstance(agents, Iterable):
        raise InvalidValue("agents", agents, "a list, each entry ramet.Agent, a dict of its fields, or a function")
    return tuple(map(as_agent, agents))


def check_runtime(
    working_dir: object,
    clock: object,
    prices: object,
    retry: object,
    grace_s: object,
    store: object,
    audit: object,
    keep_folders: object,
    keep_trees: object,
) -> None:
    """Raise InvalidValue if an argument of a runtime has a wrong type."""
    check_instance("working_dir", working_dir, (str, os.PathLike, NoneType), "the path of a folder, or None")
    if clock is not None and not all(hasattr(clock, name) for name in ("now", "monotonic", "sleep")):
        raise InvalidValue("clock", clock, "a clock (ramet.concurrency.clock), or None")
    check_instance("prices", prices, (Mapping, NoneType), "a mapping of names of models to prices, or None")
    check_instance("retry", retry, (RetryPolicy, NoneType), "a ramet.models.rate_limit.RetryPolicy, or None")
    is_number = isinstance(grace_s, int | float) and not isinstance(grace_s, bool)
    if not is_number or not 0 <= grace_s < math.inf:  # type: ignore[operator]  # a number by now
        raise InvalidValue("grace_s", grace_s, "a number of seconds from 0")
    if store is not None and not all(hasattr(store, name) for name in ("open", "append", "close")):
        raise InvalidValue("store", store, "a store (ramet.store), or None")
    check_instance("audit", audit, (Audit, NoneType), "a ramet.host.observability.audit.Audit, or None")
    check_instance("keep_folders", keep_folders, (FolderLimits, NoneType), "a FolderLimits (ramet.isolation), or None")
    if isinstance(keep_trees, bool) or not isinstance(keep_trees, int) or keep_trees < 0:
        raise InvalidValue("keep_trees", keep_trees, "a whole number from 0")
