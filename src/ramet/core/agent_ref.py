"""The handle of an agent that another agent created: its location and its version."""

from __future__ import annotations

import re
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name

_HASH = re.compile(r"[0-9a-f]{64}\Z")


class AgentRef(NamedTuple):
    """The handle of an agent that another agent created.

    A handle resolves to exactly that agent in exactly that version, or to an error.
    """

    root: str  #: name of the agent at the top, which is declared in code
    root_version: str  #: in a handle below the root, the root's `Recipe.identity`: what the root may use can change
    path: tuple[str, ...]  #: local ids from below the root down to the agent; empty for the root itself
    version: str  #: version of the recipe; for the root equal to `root_version`

    @property
    def local_id(self) -> str:
        """The name of the agent in the registry of its creator."""
        return self.path[-1] if self.path else self.root

    @property
    def namespace(self) -> str:
        """The namespace of the agent's state: `architect/math_solver`."""
        return "/".join((self.root, *self.path))

    def __str__(self) -> str:
        tail = f"@{self.version}" if self.path else ""
        return "/".join((f"{self.root}@{self.root_version}", *self.path)) + tail

    @classmethod
    def parse(cls, text: object) -> AgentRef:
        """Parse a handle that `str` wrote.

        Raises InvalidValue if `text` is not a valid handle.
        """
        accepted = "root@version, or root@version/name/…@version, as str() of a handle gives it"
        if not isinstance(text, str) or len(text) > 64 * 200:
            raise InvalidValue("handle", text, accepted)
        first, *local_ids = text.split("/")
        root, _, root_version = first.partition("@")
        version = root_version
        if local_ids:
            local_ids[-1], _, version = local_ids[-1].partition("@")
        if not (_HASH.match(root_version) and _HASH.match(version)):
            raise InvalidValue("handle", text, accepted)
        for name in (root, *local_ids):
            checked_name("handle", name)
        return cls(root, root_version, tuple(local_ids), version)
