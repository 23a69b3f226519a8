"""Takes the picture of the live page in docs/img, with chromium: `make page-picture`, or

    python tools/make_page_picture.py [FILE.png]

What it shows is a cluster of three stores to which a writer writes, with a rule of faults that cuts a connection now
and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

import segstore.client
from segstore.client import Client
from segstore.server.cluster import MockCluster

PICTURE = Path(__file__).parent.parent / "docs" / "img" / "live-page.png"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--blink-settings=preferredColorScheme=1", "--virtual-time-budget=5000", "--window-size=1360,1500",
)  # fmt: skip
PATIENCE_S = 120.0


async def write(pravega: Client) -> None:
    """Some load, until it is cancelled."""
    async with pravega.event_writer("shop", "orders") as writer:
        number = 0
        while True:
            await writer.write(b"order %d" % number, routing_key=f"table {number % 10}")
            number += 1


async def take(where: Path) -> None:
    """Takes the picture."""
    async with (
        MockCluster(stores=3, containers=6, http_port=0) as mock,
        segstore.client.connect(f"tcp://{mock.controller_uri}") as pravega,
    ):
        await pravega.controller.create_scope("shop")
        for stream, segments in (("orders", 4), ("payments", 3), ("deliveries", 2)):
            await pravega.controller.create_stream("shop", stream, segments=segments)
        mock.faults.add("type = APPEND_BLOCK_END", every=500, do="close after", name="lost ack")
        mock.faults.add("type = READ_SEGMENT", do={"delay_ms": 20}, name="slow reads")
        writing = asyncio.create_task(write(pravega), name="load")
        with tempfile.TemporaryDirectory() as profile:
            shot = await asyncio.create_subprocess_exec(
                "chromium", *FLAGS, f"--user-data-dir={profile}", f"--screenshot={where}", f"{mock.http_url}/",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE_S):
                status = await shot.wait()
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
    if status:
        raise SystemExit(f"chromium took no picture; it ended with {status}")


def main() -> None:
    where = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PICTURE
    asyncio.run(take(where))
    print(where)


if __name__ == "__main__":
    main()
