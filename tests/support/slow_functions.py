"""Functions for tests of kernels that are replaced: they print something, wait, and continue. With a type of agents."""

from __future__ import annotations

import importlib.util
import pathlib
import time
import uuid
from collections.abc import Generator
from typing import Any

from ramet.services.agent_types.function.type import FunctionType
from ramet.services.contract import Image

LOOK_S = 0.01


def counts(text: str, history: list[dict[str, str]]) -> Generator[str, None, str]:
    """Count to N on "count N WAIT FOLDER". Before the number WAIT, wait until FOLDER/go exists.

    Then it says how many messages there were before. In the folder it leaves a file for each call.
    """
    _, most, wait, path = text.split()
    folder = pathlib.Path(path)
    (folder / f"called-{uuid.uuid4().hex}").touch()
    for number in range(1, int(most) + 1):
        while number == int(wait) and not (folder / "go").exists():
            time.sleep(LOOK_S)
        yield f"{number} "
    return f"after {len(history)}"


def waits_for(name: str) -> Generator[str, None, None]:
    """Yield the id of the call, and then the word of a module that does not exist yet."""
    yield f"{uuid.uuid4().hex}\n"
    while importlib.util.find_spec(name) is None:
        time.sleep(LOOK_S)
    yield importlib.import_module(name).WORD


def holds(text: str) -> str:
    """Print the id of the call, wait for so many seconds, and return the id."""
    me = uuid.uuid4().hex
    print(me, flush=True)  # noqa: T201 - that is what is tried
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        time.sleep(LOOK_S)
    return me


class SlowFunctions(FunctionType):
    """An agent type for these functions, which work in the host as well."""

    name = "slow-function"

    def __init__(self) -> None:
        super().__init__([__name__])

    def needs_sandbox(self, info: Any, image: Image) -> bool:
        """Work in the host unless a policy is given."""
        return False
