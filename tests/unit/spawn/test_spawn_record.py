"""Tests of `spawn/birth/record.py`: a grant is restored from the recorded spawn and the supplied values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ramet.core.errors import DefinitionMissing
from ramet.core.policy.policy import Grant
from ramet.spawn.birth.record import Values, grant_of

PARENT_GRANT = Grant(env_vars={"SHARED": "of the parent"})


def restored_grant(supplied: dict[str, str], *, above: tuple[Grant, ...] = (PARENT_GRANT,), **fields: Any) -> Any:
    """Restore the grant of a run at `main/kid` with these supplied values."""
    data = msgspec.to_builtins(Grant()) | {"env_vars": ["OWN", "SHARED"], "own_env_vars": ["OWN"], "secrets": []}
    return grant_of(
        {"grant": data | fields}, Values(path="main/kid", secrets={}, env_vars=supplied, ancestor_grants=above)
    )


def test_a_missing_value_is_named_as_the_caller_must_supply_it() -> None:
    """A child's own value is named with the child's path; a shared value, and a root's, by its bare name."""
    assert restored_grant({}).missing_variables == ("main/kid:OWN",)
    assert restored_grant({}, above=(Grant(),)).missing_variables == ("main/kid:OWN", "SHARED")
    assert restored_grant({}, above=()).missing_variables == ("OWN", "SHARED")


def test_values_come_from_the_parent_or_are_supplied_for_the_run() -> None:
    """A value for the run itself wins over any other; a bare name never supplies a child's own value."""
    by_name = restored_grant({"OWN": "by its name", "SHARED": "by its name"})
    special = restored_grant({"main/kid:OWN": "of the kid", "main/kid:SHARED": "of the kid, too"})

    assert (by_name.grant.env_vars, by_name.missing_variables) == ({"SHARED": "of the parent"}, ("main/kid:OWN",))
    assert (special.grant.env_vars, special.missing_variables) == (
        {"OWN": "of the kid", "SHARED": "of the kid, too"},
        (),
    )


def test_a_missing_secret_raises_definition_missing() -> None:
    """The error names the secret."""
    with pytest.raises(DefinitionMissing, match="TOKEN"):
        restored_grant({}, secrets=["TOKEN"])
