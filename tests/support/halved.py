"""Cases of a test of which every second one is left out with SANDBOXES=one, where CI bounds what is repeated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def halved(cases: Iterable[Any]) -> list[Any]:
    """Return all cases; every second one is marked as `larger`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.larger] if index % 2 else [])
        for index, case in enumerate(cases)
    ]
