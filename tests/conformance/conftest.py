"""What the suites need before their first test begins."""

from __future__ import annotations

import pytest

from tests.support import postgres


@pytest.fixture(scope="session", autouse=True)
def server_of_the_stores(request: pytest.FixtureRequest) -> None:
    """PostgreSQL, if one of the tests that will run needs it."""
    postgres.start_if_used(request)
