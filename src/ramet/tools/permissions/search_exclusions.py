"""Exclude files from a search if a permission rule for `Read` covers them."""

from __future__ import annotations

from collections.abc import Callable

from ramet.core.policy.permissions import Permissions
from ramet.core.tool_names import READING_TOOLS
from ramet.tools.permissions.path_rules import ANY_CHILD, bind
from ramet.tools.permissions.worktree_copies import Checkouts


def hidden_from_search(permissions: Permissions, searched: str, cwd: str) -> Callable[[str], bool] | None:
    """Return a function that tells whether to exclude a file, by its absolute name; None if no file is excluded.

    A rule of `ask` that covers the searched folder itself was answered before the search began.
    """
    checkouts = Checkouts()
    rules = [
        bind(rule, cwd, checkouts)
        for rule in permissions.rules
        if rule.effect != "allow" and rule.specifier is not None and rule.tool in READING_TOOLS
    ]
    folder = (searched, f"{searched.rstrip('/')}/{ANY_CHILD}")
    hiding_rules = [each for each in rules if each.effect == "deny" or not each.fits(folder)]
    if not hiding_rules:
        return None
    return lambda name: any(each.fits((name,)) for each in hiding_rules)
