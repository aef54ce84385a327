"""The page over a server with many agents at work: frames a second while the reader scrolls, first paint, bytes.

Chromium draws by software here, on the same processors as the server, so that the figures are those of a bad case.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from typing import TYPE_CHECKING, Any

from benchmarks.cost import Figures
from benchmarks.machine import ROOT

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

SECONDS = 5
#: Scroll a line and a half a frame, and return the times of the frames.
_SCROLL = """async (seconds) => {
  const grid = document.querySelector('[role=treegrid]'), end = grid.scrollHeight - grid.clientHeight, times = [];
  const start = performance.now();
  await new Promise((resolve) => {
    const frame = (now) => {
      times.push(now);
      grid.scrollTop = (times.length * 45) % end;
      if (now - start < seconds * 1000) requestAnimationFrame(frame);
      else resolve();
    };
    requestAnimationFrame(frame);
  });
  const gaps = times.slice(1).map((each, index) => each - times[index]).sort((a, b) => a - b);
  return {frames: gaps.length / (times.at(-1) - times[0]) * 1000, p99: gaps[Math.floor(gaps.length * 0.99)]};
}"""
_LOADED = """() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0].startTime;
  const scripts = performance.getEntriesByType('resource').filter((each) => each.name.endsWith('.mjs'));
  const sum = (list, size = 'decodedBodySize') => list.reduce((total, each) => total + each[size], 0) / 1000;
  const drawn = performance.getEntriesByName('drawn')[0].startTime;
  const first = sum(scripts.filter((each) => each.startTime < drawn));
  return {paint, drawn, first, all: sum(scripts), sent: sum(scripts, 'encodedBodySize')};
}"""


async def measure(agents: int = 10_000, events_per_s: int = 2_000, seconds: float = SECONDS) -> Figures:
    """Return the figures of one page that shows all agents, scrolled for that time."""
    with tempfile.TemporaryDirectory(prefix="ramet-b-") as folder:
        server = await _start("-m", "benchmarks.crowded_server", folder, str(agents), str(events_per_s))
        try:
            await _line(server)
            page_server = await _start("-m", "ramet", "ui", "--no-open", "--dir", folder)
            try:
                link = next(each for each in (await _line(page_server)).split() if each.startswith("http://"))
                return await _look(link, server, agents, seconds)
            finally:
                page_server.terminate()
                await page_server.wait()
        finally:
            server.kill()
            await server.wait()


async def _look(link: str, server: Process, agents: int, seconds: float) -> Figures:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            chromium_sandbox=os.geteuid() != 0,
            args=["--disable-dev-shm-usage"],
        )
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(link)
        await page.get_by_text(f"{agents + 1:,} runs").wait_for(timeout=120_000)
        rows_ms = await page.evaluate("performance.now()")
        before, began = await _count(server), asyncio.get_running_loop().time()
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        used_s = await _main_thread_s(devtools)
        scrolled: dict[str, Any] = await page.evaluate(_SCROLL, seconds)
        used_s = await _main_thread_s(devtools) - used_s
        rate = (await _count(server) - before) / (asyncio.get_running_loop().time() - began)
        loaded: dict[str, Any] = await page.evaluate(_LOADED)
        await browser.close()
    return {
        "frames_per_s": scrolled["frames"],
        "frame_p99_ms": scrolled["p99"],
        "frame_cpu_ms": used_s * 1000 / (scrolled["frames"] * seconds),
        "events_per_s": rate,
        "paint_ms": loaded["paint"],
        "drawn_ms": loaded["drawn"],
        "rows_ms": rows_ms,
        "first_kb": loaded["first"],
        "all_kb": loaded["all"],
        "sent_kb": loaded["sent"],
    }


async def _main_thread_s(devtools: CDPSession) -> float:
    """Return the processor time that the page's main thread has used."""
    metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


async def _start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdin=PIPE, stdout=PIPE)


async def _line(process: Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line, "the process has ended"
    return line


async def _count(server: Process) -> int:
    assert server.stdin is not None
    server.stdin.write(b"\n")
    return int(await _line(server))
