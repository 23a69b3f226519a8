"""PDP-36, 36.23 and 36.26 together: cuts before and after the store took it, wrong hosts, scaling, all at random.

The bounded version of the soak: nothing lost, nothing twice, each routing key in order.
"""

import asyncio
from random import Random

import pytest

from segstore.client import Backoff, connect
from segstore.server.cluster import MockCluster
from tests.client.support import settings
from tests.looped import looped
from tests.seeds.large_events import scale

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.mark.seed("36.23")
@pytest.mark.seed("36.26")
@looped("seed", range(3))
async def test_each_key_is_read_once_and_in_order_whatever_happens(seed: int) -> None:
    random = Random(seed)
    config = settings(
        append_batching=random.choice(["turn", "blocks"]),
        retry=Backoff(initial_ms=1, max_ms=20, jitter=0, max_attempts=40),
        max_connections_per_store=random.choice([1, 2, 10]),
    )
    async with MockCluster(stores=2) as mock, connect(f"tcp://{mock.controller_uri}", config) as pravega:
        await pravega.controller.create_scope("a")
        await pravega.controller.create_stream("a", "s", segments=random.randrange(1, 4))
        for request, does in (
            ("APPEND_BLOCK_END", ["close before", "close after"]),
            ("APPEND_BLOCK_END", ["close before", "close after", "WrongHost"]),
            ("READ_SEGMENT", ["close before", "close after"]),
        ):
            mock.faults.add(f"type = {request}", every=random.randrange(5, 15), do=random.choice(does))
        keys = [f"k{number}" for number in range(6)]
        written: dict[str, list[bytes]] = {key: [] for key in keys}
        async with pravega.event_writer("a", "s") as writer:
            for step in range(600):
                key = random.choice(keys)
                event = f"{key}:{len(written[key])}".encode()
                written[key].append(event)
                await writer.submit(event, routing_key=key)
                if step % 200 == 100:
                    await scale(pravega, random.randrange(1, 5))
                if random.random() < 0.1:
                    await asyncio.sleep(0)
        await pravega.controller.seal_stream("a", "s")
        read: dict[str, list[bytes]] = {key: [] for key in keys}
        async with pravega.event_reader("a", "s") as events:
            async for event in events:
                read[event.data.decode().partition(":")[0]].append(event.data)
        assert read == written
        assert pravega.metrics().connections_lost > 0
