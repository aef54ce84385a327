"""Functions for tests of kernels that come and go: they say something, and wait in between. And agents of them."""

from __future__ import annotations

import pathlib
import time
import uuid
from collections.abc import Generator

from ramet.services.types.function import FunctionType

LOOK_S = 0.01


def counts(text: str, history: list[dict[str, str]]) -> Generator[str, None, str]:
    """Asked "count N WAIT FOLDER" it says the numbers to N; before number WAIT it waits until FOLDER/go is there.

    Then it says how many messages there were before. Where it may, it leaves a file in the folder for each call.
    """
    _, most, wait, place = text.split()
    folder = pathlib.Path(place)
    try:
        (folder / f"called-{uuid.uuid4().hex}").touch()
    except OSError:
        yield ""  # Inside, it can only look.
    for number in range(1, int(most) + 1):
        while number == int(wait) and not (folder / "go").exists():
            time.sleep(LOOK_S)
        yield f"{number} "
    return f"after {len(history)}"


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
