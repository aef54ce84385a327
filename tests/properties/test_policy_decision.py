"""A policy adapter's answer never widens a grant, whatever it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue
from ramet.core.policy.decision import Narrow, clamp_grant
from ramet.core.policy.policy import LIMIT_FIELDS, Grant, Isolation, Policy, resolve_root_policy
from ramet.core.policy.reservation import Reservation
from tests.properties.test_policy import FIELDS, is_within, policies, policy_of, roots

most = st.fixed_dictionaries({}, optional={name: each for name, each in FIELDS.items() if name != "secrets"}).map(
    policy_of
)
EQUAL = ("max_sub_agent_depth",)  #: a child's is smaller than its parent's; here it is the same run's


@given(roots, policies)
def test_an_answer_never_widens(grant: Grant, answer: Policy) -> None:
    """Each field of the clamped grant is within the field before, by the rule of the tests for children."""
    less = clamp_grant(grant, answer)

    for field in Grant.__struct_fields__:
        if field in EQUAL:
            assert getattr(less, field) <= getattr(grant, field)
        else:
            assert is_within(field, less, grant), field
    assert less.retry_count <= grant.retry_count
    assert less.retry_delay_seconds == grant.retry_delay_seconds


@given(roots, most)
def test_the_clamped_grant_is_within_the_answer(grant: Grant, answer: Policy) -> None:
    """The clamped grant is within the answer, and clamping it again changes nothing."""
    less = clamp_grant(grant, answer)

    assert clamp_grant(less, answer) == less
    for name in ("memory_mb", "cpu_cores", "pids", "timeout_seconds", "max_sub_agents", "retry_count"):
        bound = getattr(answer, name)
        assert bound is None or getattr(less, name) <= bound
    for name in ("allowed_endpoints", "models", "writable_mounts"):
        if (bound := getattr(answer, name)) is not None and not bound:
            assert getattr(less, name) == ()
    if answer.allowed_env_vars is not None:
        assert {*less.allowed_env_vars, *less.env_vars} <= set(answer.allowed_env_vars)
    if answer.isolation is not None:
        assert less.isolation.rank >= answer.isolation.rank


#: What an answer can take away of each right, limits aside, which the properties above draw.
LESS: dict[str, Any] = {
    "network": "disabled",
    "allowed_endpoints": (),
    "models": (),
    "ports": {},
    "readonly_mounts": (),
    "writable_mounts": (),
    "allowed_env_vars": (),
    "secrets": {},
    "isolation": Isolation.L3,
    "allow_sub_agents": False,
}
MUCH = Policy(
    allowed_endpoints=("*",),
    models=("openai:*",),
    ports={"web": 8000, "api": 8001},
    readonly_mounts=("/data",),
    writable_mounts=("/project",),
    allowed_env_vars=("LANG",),
    env_vars={"A": "b"},
    secrets={"key": "hunter2"},
    isolation=Isolation.L1,
    allow_sub_agents=True,
)


@pytest.mark.parametrize("field", [each for each in Policy.__struct_fields__ if each not in LIMIT_FIELDS])
def test_an_answer_can_narrow_every_right(field: str) -> None:
    """Each field that is no limit is narrowed by an answer, or is one of four known exceptions."""
    if field not in LESS:
        assert field in ("env_vars", "retry_delay_seconds", "reservation", "retry_count")
        return
    grant = resolve_root_policy(MUCH)

    assert clamp_grant(grant, Policy(**{field: LESS[field]})) != grant


def test_a_port_stays_only_with_its_name_and_number() -> None:
    """A different number behind the same name is a different right."""
    grant = resolve_root_policy(Policy(ports={"web": 8000, "api": 8001, "db": 5432}))

    assert clamp_grant(grant, Policy(ports={"web": 8000, "api": 9001})).ports == {"web": 8000}


@given(roots)
def test_an_empty_answer_changes_nothing(grant: Grant) -> None:
    """Absent fields of an answer leave the grant as it is."""
    assert clamp_grant(grant, Policy()) == grant


def test_the_narrower_endpoint_of_grant_and_answer_stays() -> None:
    """The narrower of two endpoints stays, whichever side has it."""
    grant = resolve_root_policy(Policy(allowed_endpoints=("*.example.org:443", "api.other.org:443")))

    less = clamp_grant(grant, Policy(allowed_endpoints=("docs.example.org:443", "*.other.org:443", "evil.net:443")))

    assert set(less.allowed_endpoints) == {"docs.example.org:443", "api.other.org:443"}


def test_the_deeper_mount_of_grant_and_answer_stays() -> None:
    """The deeper of two mounts stays, whichever side has it."""
    grant = resolve_root_policy(Policy(readonly_mounts=("/data", "/opt/tools/bin")))

    less = clamp_grant(grant, Policy(readonly_mounts=("/data/public", "/opt/tools", "/home")))

    assert set(less.readonly_mounts) == {"/data/public", "/opt/tools/bin"}


def test_a_writable_mount_stays_as_a_read_only_one_where_an_answer_says_so() -> None:
    """Reading is a part of writing."""
    grant = resolve_root_policy(Policy(writable_mounts=("/project",)))

    less = clamp_grant(grant, Policy(writable_mounts=(), readonly_mounts=("/project",)))

    assert less.mounts == (("/project",), ())


def test_a_read_only_mount_in_a_writable_one_stays_read_only() -> None:
    """An answer that leaves the outer mount and not the inner one would give the right to write there."""
    grant = resolve_root_policy(Policy(writable_mounts=("/project",), readonly_mounts=("/project/vendor", "/data")))

    assert clamp_grant(grant, Policy(readonly_mounts=())).mounts == (("/project/vendor",), ("/project",))
    assert clamp_grant(grant, Policy(writable_mounts=("/project/vendor/x",))).writable_mounts == ()


def test_a_disabled_network_leaves_no_endpoint() -> None:
    grant = resolve_root_policy(Policy(allowed_endpoints=("*",), isolation=Isolation.L1))

    assert clamp_grant(grant, Policy(network="disabled")).allowed_endpoints == ()


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Policy(env_vars={"A": "b"}), "narrow.policy.env_vars"),
        (Policy(secrets={"key": "hunter2"}), "narrow.policy.secrets"),
        (Policy(retry_delay_seconds=1), "narrow.policy.retry_delay_seconds"),
        (Policy(reservation=Reservation(name="team")), "narrow.policy.reservation"),
        ({"memory_mb": 1}, "narrow.policy"),
    ],
    ids=["env_vars", "secrets", "retry_delay_seconds", "reservation", "a dict"],
)
def test_an_answer_that_cannot_narrow_names_its_field(policy: Any, field: str) -> None:
    """The error names the field and shows no value of a secret."""
    with pytest.raises(InvalidValue) as refused:
        Narrow(policy=policy)

    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


def test_limits_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"narrow\.limits"):
        Narrow(limits={"tokens": 1})  # type: ignore[arg-type]  # that is the point
