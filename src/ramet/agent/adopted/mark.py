"""The mark of a function that is an agent of another framework, for those who must not load that framework."""

from __future__ import annotations

from typing import Any

from ramet.core.errors import Bug


class Adopted:
    """The function of an adopted agent: asynchronous, and always in the host, where its objects are."""

    async def __call__(self, given: Any) -> Any:
        """Work, and return what it left."""
        raise Bug("an adopted agent does something")
