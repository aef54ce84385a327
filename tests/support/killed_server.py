"""`python -m tests.support.killed_server serve …` is `ramet serve`, and kills itself where a file tells it to.

A file `kill-before` in its folder: when a request with an Idempotency-Key was done, and its answer is not on record.
`kill-after`: when the answer is on record, and was not sent. The file is removed at that.
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
    """As a machine that crashes, if the file is there."""
    if (mark := FOLDER / point).exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class KilledLedger(Ledger):
    """Dies before or after it puts on record what was done."""

    async def answer(self, *args: Any) -> None:
        """Keep an answer."""
        die_at("kill-before")
        await super().answer(*args)
        die_at("kill-after")

    async def begin_turn(self, attempt: Attempt) -> None:
        """Put a turn on record."""
        die_at("kill-before-turn")
        await super().begin_turn(attempt)
        die_at("kill-after-turn")


if __name__ == "__main__":
    setattr(server, "Ledger", KilledLedger)  # noqa: B010 - a class in the place of its base
    sys.exit(main(sys.argv[1:]))
