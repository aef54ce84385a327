"""`python -m tests.support.killed_server serve …` is `ramet serve`, and kills itself if a file asks for it.

A file `kill-before` in its folder: when a request with an Idempotency-Key is done, and its answer is not recorded.
`kill-after`: when the answer is recorded, and is not sent. The server removes the file first.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import Any

from ramet.cli.main import main
from ramet.services.idempotency.attempts import Attempt
from ramet.services.idempotency.ledger import Ledger
from ramet.services.server import server

FOLDER = pathlib.Path(sys.argv[sys.argv.index("--dir") + 1])


def die_at(point: str) -> None:
    """Kill this process, as a crash does, if the file is there."""
    if (mark := FOLDER / point).exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class KilledLedger(Ledger):
    """A ledger that kills the process before or after it records an answer or a turn."""

    async def answer(self, *args: Any) -> None:
        """Record an answer."""
        die_at("kill-before")
        await super().answer(*args)
        die_at("kill-after")

    async def begin_turn(self, attempt: Attempt) -> None:
        """Record a turn."""
        die_at("kill-before-turn")
        await super().begin_turn(attempt)
        die_at("kill-after-turn")


if __name__ == "__main__":
    setattr(server, "Ledger", KilledLedger)  # noqa: B010 - a class in the place of its base
    sys.exit(main(sys.argv[1:]))
