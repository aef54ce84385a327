"""The seed of rounds, and which rounds are for which command."""

from __future__ import annotations

import os
from typing import Final

import pytest

USUAL: Final = 1  #: the seed of `make test`
SEED: Final = int(os.environ.get("RAMET_CHAOS_SEED", str(USUAL)))


def round_count(usual: int) -> int:
    """Return how many rounds are wanted, where nobody says it `usual` ones."""
    return int(os.environ.get("RAMET_CHAOS_ROUNDS", usual))


def round_marks(number: int, first: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a round: the `first` of the usual seed are for `make test`, and half of them for CI."""
    if number >= first or SEED != USUAL:
        return [pytest.mark.slow, pytest.mark.chaos]
    return [pytest.mark.slow, *([pytest.mark.larger] if number >= first // 2 else [])]
