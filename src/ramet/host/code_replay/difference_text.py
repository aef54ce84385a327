"""A difference as lines for a reader."""

from __future__ import annotations

import difflib
from typing import Final

from ramet.host.code_replay.step_comparison import Difference

MAX_LINES: Final = 40  #: of a difference
MAX_COMPARED: Final = 400  #: lines of each side: comparing takes the product of both
MAX_WIDTH: Final = 300  #: characters of a line


def difference_lines(difference: Difference) -> list[str]:
    """Return the place of a difference, and both sides: each on a line, or of long texts the lines that differ."""
    event = f"event {difference.event} of the journal" if difference.event else "behind the last event of the run"
    lines = [f"{difference.path}, step {difference.step} ({event}): {difference.what}"]
    recorded, code = difference.recorded.splitlines(), difference.code.splitlines()
    if max(len(recorded), len(code)) <= 1 and max(len(difference.recorded), len(difference.code)) <= MAX_WIDTH:
        return [*lines, f"  journal: {difference.recorded}", f"  code:    {difference.code}"]
    compared = difflib.unified_diff(
        [each[:MAX_WIDTH] for each in recorded[:MAX_COMPARED]],
        [each[:MAX_WIDTH] for each in code[:MAX_COMPARED]],
        "journal",
        "code",
        n=1,
        lineterm="",
    )
    shown = [f"  {line}" for line in compared if not line.startswith("@@")]
    if not shown:  # They differ behind what is compared here.
        shown = [
            f"  journal: {len(difference.recorded):,} characters",
            f"  code:    {len(difference.code):,} characters",
        ]
    more = [f"  … and {len(shown) - MAX_LINES} more lines"] if len(shown) > MAX_LINES else []
    return [*lines, *shown[:MAX_LINES], *more]
