"""The mark of a function that is an agent of another framework, for code that must not import that framework."""

from __future__ import annotations

from typing import Any

from ramet.core.errors import Bug


class AdoptedFunction:
    """The function of an adopted agent: asynchronous, and always in the host, because its objects are there."""

    async def __call__(self, argument: Any) -> Any:
        """Run the agent, and return its result."""
        raise Bug("a class of adopted agents defines __call__")
