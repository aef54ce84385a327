"""Choice of one sandbox for each test in CI: every sandbox has tests."""

from __future__ import annotations

import re

import pytest

from tests.support.one_of_sandboxes import left_out

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
    "tests/unit/tools/test_it.py::test_it[host]",
    "tests/unit/tools/test_it.py::test_it[sandbox]",
]


TYPES = [
    f"tests/conformance/test_agent_types.py::test_{number}[{place}-{kind}]"
    for number in range(40)
    for place in ("host", "bwrap", "local")
    for kind in ("llm", "function")
]


def sandbox_of(test: str) -> tuple[str, str]:
    """Return the test without its sandbox, and the sandbox."""
    name, _, parameters = test.partition("[")
    found = re.search(r"(\w+-)?(bwrap|local)", parameters)
    assert found is not None
    return name + parameters.replace(found[0], "", 1), found[0]


@pytest.mark.parametrize(("tests", "sandboxes"), [(ATTACKS, 4), (TRIPS, 2)])
def test_each_test_runs_in_one_of_its_sandboxes(tests: list[str], sandboxes: int) -> None:
    runs = [sandbox_of(test) for test in tests if test not in left_out(tests, "one")]

    assert sorted(name for name, _ in runs) == sorted({sandbox_of(test)[0] for test in tests})
    assert len({sandbox for _, sandbox in runs}) == sandboxes


def test_a_promise_is_kept_for_two_users_on_two_backends() -> None:
    first, second = left_out(PROMISES, "one"), left_out(PROMISES, "another")

    assert first | second == set(PROMISES)
    assert not first & second
    assert {test.partition("[")[2].partition("-")[0] for test in first} == {"bwrap", "local"}


def test_an_agent_type_runs_in_the_host_and_in_one_sandbox() -> None:
    runs = [test.partition("[")[2].partition("-")[0] for test in TYPES if test not in left_out(TYPES, "one")]

    assert runs.count("host") == 80
    assert runs.count("bwrap") + runs.count("local") == 80
    assert 20 < runs.count("bwrap") < 60


def test_a_trip_in_a_sandbox_or_the_host_runs_in_one_of_them() -> None:
    trips = [
        f"tests/trips/limits/test_pauses.py::test_it[moment {number}-{site}]"
        for number in range(40)
        for site in ("sandbox", "host")
    ]
    runs = set(trips) - left_out(trips, "one")

    assert len(runs) == 40
    assert {test.rpartition("-")[2] for test in runs} == {"sandbox]", "host]"}


def test_a_test_of_pods_runs_with_one_kind_of_pod() -> None:
    rolling = [
        f"tests/kubernetes/test_rolling.py::test_{number}[{turn}-{end}]"
        for number in range(40)
        for turn in ("function", "conversation")
        for end in ("killed", "told to end")
    ]
    faults = [
        f"tests/kubernetes/test_pod_faults.py::test_{number}[{kind}]"
        for number in range(40)
        for kind in ("attached", "dialling")
    ]

    for tests in (rolling, faults):
        runs = set(tests) - left_out(tests, "one")
        assert len(runs) == 40
        assert {test.partition("[")[2] for test in runs} == {test.partition("[")[2] for test in tests}


def test_a_trip_of_several_sandboxes_and_stores_runs_in_one() -> None:
    left = set(STORED) - left_out(STORED, "one")

    assert len(left) == 40
    assert {test.partition("[")[2] for test in left} == {test.partition("[")[2] for test in STORED}


def test_of_a_test_with_one_sandbox_nothing_is_left_out() -> None:
    assert left_out(WHOLE, "one") == left_out(WHOLE, "another") == frozenset()


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="one of one, another"):
        left_out([], "third")
