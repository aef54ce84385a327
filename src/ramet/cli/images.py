"""`ramet images`: images that pods start from, made and pushed from here."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from pathlib import Path

from ramet.core.errors import InvalidValue
from ramet.services.config.reading import DEFAULT_FILE, Config, load
from ramet.services.packaging.publishing import Progress
from ramet.services.packaging.registries import opened
from ramet.services.packaging.runtime_image import RuntimeImage, runtime_image


def images(options: Namespace) -> int:
    """Push a runtime image, and print its name."""
    usual = Path(DEFAULT_FILE)
    file = Path(options.config) if options.config is not None else usual if usual.exists() else None
    config = load(file, os.environ, {"base_image": options.base, "registry_url": options.registry})
    telling = Telling()
    try:
        made = asyncio.run(_made(config, options, telling))
    finally:
        telling.end()
    print(made.reference)
    return 0


async def _made(config: Config, options: Namespace, telling: Telling) -> RuntimeImage:
    for name, value, accepted in (
        ("base_image", config.base_image, "--base IMAGE or a setting: an image with Python"),
        ("registry_url", config.registry_url, "--registry URL or a setting: where to push to"),
    ):
        if not value:
            raise InvalidValue(name, value, accepted)
    password = config.registry_password.read(os.environ) if config.registry_password else ""
    async with opened(
        str(config.registry_url),
        str(config.base_image),
        username=config.registry_username or "",
        password=password,
    ) as at:
        return await runtime_image(
            at.registry, at.base, options.kind, into=options.into or "", source=at.source, told=telling.tell
        )


class Telling:
    """Says on stderr what goes on: how far, on a terminal; else each step once."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def tell(self, progress: Progress) -> None:
        """One step, or a part of one."""
        line = progress.step
        if self._live and progress.total:
            line += f" {progress.done / 1e6:.1f} of {progress.total / 1e6:.1f} MB"
        if line != self._last:
            self._last = line
            print(
                f"\r\x1b[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True
            )

    def end(self) -> None:
        """Leave the line."""
        if self._live and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
