"""A real browser shows the page: every plot is drawn, nothing is complained about, no name becomes an element."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from segstore.pipeline.report.page import page
from segstore.pipeline.report.plots import plots
from tests.browser import Chromium
from tests.pipeline.report.test_page import HOSTILE, Elements, facts, table

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(600)]

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--virtual-time-budget=10000", "--window-size=1250,4000", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip

HIDDEN = """each => {
    const legend = each.querySelector(".legend"), area = each.querySelector(".nsewdrag");
    return legend && legend.getBoundingClientRect().bottom > area.getBoundingClientRect().top + 1;
}"""
"""Whether the legend of a plot covers its lines."""
SETTLED = """new Promise(done => {
    let frames = 40;
    const next = () => --frames ? requestAnimationFrame(next) : done();
    next();
})"""
"""Resolved when the page has been shown for some frames: Plotly moves legends after it has drawn."""


def looked_at(made: str, folder: Path, *more: str) -> tuple[str, list[str]]:
    """The page as the browser has it after a while, and what stands on its console."""
    where = folder / "report.html"
    where.write_text(made, "utf-8")
    run = subprocess.run(
        ["chromium", *FLAGS, f"--user-data-dir={folder / 'profile'}", *more, where.as_uri()],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]


def drawn(dom: str) -> set[str]:
    """The plots in which plotly has drawn something."""
    found = set()
    for name, inside in re.findall(r'<div class="plot[^"]*" id="plot-([a-z-]+)"(.*?)</figure>', dom, re.DOTALL):
        if 'class="main-svg"' in inside and re.search(r'class="(point|lines|js-line)|<path class="[^"]*" d="M', inside):
            found.add(name)
    return found


def test_every_plot_is_drawn_and_the_console_is_empty(tmp_path: Path) -> None:
    dom, console = looked_at(page(facts(HOSTILE)), tmp_path, "--dump-dom")
    assert console == []
    assert drawn(dom) == {plot.name for plot in plots(facts())}
    elements = Elements(dom)
    assert elements.named("img") == []
    assert all("onerror" not in attributes for _, attributes in elements.tags)


async def test_the_page_is_dark_where_dark_is_preferred_and_narrow_where_the_window_is(
    tmp_path: Path, chromium: Chromium
) -> None:
    where = tmp_path / "report.html"
    commands = [{"command": f"A_LONG_COMMAND_{at}", "least_ns": 9, "width_ns": 1, "times": 3} for at in range(9)]
    where.write_text(page(facts("a-very-long-name/" * 20, latency_histogram=table(*commands))), "utf-8")
    async with chromium.page() as browser:
        await browser.do("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        await browser.open(where.as_uri())
        await browser.until("document.querySelectorAll('.main-svg').length > 5")
        assert await browser.get("document.documentElement.scrollWidth") == 400
        assert await browser.get(f"[...document.querySelectorAll('.plot')].filter({HIDDEN}).map(each => each.id)") == []
        papers = "[...document.querySelectorAll('.plot .bg, .plot')].map(each => getComputedStyle(each).fill).join()"
        light = await browser.get("getComputedStyle(document.body).backgroundColor"), await browser.get(papers)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await browser.do("Emulation.setEmulatedMedia", features=dark)
        await browser.until(f"getComputedStyle(document.body).backgroundColor !== {light[0]!r}")
        await browser.until(f"{papers} !== {light[1]!r}")
        colours = "['color', 'backgroundColor'].map(each => getComputedStyle(document.querySelector('section'))[each])"
        text, box = (sum(map(int, re.findall(r"\d+", each))) for each in await browser.get(colours))
        assert text > 600 > 200 > box
        assert browser.complaints == []


async def test_no_legend_covers_a_plot_when_the_window_has_been_made_wider(tmp_path: Path, chromium: Chromium) -> None:
    where = tmp_path / "report.html"
    where.write_text(page(facts()), "utf-8")
    async with chromium.page() as browser:
        await browser.look(400)
        await browser.open(where.as_uri())
        await browser.until("document.querySelectorAll('.main-svg').length > 5")
        await browser.get(SETTLED)
        await browser.look(1280)
        plots = "[...document.querySelectorAll('.plot')]"
        await browser.until(f"{plots}.every(each => each.querySelector('.main-svg').clientWidth > 600)")
        await browser.get(SETTLED)
        assert await browser.get(f"{plots}.filter({HIDDEN}).map(each => each.id)") == []


@pytest.mark.needs("npm's package axe-core")
async def test_axe_finds_nothing_on_the_page(tmp_path: Path, chromium: Chromium) -> None:
    where = tmp_path / "report.html"
    where.write_text(page(facts()), "utf-8")
    async with chromium.page() as browser:
        await browser.open(where.as_uri())
        await browser.until("document.querySelectorAll('.main-svg').length > 5")
        for width, dark in ((1280, False), (400, True)):
            await browser.look(width, dark=dark)
            assert await browser.violations() == []
