"""Session fixture that starts the server of the suites before their first test."""

from __future__ import annotations

import pytest

from tests.support import postgres


@pytest.fixture(scope="session", autouse=True)
def server_of_the_stores(request: pytest.FixtureRequest) -> None:
    """Start PostgreSQL if one of the selected tests needs it."""
    postgres.start_if_used(request)
