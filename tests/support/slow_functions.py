"""Functions for tests of kernels that come and go: they say something, and wait in between. And agents of them."""

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
    """Asked "count N WAIT FOLDER" it says the numbers to N; before number WAIT it waits until FOLDER/go is there.

    Then it says how many messages there were before. In the folder it leaves a file for each call.
    """
    _, most, wait, place = text.split()
    folder = pathlib.Path(place)
    (folder / f"called-{uuid.uuid4().hex}").touch()
    for number in range(1, int(most) + 1):
        while number == int(wait) and not (folder / "go").exists():
            time.sleep(LOOK_S)
        yield f"{number} "
    return f"after {len(history)}"


def waits_for(name: str) -> Generator[str, None, None]:
    """Says which call it is, and then what a module says that is not there yet."""
    yield f"{uuid.uuid4().hex}\n"
    while importlib.util.find_spec(name) is None:
        time.sleep(LOOK_S)
    yield importlib.import_module(name).WORD


def holds(text: str) -> str:
    """Says which call it is, waits for so many seconds, and says it again."""
    me = uuid.uuid4().hex
    print(me, flush=True)  # noqa: T201 - that is what is tried
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        time.sleep(LOOK_S)
    return me


class SlowFunctions(FunctionType):
    """Agents that are these functions, in the host as well."""

    name = "slow-function"

    def __init__(self) -> None:
        super().__init__([__name__])

    def needs_sandbox(self, info: Any, image: Image) -> bool:
        """Work in the host unless a policy is given."""
        return False
