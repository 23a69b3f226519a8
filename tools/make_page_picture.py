"""Takes the pictures of the live page and of the page of a trace in docs/img, with chromium: `make page-picture`, or

    python tools/make_page_picture.py [FOLDER]

The live page shows a cluster of three stores to which a writer writes, with a rule of faults that cuts a connection now
and then; the second picture of it shows an append in detail. The page of a trace shows a fixture, with a failure
opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

import segstore.client
from segstore.client import Client
from segstore.server.cluster import MockCluster
from segstore.view import write_page

ROOT = Path(__file__).parent.parent
LIVE_PAGE, REQUEST, TRACE_PAGE = "live-page.png", "live-page-request.png", "trace-page.png"
TRACE = ROOT / "fixtures" / "traces" / "java.jsonl"
FAILURE = 165
"""The record of the trace that is opened."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--blink-settings=preferredColorScheme=1", "--virtual-time-budget=5000",
)  # fmt: skip
PATIENCE_S = 120.0


async def write(pravega: Client) -> None:
    """Some load, until it is cancelled."""
    async with pravega.event_writer("shop", "orders") as writer:
        number = 0
        while True:
            await writer.write(
                b'{"order": %d, "table": %d}' % (number, number % 10), routing_key=f"table {number % 10}"
            )
            number += 1


async def shoot(url: str, where: Path, size: str) -> None:
    """Takes the picture of a page."""
    with tempfile.TemporaryDirectory() as profile:
        shot = await asyncio.create_subprocess_exec(
            "chromium", *FLAGS, f"--window-size={size}", f"--user-data-dir={profile}", f"--screenshot={where}", url,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            status = await shot.wait()
    if status:
        raise SystemExit(f"chromium took no picture; it ended with {status}")
    print(where)


async def take_trace_page(where: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "trace.html")
        write_page(page, [TRACE])
        await shoot(f"{page.as_uri()}#record={FAILURE}", where, "1500,1080")


def newest_append(url: str) -> int:
    """The number of the newest append that was answered."""
    query = urllib.parse.urlencode({"match": "type = APPEND_BLOCK_END and latency > 0", "limit": 1})
    with urllib.request.urlopen(f"{url}/v1/requests?{query}", timeout=PATIENCE_S) as answer:
        number: int = json.load(answer)["requests"][0]["number"]
    return number


async def take_live_page(folder: Path) -> None:
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
        await shoot(f"{mock.http_url}/", folder / LIVE_PAGE, "1360,1500")
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        number = await asyncio.to_thread(newest_append, mock.http_url)
        await shoot(f"{mock.http_url}/?request={number}", folder / REQUEST, "1360,1100")


async def take(folder: Path) -> None:
    """Takes the pictures."""
    await take_trace_page(folder / TRACE_PAGE)
    await take_live_page(folder)


def main() -> None:
    asyncio.run(take(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "docs" / "img"))


if __name__ == "__main__":
    main()
