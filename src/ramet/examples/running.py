"""Shared code of the examples: the command line, a server in a temporary folder, bundles, and turns."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import pathlib
import signal
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

import ramet
from ramet.core.errors import InvalidValue, RametError, Unknown
from ramet.services.client.client import Client
from ramet.services.client.errors import error_of
from ramet.services.config.build import server_of
from ramet.services.config.load import Config, load
from ramet.services.config.validators import KUBERNETES
from ramet.services.contract import CreatedTeam, SpawnedAgent

BUNDLES = pathlib.Path(__file__).with_name("bundles")
#: The model for each variable with a key. `LLM_API_KEY` may hold a key of either provider, and takes precedence.
MODELS = {"ANTHROPIC_API_KEY": "anthropic:claude-sonnet-5-5", "OPENAI_API_KEY": "openai:gpt-5.4"}


def main(name: str, description: str, example: Callable[[Config], Coroutine[Any, Any, None]]) -> int:
    """Run an example with its command line. An error is one line; the status is 2 for an error of the caller."""
    parser = argparse.ArgumentParser(prog=name, description=description.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--backend", metavar="local|bwrap", help="default: the backend of FILE, else bwrap")
    parser.add_argument(
        "--config",
        type=pathlib.Path,
        metavar="FILE",
        help="a settings file (ramet.yaml), for example for pods in a cluster: see docs/guides/kubernetes.md",
    )
    options = parser.parse_args()
    try:
        config = load(options.config, os.environ, {"backend": options.backend})
        if config.log_level:
            ramet.setup_logging(structured=config.log_format == "json", level=config.log_level)
            if config.log_level == "INFO":
                logging.getLogger("httpx2").setLevel(logging.WARNING)
        else:  # An error that ends an example is raised, and reported once.
            logging.getLogger("ramet").setLevel(logging.ERROR)
        asyncio.run(_run_interruptible(example, config))
    except RametError as problem:
        print(f"{name}: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2 if isinstance(problem, InvalidValue | Unknown) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except BrokenPipeError:  # the output was closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


async def _run_interruptible(example: Callable[[Config], Coroutine[Any, Any, None]], config: Config) -> None:
    """Run an example. SIGTERM and SIGHUP cancel it, like Ctrl-C, so that no objects remain in a cluster.

    They do so even if Ctrl-C is ignored, as in the background of a script. A signal that `nohup` ignores stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, task.cancel)
    await example(config)


@asynccontextmanager
async def example_client(config: Config) -> AsyncIterator[Client]:
    """Yield a client of a server with a temporary folder. At the end both are removed."""
    if config.backend == KUBERNETES:
        print(
            f"pods: in namespace {config.namespace or 'default'}; "
            "their image is pushed first, if the registry does not have it",
            flush=True,
        )
    with tempfile.TemporaryDirectory(prefix="ramet-") as folder:
        config = replace(config, working_dir=pathlib.Path(folder), listen=None, token=None, store=None, teams={})
        async with server_of(config, os.environ) as server, ramet.connect(server.listen_address) as client:
            yield client


@asynccontextmanager
async def reserved_team(client: Client, resources: Mapping[str, float], name: str) -> AsyncIterator[CreatedTeam]:
    """Yield a new team, and delete it at the end, also after an error: it has objects in a cluster."""
    created = await client.create_team(resources, name=name)
    try:
        yield created
    finally:
        await client.delete_team(created.team.id, key=created.key)


def real_model() -> str:
    """Return the model for which there is a key; empty if there is none."""
    if key := os.environ.get("LLM_API_KEY", "").strip():
        name = "ANTHROPIC_API_KEY" if key.startswith("sk-ant-") else "OPENAI_API_KEY"
        os.environ[name] = key
        return MODELS[name]
    return next((model for name, model in MODELS.items() if os.environ.get(name, "").strip()), "")


async def image_of(client: Client, bundle: str) -> str:
    """Create an image from a bundle of the examples, and return its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(BUNDLES / bundle, arcname=".", filter=_no_caches)
    bundle_info = await client.upload_bundle(archive.getvalue())
    job = await client.create_image([bundle_info.id])
    while job.state in ("queued", "running"):
        await asyncio.sleep(0.05)
        job = await client.job(job.id)
    if job.error is not None:
        raise RametError(f"the image of the bundle {bundle} cannot be created: {job.error.message}")
    return job.image


async def ask(client: Client, agent: SpawnedAgent, text: str, show: Callable[[str], None]) -> str:
    """Run one turn of an agent with the format "openai", and return its answer. `show` gets each piece as it arrives.

    Raises the error with which the turn failed.
    """
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    pieces = []
    async for chunk in client.turn(agent.agent.id, body, key=agent.nonce):
        if chunk.kind == "error":
            raise error_of(chunk.body, 0)
        if chunk.kind == "chunk":
            for choice in json.loads(chunk.body)["choices"]:
                if piece := choice["delta"].get("content"):
                    pieces.append(piece)
                    show(piece)
    return "".join(pieces)


def _no_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
