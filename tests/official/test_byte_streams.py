"""Byte streams of the official client: write, read, seek, truncate."""

from segstore.server.cluster import MockCluster
from tests.official.client import run
from tests.official.support import MARKS, uri

pytestmark = MARKS


async def test_bytes_are_written_read_sought_and_cut_off() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "byte_streams.life")
    assert found["written"] == 11
    assert found["read"] == [5, "hello"]
    assert found["told"] == 5
    assert found["sought"] == [6, 5, "world", 6, 7, 4, "orld"]
    assert [each["fails"] for each in found["refused"]] == ["ValueError"] * 2
    assert found["seekable"] is True
    assert found["ends"] == [0, 11]
    assert found["ends after truncation"] == [6, 11]
    assert "SegmentIsTruncated" in found["before the head"]["text"]
    assert found["from the head"] == [5, "world"]
    assert found["beyond the tail"]["fails"] == "OSError"
    # A byte writer starts at offset 0, whatever the stream holds; its append is conditional, so nothing is lost.
    assert "ConditionalCheckFailure" in found["second writer"]["text"]


async def test_40_megabytes_come_back() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "byte_streams.large", size=40_000_000)
    assert found == {"tail": 40_000_000, "same": True}
