"""Every layer that `make mutants` removes is still where its row says, and so are the tests that must notice."""

from __future__ import annotations

import pytest

from tests.security.mutants import PROJECT, misses, selections_of
from tests.security.mutations import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.layer)
def test_a_layer_that_is_to_be_removed_is_in_the_source_once(mutant: Mutant) -> None:
    """Who changes a layer changes its row in tests/security/mutations.py, too."""
    assert misses(mutant) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.layer)
def test_the_tests_of_a_layer_are_there(mutant: Mutant) -> None:
    """A row without a file of tests would be noticed by none."""
    paths = [path.partition("::") for tests in selections_of(mutant) for path in tests.paths]

    assert paths
    for file, _, test in paths:
        assert (PROJECT / file).exists()
        assert not test or f"def {test}(" in (PROJECT / file).read_text()


def test_no_layer_has_two_rows() -> None:
    """Names are unique: the table is read by them."""
    assert len({each.layer for each in MUTANTS}) == len(MUTANTS)
