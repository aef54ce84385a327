"""Where a run's state is: below its owner's place in a tree that a client began, also where names are long."""

from __future__ import annotations

import pytest

from ramet.core.agentref import AgentRef
from ramet.host.dynamic.places import Standing, branch_below, branch_of, place_of, place_of_owner, prefix_below

OWNER = "agent-0123456789abcdef"


def standing(name: str, parent: Standing | None = None, *, owner: str = "", **more: object) -> Standing:
    """A run of that name."""
    fields = {"ref": None, "is_branch": False, "is_function": False, "is_sandboxed": False, **more}
    return Standing(id=f"run-{name}", name=name, parent=parent, owner=owner, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("owner", "above"), [("", ""), (OWNER, f"{place_of_owner(OWNER)}/")])
def test_all_places_of_a_tree_lie_below_its_owner(owner: str, above: str) -> None:
    """By a name, by a handle, of a function named in a sandbox, and of a delegate; a program's are as they are."""
    root = standing("lead", owner=owner, is_sandboxed=True)
    handle = AgentRef("lead", "0" * 64, ("solver",), "1" * 64)
    assert place_of(root) == f"{above}lead"
    assert place_of(standing("x", root, owner=owner, ref=handle)) == f"{above}lead/solver"
    assert place_of(standing("thief", root, owner=owner, is_function=True)) == f"{above}lead/thief"
    assert place_of(standing("delegate", root, owner=owner, is_branch=True)) == f"{above}lead"


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_branches_of_delegates_lie_below_the_owner_however_long_their_names_are(levels: int) -> None:
    """Whoever removes all that begins with the owner's place removes them, and nobody else's."""
    run = standing("n" * 64, owner=OWNER)
    for _ in range(levels):
        child = standing("m" * 64, run, owner=OWNER, is_sandboxed=True, is_branch=True)
        assert branch_of(child) == branch_below(run, child.id)
        run = child
        assert branch_of(run).startswith(f"{place_of_owner(OWNER)}/")
        assert prefix_below(run).startswith(f"{place_of_owner(OWNER)}/")
        assert len(branch_of(run)) <= 200
