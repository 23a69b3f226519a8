"""A real browser shows the page: every plot is drawn, nothing is complained about, no name becomes an element."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from segstore.pipeline.report.page import page
from segstore.pipeline.report.plots import plots
from tests.browser import Chromium
from tests.pipeline.report.test_page import HOSTILE, Elements, facts, table

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(600)]

HIDDEN = """each => {
    const legend = each.querySelector(".legend"), area = each.querySelector(".nsewdrag");
    return legend && legend.getBoundingClientRect().bottom > area.getBoundingClientRect().top + 1;
}"""
"""Whether the legend of a plot covers its lines."""


def drawn(dom: str) -> set[str]:
    """The plots in which plotly has drawn something."""
    found = set()
    for name, inside in re.findall(r'<div class="plot[^"]*" id="plot-([a-z-]+)"(.*?)</figure>', dom, re.DOTALL):
        if 'class="main-svg"' in inside and re.search(r'class="(point|lines|js-line)|<path class="[^"]*" d="M', inside):
            found.add(name)
    return found


async def test_every_plot_is_drawn_and_the_console_is_empty(tmp_path: Path, chromium: Chromium) -> None:
    where = tmp_path / "report.html"
    where.write_text(page(facts(HOSTILE)), "utf-8")
    async with chromium.page() as browser:
        await browser.open(where.as_uri())
        await browser.until("[...document.querySelectorAll('.plot')].every(each => each.querySelector('.main-svg'))")
        dom = await browser.get("document.documentElement.outerHTML")
        assert browser.complaints == []
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
