"""Each layer that `make mutants` removes is still where its row says, and so are the tests that must notice."""

from __future__ import annotations

import pytest

from tests.security.mutants import PROJECT, misses, selections_of
from tests.security.mutations import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.layer)
def test_the_words_of_a_layer_occur_once_in_the_source(mutant: Mutant) -> None:
    """The row of a layer matches its source.

    A change of a layer also changes its row in tests/security/mutations.py.
    """
    assert misses(mutant) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.layer)
def test_the_tests_of_a_layer_exist(mutant: Mutant) -> None:
    """The files and functions of the tests that must notice a missing layer exist."""
    paths = [path.partition("::") for tests in selections_of(mutant) for path in tests.paths]

    assert paths
    for file, _, test in paths:
        assert (PROJECT / file).exists()
        assert not test or f"def {test}(" in (PROJECT / file).read_text()


def test_no_layer_has_two_rows() -> None:
    """Names of layers are unique, since the table is read by name."""
    assert len({each.layer for each in MUTANTS}) == len(MUTANTS)
