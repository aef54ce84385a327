"""`ramet images`: build and push the images that pods start from."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from ramet.cli.settings_file import settings_file
from ramet.core.errors import InvalidValue
from ramet.services.config.load import Config, load
from ramet.services.packaging.oci.push import Progress
from ramet.services.packaging.oci.registries import open_registries, open_registry
from ramet.services.packaging.runtime_image.base import push_base
from ramet.services.packaging.runtime_image.build import runtime_image


def images(options: Namespace) -> int:
    """Push an image, and print its name."""
    file = settings_file(options.config, Path())
    config = load(file, os.environ, {"registry_url": options.registry, "base_image": getattr(options, "base", None)})
    printer = ProgressPrinter()
    try:
        image = asyncio.run(
            _base(config, options, printer) if options.verb == "base" else _runtime(config, options, printer)
        )
    finally:
        printer.end()
    print(image)
    return 0


async def _base(config: Config, options: Namespace, printer: ProgressPrinter) -> str:
    async with open_registry(_required_setting(config, "registry_url"), **_login(config)) as registry:
        return await push_base(registry, Path(options.tar), options.to, on_progress=printer.show)


async def _runtime(config: Config, options: Namespace, printer: ProgressPrinter) -> str:
    base = _required_setting(config, "base_image")
    async with open_registries(_required_setting(config, "registry_url"), base, **_login(config)) as at:
        image = await runtime_image(
            at.registry, at.base, options.kind, into=options.into or "", source=at.source, on_progress=printer.show
        )
        return image.reference


_ACCEPTED = {
    "base_image": "--base IMAGE or a setting: an image with Python",
    "registry_url": "--registry URL or a setting: the registry to push to",
}


def _required_setting(config: Config, name: str) -> str:
    value: str | None = getattr(config, name)
    if not value:
        raise InvalidValue(name, value, _ACCEPTED[name])
    return value


def _login(config: Config) -> dict[str, Any]:
    password = config.registry_password.read(os.environ) if config.registry_password else ""
    return {"username": config.registry_username or "", "password": password}


class ProgressPrinter:
    """A progress display on stderr: live on a terminal, otherwise one line per step."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def show(self, progress: Progress) -> None:
        """Show a step, or the progress within one."""
        line = progress.step
        if self._live and progress.total:
            line += f" {progress.done / 1e6:.1f} of {progress.total / 1e6:.1f} MB"
        if line != self._last:
            self._last = line
            print(
                f"\r\x1b[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True
            )

    def end(self) -> None:
        """Clear the progress line."""
        if self._live and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
