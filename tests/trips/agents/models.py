"""A pydantic model that an agent in a sandbox returns."""

from __future__ import annotations

import pydantic


class Answer(pydantic.BaseModel):
    """A text and its score."""

    text: str
    score: float
