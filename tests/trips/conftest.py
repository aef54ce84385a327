"""Fixtures for all trips: PostgreSQL for tests that need it, and a server with a client."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import postgres
from tests.support.empty_stores import store_address

if TYPE_CHECKING:
    from ramet.services.client.client import Client
    from tests.support.serving import EchoServer

__all__ = ["store_address"]


@pytest.fixture(scope="session", autouse=True)
def server_of_the_stores(request: pytest.FixtureRequest) -> None:
    """Start PostgreSQL if one of the tests that will run needs it."""
    postgres.start_if_used(request)


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """Return a folder with a short name, for the socket of a server."""
    from tests.support.serving import short_folder

    with short_folder() as path:
        yield path


@pytest.fixture
async def echo_server(folder: pathlib.Path) -> AsyncIterator[EchoServer]:
    """Return a server on the folder, in the event loop of the test."""
    from tests.support.serving import serving

    async with serving(folder) as server:
        yield server


@pytest.fixture
async def client(echo_server: EchoServer) -> AsyncIterator[Client]:
    """Return a client of the server that has not sent a key yet."""
    import ramet

    async with ramet.connect(echo_server.server.listen_address) as connected:
        yield connected
