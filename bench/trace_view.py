"""How soon does the page of a large trace show something, how large is it, and does it stall?

`segstore trace view` makes the page of a trace with as many records as asked for. Chromium, without a window, opens it
from the file system and gets real input: the wheel zooms in and out, the mouse drags, the lanes are scrolled, a filter
is typed; then a record is opened. Measured in the page: when the first paint and the whole timeline were there, since
the navigation; and the longest time between two frames while that goes on, which is what a user sees as a stall.
Payloads repeat in one trace, are random, so not compressible, in another one, and in a third one there are a tenth as
many connections as records.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.traffic import records
from segstore.traces import write_trace
from segstore.view import write_page
from segstore.wire import AppendBlock, decode, encode
from segstore.wire.trace import Metadata, Record, RecordKind
from tests.server.control_api.browser import Browser

__all__ = ["run"]

RECORDS: Final = 1_000_000
PAYLOAD_BYTES: Final = 100
SIZE_GOAL: Final = 1 / 3
PAINT_GOAL_S: Final = 2.0
STALL_GOAL_MS: Final = 100.0
CONNECTED: Final = "many connections"
_APPEND_BLOCK: Final = AppendBlock.code.to_bytes(4, "big")
_FRAMES: Final = """window.gaps = []; let last = 0;
requestAnimationFrame(function frame(now) {
  if (last) gaps.push(now - last);
  last = now;
  requestAnimationFrame(frame);
})"""
_SHOWN: Final = "performance.getEntriesByName('ready')[0]?.startTime"
_TYPED: Final = 'latency > 20us and segment ~ "*/1*"'


class Seen(NamedTuple):
    """What one look at a page showed: seconds until the first paint and the timeline, longest stalls in ms."""

    paint_s: float
    shown_s: float
    move_ms: float
    filter_ms: float
    open_ms: float


def run(effort: Effort, count: int = RECORDS) -> Report:
    """count: records of a trace."""
    report = Report(
        "The page of a trace", question="How soon does the page of a large trace show its timeline, and does it stall?"
    )
    count = round(count * effort.scale)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        connected = records(payload=PAYLOAD_BYTES, connections=count // 10, writers=count // 10)
        traces = {"repeated": records(payload=PAYLOAD_BYTES), "random": _random_payloads(), CONNECTED: connected}
        for name, traffic in traces.items():
            trace, page = Path(folder, f"{name}.wtrace"), Path(folder, f"{name}.html")
            write_trace(trace, itertools.islice(traffic, count), lambda: Metadata(17, "bench"))
            start = time.process_time()
            write_page(page, [trace])
            made_s, share = time.process_time() - start, page.stat().st_size / trace.stat().st_size
            looks = [asyncio.run(_look(page)) for _ in range(3)]
            seen = Seen(*(statistics.median(each) for each in zip(*looks, strict=True)))
            stall = max(seen.move_ms, seen.filter_ms, seen.open_ms)
            about = name if name == CONNECTED else f"payloads that are {name}"
            report.figures += [
                Figure(f"{about}: size of the page, of the trace", share, SIZE_GOAL, at_most=True),
                Figure(f"{about}: time to the timeline", seen.shown_s, PAINT_GOAL_S, True, "s"),
                Figure(f"{about}: longest stall", stall, STALL_GOAL_MS, True, "ms"),
            ]
            sizes = (f"{trace.stat().st_size / 1e6:.0f}", f"{page.stat().st_size / 1e6:.1f}", f"{made_s:.1f}")
            rows.append((name, *sizes, *(f"{each:.2f}" for each in seen[:2]), *(f"{each:.0f}" for each in seen[2:])))
    heading = ("payloads", "trace, MB", "page, MB", "CPU time to make it, s", "first paint, s", "timeline, s",
               "stall while zooming, dragging, scrolling, ms", "stall while filtering, ms",
               "stall while opening a record, ms")  # fmt: skip
    report.tables.append((heading, rows))
    slowest = max(float(row[5]) for row in rows)
    report.says = f"The timeline of {count:,} records appears {slowest:.1f} s after the page is opened."
    report.notes.append(
        f"{count:,} records, payloads of {PAYLOAD_BYTES} bytes at most; 8 connections with 64 writers, or, where these "
        f"are many, {count // 10:,} connections with a writer each"
    )
    report.notes.append("medians of three looks, each in a new browser; a stall is the longest time between two frames")
    return report


def _random_payloads() -> Iterator[Record]:
    rng = random.Random(5)
    for record in records(payload=PAYLOAD_BYTES):
        if record.kind is RecordKind.FRAME and record.data.startswith(_APPEND_BLOCK):
            block = cast("AppendBlock", decode(record.data))
            record = record._replace(data=encode(AppendBlock(block.writer_id, rng.randbytes(len(block.data)))))
        yield record


async def _look(page: Path) -> Seen:
    with tempfile.TemporaryDirectory() as profile:
        async with Browser(Path(profile)) as browser:
            await browser.open(page.as_uri())
            shown_s = await browser.until(_SHOWN) / 1e3
            paint_s = await browser.get("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3
            await browser.get(_FRAMES)
            move_ms = await _longest(browser, _move(browser))
            filter_ms = await _longest(browser, _filter(browser))
            open_ms = await _longest(browser, _open(browser))
    return Seen(paint_s, shown_s, move_ms, filter_ms, open_ms)


async def _longest(browser: Browser, doing: Any) -> float:
    """The longest time between two frames while something is done."""
    await browser.get("new Promise(requestAnimationFrame).then(() => gaps.length = 0)")
    await doing
    return float(await browser.get("new Promise(requestAnimationFrame).then(() => Math.max(...gaps))"))


async def _move(browser: Browser) -> None:
    x, y = await browser.get("(({x, y}) => [x + 500, y + 60])(page.views[0].canvas.getBoundingClientRect())")
    for step in range(60):
        delta = -120 if step < 30 else 120
        await browser.do("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)
        if step % 10 == 5:
            for kind, shift in (("mousePressed", 0), ("mouseMoved", 150), ("mouseReleased", 150)):
                at = {"x": x + shift, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
                await browser.do("Input.dispatchMouseEvent", type=kind, **at)
            await browser.get(f"page.views[0].timeline.scroller.scrollTop = {step * 4}")


async def _filter(browser: Browser) -> None:
    await browser.type("[name=filter]", _TYPED)
    await browser.until("byId('filter-said').textContent.includes('match')")


async def _open(browser: Browser) -> None:
    """Opens a record in the middle, and a later one."""
    count = await browser.get("page.views[0].trace.count")
    for at in (count // 2, count * 9 // 10):
        await browser.get(f"page.views[0].open({at})")
        await browser.until(f"document.querySelector('#drawer-title')?.textContent.startsWith('{at + 1}: ')")


if __name__ == "__main__":
    sys.exit(main("trace_view", run, count=RECORDS))
