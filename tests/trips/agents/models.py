"""A pydantic model that an agent in a sandbox returns."""

from __future__ import annotations

import pydantic


class Answer(pydantic.BaseModel):
    """A text, and how sure it is."""

    text: str
    score: float
