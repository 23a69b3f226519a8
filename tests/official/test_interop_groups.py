"""Reader groups of the official client, which this one does not share: they are refused, and can be continued."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.client import connect
from segstore.client.errors import ConditionFailed
from segstore.server.cluster import MockCluster
from segstore.wire.names import SegmentName
from tests.client.support import settings
from tests.official.client import run
from tests.official.support import MARKS, make_stream, uri

pytestmark = MARKS

KEYS = 8
GROUP: dict[str, Any] = {"scope": "a", "group": "g", "stream": "s"}


async def test_a_group_of_the_official_client_is_refused_and_another_continues_where_it_is() -> None:
    async with MockCluster(2, watched=False) as cluster, connect(uri(cluster), settings()) as pravega:
        await make_stream(cluster, "a", "s", 3)
        async with pravega.event_writer("a", "s") as writer:
            for number in range(600):
                await writer.submit(b"k%d:%d" % (number % KEYS, number), routing_key=f"k{number % KEYS}")
        events = await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=100)
        for streams in (["s"], []):
            with pytest.raises(
                ConditionFailed, match=r"reader group a/g has its state in a table, .*groups show`? a/g"
            ):
                await pravega.reader_group("a", "g", streams=streams).open()
        assert cluster.controller is not None
        found = await cluster.controller.reader_groups.shared_state("a", "g")
        cut = {SegmentName.parse(segment).segment_id or 0: offset for segment, offset in found.unassigned.items()}
        async with (
            pravega.reader_group("a", "next", streams=["s"], from_={"s": cut}) as group,
            group.reader("ours") as reader,
        ):
            while len(events) < 600:
                event = await reader.read()
                assert event is not None
                events.append(event.data.decode())
        for key in range(KEYS):
            mine = [int(each.partition(":")[2]) for each in events if each.startswith(f"k{key}:")]
            assert mine == list(range(key, 600, KEYS)), f"key {key}"
