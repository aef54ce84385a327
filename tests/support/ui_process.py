"""`ramet ui` as its own process, and the link that it prints."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from tests.support.serve_process import ROOT


@dataclass
class Ui:
    """A `ramet ui` process with the lines that it has printed."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def next_line(self) -> str:
        """Return its next line, which must come."""
        assert self.process.stdout is not None
        self.lines.append((await self.process.stdout.readline()).decode().rstrip("\n"))
        assert self.lines[-1], "ramet ui has ended"
        return self.lines[-1]

    @property
    def link(self) -> str:
        """The newest link that it has printed."""
        return next(found[0] for line in reversed(self.lines) if (found := re.search(r"http://\S+/ui/#\S+", line)))

    async def print_link(self) -> None:
        """Let it print another link."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        assert "another link" in await self.next_line()

    @property
    def origin(self) -> str:
        return "http://" + urlsplit(self.link).netloc

    @cached_property
    def token(self) -> str:
        """The token, for which the newest link is used up."""
        headers = {"authorization": f"Bearer {self.link.partition('#code=')[2]}"}
        request = urllib.request.Request(f"{self.origin}/ui/session", headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            token: str = json.load(answer)["token"]
            return token


@asynccontextmanager
async def ui(*options: str, **env: str) -> AsyncIterator[Ui]:
    """Run `ramet ui` with these options; yield it once it has printed its link."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramet", "ui", "--no-open", *options,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip
    try:
        started = Ui(process)
        await started.next_line()
        yield started
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
