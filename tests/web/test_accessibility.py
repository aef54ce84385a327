"""The page under axe-core, which looks for faults in accessibility, in light and in dark colours."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING, Any

import pytest

from tests.web.test_hostile_answers import shown

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

VIEWS = {"/": "__proto__", "/run/r1": "last", "/run/r1/events": "9 events", "/inbox": "rm -rf /srv"}
FOUND = """async () => {
  const {violations} = await axe.run({resultTypes: ["violations"]});
  return violations.filter(({impact}) => impact === "serious" || impact === "critical")
    .map(({id, nodes}) => `${id}: ${nodes.map((each) => each.html).join(" ").slice(0, 300)}`);
}"""


async def _faults(page: Page) -> list[Any]:
    """Return the serious and critical faults of what the page shows, in both colour schemes."""
    faults = list[Any]()
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        faults += [(scheme, page.url.partition("#")[2], each) for each in await page.evaluate(FOUND)]
    return faults


async def test_axe_finds_nothing_serious_in_table_run_inbox_and_dialog(context: BrowserContext) -> None:
    """Names, roles, contrast and focus of what people use most are in order, at the width of a telephone as well."""
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: pip install ramet[ui-test]")
    axe = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    async with shown(context) as (server, _):
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await page.goto(server.new_link())
        await page.get_by_role("gridcell", name="__proto__").wait_for()  # Only then it listens to its address.
        await page.evaluate(axe)
        faults = list[Any]()
        for view, text in VIEWS.items():
            await page.evaluate("(view) => { location.hash = view; }", view)
            await page.get_by_text(text).first.wait_for()
            faults += await _faults(page)
        await page.set_viewport_size({"width": 380, "height": 800})
        await page.evaluate("location.hash = '/'")
        await page.get_by_role("treegrid").press("s")
        await page.get_by_role("dialog").get_by_text("This ends").wait_for()
        assert faults + await _faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
