"""spawn/birth/record.py: what is on record of a birth, and a run that is made of it again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ramet.core.errors import DefinitionMissing
from ramet.core.policy.policy import Grant
from ramet.spawn.birth.record import Values, grant_of

ABOVE = Grant(env_vars={"SHARED": "of the parent"})


def granted(supplied: dict[str, str], *, above: tuple[Grant, ...] = (ABOVE,), **fields: Any) -> Any:
    """The grant again of a run at `main/kid`, with these values supplied."""
    data = msgspec.to_builtins(Grant()) | {"env_vars": ["OWN", "SHARED"], "own_env_vars": ["OWN"], "secrets": []}
    return grant_of({"grant": data | fields}, Values(path="main/kid", secrets={}, env_vars=supplied, above=above))


def test_a_value_that_is_missing_is_named_as_it_is_to_be_supplied() -> None:
    """One of a child's own is supplied for that child alone; one that it shares, or a root's, by its name."""
    assert granted({}).lacking == ("main/kid:OWN",)
    assert granted({}, above=(Grant(),)).lacking == ("main/kid:OWN", "SHARED")
    assert granted({}, above=()).lacking == ("OWN", "SHARED")


def test_values_come_from_above_or_from_who_supplies_them_for_this_run() -> None:
    """A value for the run itself wins over any other; one by its bare name is none of a child's own."""
    named = granted({"OWN": "by its name", "SHARED": "by its name"})
    special = granted({"main/kid:OWN": "of the kid", "main/kid:SHARED": "of the kid, too"})

    assert (named.grant.env_vars, named.lacking) == ({"SHARED": "of the parent"}, ("main/kid:OWN",))
    assert (special.grant.env_vars, special.lacking) == ({"OWN": "of the kid", "SHARED": "of the kid, too"}, ())


def test_a_secret_is_never_done_without() -> None:
    """By name, before anything is started."""
    with pytest.raises(DefinitionMissing, match="TOKEN"):
        granted({}, secrets=["TOKEN"])
