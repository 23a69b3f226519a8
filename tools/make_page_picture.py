"""Takes the pictures of the live page and of the page of a trace in docs/img, with chromium: `make page-picture`, or

    python -m tools.make_page_picture [FOLDER]

The live page shows a cluster of three stores to which a writer writes, with a rule of faults that cuts a connection now
and then. Further pictures show an append in detail, the panel of streams with a stream that was scaled twice, and the
panel of reader groups with a group that is behind. The page of a trace shows a fixture, with a failure opened.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import tempfile
from pathlib import Path

import segstore.client
from segstore.client import Client, ReaderGroup
from segstore.server.cluster import MockCluster
from segstore.view import write_page
from tests.browser import Chromium, Page

ROOT = Path(__file__).parent.parent
TRACE = ROOT / "fixtures" / "traces" / "java.jsonl"
FAILURE = 165
"""The record of the trace that is opened."""
SCALES = (([0], [(0.0, 0.125), (0.125, 0.25)]), ([2, 3], [(0.5, 1.0)]))
"""The segments of `shop/orders` that each scale seals, and the key ranges of those that it creates."""


async def write(pravega: Client) -> None:
    """Some load, until it is cancelled."""
    async with pravega.event_writer("shop", "orders") as writer:
        number = 0
        while True:
            await writer.write(
                b'{"order": %d, "table": %d}' % (number, number % 10), routing_key=f"table {number % 10}"
            )
            number += 1


async def read(group: ReaderGroup, name: str, events: int) -> None:
    """Reads so many events of a group and stays online, until it is cancelled."""
    async with group.reader(name) as reader:
        for _ in range(events):
            await anext(reader)
        await asyncio.Event().wait()


async def shoot(page: Page, where: Path, width: int, height: int, panel: str = "") -> None:
    """Takes the picture of the top of a page, or of one of its panels as far as the height allows."""
    whole = await page.get("document.documentElement.scrollHeight") if panel else height
    size = {"width": width, "height": whole, "deviceScaleFactor": 1, "mobile": False}
    await page.do("Emulation.setDeviceMetricsOverride", **size)
    await page.get("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = [0, 0, width, height]
    if panel:
        around = f"document.querySelector('#{panel}').getBoundingClientRect()"
        top, high = await page.get(f"(({{y, height}}) => [y, height])({around})")
        box = [0, top - 10, width, min(high + 20, height)]
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
    shot = await page.do("Page.captureScreenshot", clip=clip)
    await asyncio.to_thread(where.write_bytes, base64.b64decode(shot["data"]))
    print(where)


async def take_trace_page(page: Page, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as files:
        written = Path(files, "trace.html")
        write_page(written, [TRACE])
        await page.open(f"{written.as_uri()}#record={FAILURE}")
        await page.until("!document.querySelector('#drawer').hidden")
        await shoot(page, folder / "trace-page.png", 1500, 1180)


async def choose(page: Page, panel: str, name: str) -> None:
    """Opens a panel, closes the others, which would move it, and chooses a name in its list."""
    await page.get(f"for (const each of main.children) each.open = each.id === '{panel}'")
    await page.click(f"#{panel} tbody", name)


async def take_requests(page: Page, folder: Path, url: str) -> None:
    await page.open(f"{url}/")
    await page.click("#recordings", "Start recording")
    await page.until("document.querySelectorAll('#recordings tbody tr').length === 1")
    await page.until("document.querySelectorAll('#requests tbody tr').length > 20")
    await page.until("Number(countedNow('segments')) > 0 && document.querySelector('#said').textContent === ''")
    await shoot(page, folder / "live-page.png", 1360, 1560)
    await page.fill("#requests input[name=filter]", "type = APPEND_BLOCK_END and latency > 0")
    await page.click("#requests", "Filter")
    await page.until("document.querySelectorAll('#requests tbody tr').length > 0 && match")
    await page.get("document.querySelector('#requests tbody .link').click()")
    await page.until("!!document.querySelector('#drawer .timeline')")
    await shoot(page, folder / "live-page-request.png", 1360, 1100)
    await page.press("Escape")


async def take_contents(page: Page, folder: Path, pravega: Client) -> None:
    for sealed, ranges in SCALES:
        await pravega.controller.scale("shop", "orders", sealed, ranges, wait_ms=10_000)
    transactions = pravega.transaction_writer("shop", "orders")
    group = pravega.reader_group("shop", "billing", streams=["orders"], refresh_ms=100)
    async with transactions, transactions.begin() as transaction, group, asyncio.TaskGroup() as reading:
        await transaction.write(b'{"order": 1}', routing_key="table 1")
        readers = [reading.create_task(read(group, f"till {number}", 400 * number)) for number in (1, 2)]
        await choose(page, "streams", "orders")
        await page.until("document.querySelectorAll('#streams svg rect').length > 5")
        await shoot(page, folder / "live-page-streams.png", 1100, 1400, "streams")
        await choose(page, "groups", "billing")
        await page.until("/till 1[^]*till 2/.test(document.querySelector('#groups .detail').innerText)")
        await shoot(page, folder / "live-page-groups.png", 1100, 900, "groups")
        for reader in readers:
            reader.cancel()


async def take_live_page(page: Page, folder: Path) -> None:
    async with (
        MockCluster(stores=3, containers=6, http_port=0) as mock,
        segstore.client.connect(f"tcp://{mock.controller_uri}") as pravega,
    ):
        await pravega.controller.create_scope("shop")
        for stream, segments in (("orders", 4), ("payments", 3), ("deliveries", 2)):
            await pravega.controller.create_stream("shop", stream, segments=segments)
        mock.faults.add("type = APPEND_BLOCK_END", every=500, do="close after", name="lost ack")
        mock.faults.add("type = READ_SEGMENT", do={"delay_ms": 20}, name="slow reads")
        mock.faults.toxics.add("bandwidth", rate=50_000, toxicity=0.5)
        writing = asyncio.create_task(write(pravega), name="load")
        await take_requests(page, folder, mock.http_url)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        await take_contents(page, folder, pravega)


async def take(folder: Path) -> None:
    """Takes the pictures."""
    with tempfile.TemporaryDirectory() as profile, contextlib.closing(Chromium(Path(profile))) as chromium:
        async with chromium.page() as page:
            await page.do("Emulation.setScrollbarsHidden", hidden=True)
            await take_trace_page(page, folder)
            await take_live_page(page, folder)


def main() -> None:
    asyncio.run(take(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "docs" / "img"))


if __name__ == "__main__":
    main()
