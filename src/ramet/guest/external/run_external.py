"""The function of an agent that is a program of another maker, as its sandbox calls it."""

from __future__ import annotations

from msgspec import structs

from ramet.guest.external.run_program import run_program
from ramet.wire.external_program import ProgramStart


async def run_external(start: ProgramStart, prompt: str, resumes: bool) -> str:
    """Run a program for one turn, and return its reply."""
    return await run_program(structs.replace(start, prompt=prompt, resumes=resumes))
