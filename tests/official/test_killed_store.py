"""A durable store is killed while the official client writes: it goes on when the store is back, exactly once."""

from pathlib import Path
from typing import Any

import pytest

from segstore.client import connect
from tests.cluster_processes import IMPATIENT, Serving
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS

pytestmark = [*MARKS, pytest.mark.long]

KEYS, PER_KEY = 20, 100


async def test_nothing_is_lost_or_doubled_when_the_store_is_killed_and_started_again(tmp_path: Path) -> None:
    what: dict[str, Any] = {"scope": "a", "stream": "s", "keys": KEYS, "per_key": PER_KEY}
    store = Serving(0, ("--data", str(tmp_path / "data")), tmp_path / "log")
    try:
        await store.start()
        uri = f"tcp://{store.controller}"
        async with connect(uri, IMPATIENT) as client:
            await client.controller.create_scope("a")
            await client.controller.create_stream("a", "s", segments=3)
        async with OfficialClient(uri, "events.write", **what, in_flight=100, pauses=1) as writer:
            await writer.said("writing")
            await writer.said("paused")
            writer.go_on()  # what is in flight is there to be cut off
            await store.kill()
            await store.start()
            await writer.result()
        await store.kill()
        await store.start()
        assert await run(uri, "events.read", **what) == {"events": KEYS * PER_KEY, "wrong": [], "problem": ""}
        assert await store.end() == 0
    finally:
        store.abandon()
