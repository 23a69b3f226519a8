"""Events of 24 MiB, in chunks of 8 MiB as users send them, whose connection is cut at every frame, in every manner.

    python -m tests.soak.large_events

Each cut is made with no second try, so that what is in the stream is what one sequence leaves: the event whole, or
nothing of it; and once more with retries, after which it must be there once. Then one MiB is the limit of a large
event's chunk, so that there are more frames to cut at. The bounded version is tests/seeds/test_pdp43a_whole.py.

Exit status 1 at the first event that is there in part, twice, or not at all.
"""

from __future__ import annotations

import asyncio
import sys
import time

from segstore.client import ClientSettings, connect
from segstore.server.cluster import MockCluster
from tests.client.support import settings
from tests.seeds.large_events import CUTS, MIB, NINE_TIMES, ONCE, STEPS, big, cut_at, cut_everywhere

EVENT_BYTES = 24 * MIB


async def soak(chunk_bytes: int) -> None:
    event, chunks = big(EVENT_BYTES), -(-(EVENT_BYTES + 8) // chunk_bytes)
    async with MockCluster() as mock:
        address = f"tcp://{mock.controller_uri}"
        async with connect(address, _settings(chunk_bytes, retry=ONCE)) as pravega:
            await pravega.controller.create_scope("a")
            started = time.monotonic()
            cuts = await cut_everywhere(mock, pravega, event, chunks)
            print(f"{chunks} chunks: {cuts} cuts, whole or absent, {time.monotonic() - started:.0f} s", flush=True)
        async with connect(address, _settings(chunk_bytes, retry=NINE_TIMES)) as pravega:
            for step in STEPS:
                for cut in CUTS:
                    found = await cut_at(mock, pravega, event, (step, 1, cut))
                    if found != [b"before", event]:
                        raise AssertionError(f"{step}, {cut}: {[len(each) for each in found]}")
            print(f"{chunks} chunks: {len(STEPS) * len(CUTS)} cuts with retries, once each", flush=True)


def _settings(chunk_bytes: int, **more: object) -> ClientSettings:
    return settings(large_event_chunk_bytes=chunk_bytes, **more)


def main() -> int:
    try:
        for chunk_bytes in (8 * MIB, MIB):
            asyncio.run(soak(chunk_bytes))
    except AssertionError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
