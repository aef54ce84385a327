"""Half of the sandboxes: each test runs in one, every sandbox has tests, and the two halves are all tests."""

from __future__ import annotations

import pytest

from tests.support.half_of_sandboxes import left_out

ATTACKS = [
    f"tests/security/test_attacks_files.py::test_{number}[{whose}{rest}]"
    for number in range(40)
    for whose in ("me-bwrap", "ordinary-bwrap", "me-local", "bare-local")
    for rest in ("", "-local_name")
]
TRIPS = [f"tests/trips/mail/test_mail.py::test_{number}[{each}]" for number in range(40) for each in ("bwrap", "local")]
PROMISES = [
    f"tests/conformance/test_backends.py::test_it[{each}-check_{number}]"
    for number in range(40)
    for each in ("bwrap", "local")
]
STORED = [
    f"tests/trips/mail/test_mail.py::test_{number}[{store}-{each}]"
    for number in range(40)
    for store in ("memory", "postgres", "sqlite")
    for each in ("bwrap", "local")
]
WHOLE = [
    "tests/trips/mail/test_mail.py::test_one[bwrap]",
    "tests/trips/mail/test_mail.py::test_two",
    "tests/unit/isolation/test_backends_own.py::test_it[bwrap]",
    "tests/unit/isolation/test_backends_own.py::test_it[local]",
    "tests/kubernetes/test_pods.py::test_it[waited-check_1]",
]


@pytest.mark.parametrize("tests", [ATTACKS, TRIPS, PROMISES])
def test_each_test_runs_in_half_of_its_sandboxes(tests: list[str]) -> None:
    first, second = left_out(tests, "half"), left_out(tests, "other-half")

    assert first | second == set(tests)
    assert not first & second
    for name in {test.partition("[")[0] for test in ATTACKS}:
        kept = {
            test.partition("[")[2][:-1].removesuffix("-local_name") for test in second if test.startswith(f"{name}[")
        }
        assert kept in (set(), {"me-bwrap", "bare-local"}, {"ordinary-bwrap", "me-local"})
    for sandbox in ("bwrap", "local"):
        assert any(sandbox in test.partition("[")[2].partition("-local_name")[0] for test in first)


def test_a_trip_of_several_sandboxes_and_stores_runs_in_one() -> None:
    left = set(STORED) - left_out(STORED, "half")

    assert len(left) == 40
    assert {test.partition("[")[2] for test in left} == {test.partition("[")[2] for test in STORED}


def test_a_test_of_one_sandbox_is_in_both_halves() -> None:
    assert left_out(WHOLE, "half") == left_out(WHOLE, "other-half") == frozenset()


def test_a_half_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="one of half, other-half"):
        left_out([], "third")
