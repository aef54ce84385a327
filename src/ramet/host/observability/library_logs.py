"""Log records of ramet on stderr, for programs that import it and set up no logging of their own."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from ramet.core.errors import InvalidValue

LOG_LEVEL: Final = "RAMET_LOG_LEVEL"


def show_logs(*, verbose: bool = False) -> None:
    """Show ramet's log records from RAMET_LOG_LEVEL on, with `verbose` all of them; without either change nothing.

    If the program has handlers of its own, records go only there. Idempotent. Raises InvalidValue for an unknown level.
    """
    level_name = os.environ.get(LOG_LEVEL, "").strip().upper()
    if level_name and level_name not in logging.getLevelNamesMapping():
        raise InvalidValue(LOG_LEVEL, level_name, "DEBUG, INFO, WARNING, ERROR or CRITICAL")
    level = "DEBUG" if verbose else level_name
    if not level:
        return
    logger = logging.getLogger("ramet")
    logger.setLevel(level)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
