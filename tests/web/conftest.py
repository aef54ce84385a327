"""A real browser for tests of the page: Debian's Chromium, one for each test process, and one context for each test.

All tests here share one event loop, in which the browser lives. An error in the page's console, an exception of its
scripts and a violation of its content security policy fail the test, unless it expects them.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.users import own_user

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

FOLDER = Path(__file__).parent
_ARGUMENTS = ("--disable-gpu", "--disable-dev-shm-usage")
#: Chromium's own sandbox needs an ordinary user. Playwright makes the folder of its profile, as its own user.
_AS_ORDINARY_USER = """\
#!/bin/sh
for each; do
  case $each in --user-data-dir=*) HOME=${{each#*=}}; chown -R {user}:{user} "$HOME";; esac
done
export HOME
exec setpriv --reuid={user} --regid={user} --clear-groups {chromium} "$@"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test of this folder in the loop of the browser."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def shared_loop() -> AsyncIterator[None]:
    """Make the loop before the first test begins, which would otherwise count as leaving it behind."""
    yield


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the program to launch, or skip the test and say what is missing."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install ramet[ui-test], or `make setup`")
    if (program := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: `make setup` installs it on Debian")
    if os.geteuid() != 0:
        return program
    wrapper = tmp_path_factory.mktemp("chromium") / "chromium"
    wrapper.write_text(_AS_ORDINARY_USER.format(user=own_user(), chromium=program))
    wrapper.chmod(stat.S_IRWXU)
    return str(wrapper)


def _can_sandbox() -> bool:
    """Return whether an ordinary user may make namespaces here, as Chromium's sandbox does."""
    user = [] if os.geteuid() != 0 else ["setpriv", f"--reuid={own_user()}", "--clear-groups"]
    return subprocess.run([*user, "unshare", "--user", "true"], capture_output=True, check=False).returncode == 0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Yield the browser of this test process."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, chromium_sandbox=_can_sandbox(), args=_ARGUMENTS
        )
        yield browser
        await browser.close()


class Problems(list[str]):
    """Complaints of the pages of a test, without those that the test expects."""

    def __init__(self) -> None:
        super().__init__()
        self._expected: list[str] = []

    def expect(self, pattern: str) -> None:
        """Let problems in which the pattern is found pass, also earlier ones."""
        self._expected.append(pattern)

    def unexpected(self) -> list[str]:
        """Return the problems that no pattern expects."""
        return [each for each in self if not any(re.search(pattern, each) for pattern in self._expected)]


@pytest.fixture
def problems() -> Problems:
    """Return the problems of the pages of this test."""
    return Problems()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser, problems: Problems) -> AsyncIterator[BrowserContext]:
    """Yield a context of its own, without cookies or storage; its problems fail the test at the end."""
    context = await browser.new_context()
    context.on("console", lambda each: problems.append(each.text) if each.type == "error" else None)
    context.on("weberror", lambda each: problems.append(str(each.error)))
    yield context
    await context.close()
    assert problems.unexpected() == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: BrowserContext) -> Page:
    """Return a new page, whose waits end after 60 s."""
    page = await context.new_page()
    page.set_default_timeout(60_000)
    return page
