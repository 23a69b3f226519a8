"""Byte streams: what goes in comes out, from any place, through cuts, and with the official client."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from segstore.client import Backoff, Client, connect
from segstore.client.errors import Closed, EventTooLarge, NoSuchStream, RequestRejected, SegmentSealed, SegmentTruncated
from segstore.server.cluster import MockCluster
from tests.client.support import make_stream, settings
from tests.looped import looped
from tests.official.client import run
from tests.official.support import MARKS, uri

pytestmark = pytest.mark.usefixtures("grpc_runs")


@asynccontextmanager
async def byte_stream(segments: int = 1, **more: Any) -> AsyncIterator[tuple[MockCluster, Client]]:
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}", settings(**more)) as pravega:
        await make_stream(pravega, segments, name="bytes")
        yield mock, pravega


async def test_what_is_appended_is_read_as_it_was_without_any_frame() -> None:
    async with byte_stream(max_event_bytes=1_000) as (_, pravega):
        data = Random(1).randbytes(25_000)
        async with pravega.byte_writer("a", "bytes") as writer:
            await writer.append(b"")
            for start in range(0, len(data), 2_500):
                await writer.append(data[start : start + 2_500])
            await writer.flush()
            assert (await writer.head(), await writer.tail()) == (0, 25_000)
            await writer.seal()
            await writer.seal()
            with pytest.raises(SegmentSealed):
                await writer.append(b"late")
        async with pravega.byte_reader("a", "bytes") as reader:
            assert b"".join([part async for part in reader]) == data
            assert (reader.position, await reader.read()) == (25_000, b"")
            assert await reader.read_exactly(5) == b""


async def test_a_buffer_can_be_used_again_when_append_returns() -> None:
    async with byte_stream() as (_, pravega), pravega.byte_writer("a", "bytes") as writer:
        buffer = bytearray(b"first")
        await writer.append(buffer)
        buffer[:] = b"other"
        await writer.append(memoryview(buffer))
        await writer.flush()
        async with pravega.byte_reader("a", "bytes") as reader:
            assert await reader.read_exactly(10) == b"firstother"


async def test_a_reader_moves_as_a_file_does() -> None:
    async with byte_stream() as (_, pravega), pravega.byte_writer("a", "bytes") as writer:
        await writer.append(b"0123456789")
        await writer.flush()
        async with pravega.byte_reader("a", "bytes") as reader:
            assert await reader.read(4) == b"0123"
            assert await reader.seek(2, os.SEEK_CUR) == 6
            assert await reader.read(2) == b"67"
            assert await reader.seek(-3, os.SEEK_END) == 7
            assert await reader.read() == b"789"
            assert await reader.seek(1) == 1
            assert await reader.read_exactly(3) == b"123"
            assert await reader.read_at(8, 100) == b"89"
            assert await reader.read_at(2, 3) == b"234"
            assert await reader.read_at(10, 5) == await reader.read_at(3, 0) == b""
            assert reader.position == 4
            for offset, whence in ((-5, os.SEEK_CUR), (-1, os.SEEK_SET), (-11, os.SEEK_END), (0, 9)):
                with pytest.raises(ValueError, match=r"position|whence"):
                    await reader.seek(offset, whence)
            with pytest.raises(ValueError, match="a read of -1 bytes at 0"):
                await reader.read_at(0, -1)
            with pytest.raises(ValueError, match="a read of 0 bytes"):
                await reader.read(0)
        async with pravega.byte_reader("a", "bytes", from_=7) as reader:
            assert await reader.read() == b"789"


async def test_a_reader_waits_at_the_tail_and_a_wait_that_is_cancelled_loses_nothing() -> None:
    async with byte_stream() as (_, pravega), pravega.byte_writer("a", "bytes") as writer:
        await writer.append(b"old")
        await writer.flush()
        async with pravega.byte_reader("a", "bytes", from_="tail") as reader:
            assert reader.position == 3
            waiting = asyncio.create_task(reader.read_exactly(6))
            await asyncio.sleep(0.01)
            await writer.append(b"new")
            await writer.flush()
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await writer.append(b"est")
            assert await reader.read_exactly(6) == b"newest"


async def test_what_was_truncated_is_gone_and_the_rest_keeps_its_offsets() -> None:
    async with byte_stream() as (_, pravega), pravega.byte_writer("a", "bytes") as writer:
        await writer.append(b"0123456789")
        await writer.flush()
        await writer.truncate(6)
        await writer.truncate(6)
        await writer.truncate(2)
        assert (await writer.head(), await writer.tail()) == (6, 10)
        for offset in (11, -1):
            with pytest.raises(RequestRejected, match=f"cannot be truncated at {offset}") as caught:
                await writer.truncate(offset)
            assert (caught.value.actual, caught.value.limit) == (offset, 10)
        async with pravega.byte_reader("a", "bytes") as reader:
            assert reader.position == 6
            assert await reader.read() == b"6789"
            await reader.seek(3)
            with pytest.raises(SegmentTruncated) as truncated:
                await reader.read()
            assert truncated.value.details["start_offset"] == 6
            with pytest.raises(SegmentTruncated):
                await reader.read_at(0, 3)


@looped("seed", range(2))
async def test_bytes_are_stored_once_and_in_order_whatever_happens_to_connections(seed: int) -> None:
    random = Random(seed)
    retry = Backoff(initial_ms=1, max_ms=20, jitter=0, max_attempts=40)
    async with byte_stream(retry=retry, max_event_bytes=500) as (mock, pravega):
        for kind in ("APPEND_BLOCK_END", "READ_SEGMENT", "SEAL_SEGMENT", "TRUNCATE_SEGMENT"):
            mock.faults.add(f"type = {kind}", every=random.randrange(2, 6), do=["close after", "close before"] * 5)
        data = random.randbytes(40_000)
        async with pravega.byte_writer("a", "bytes") as writer:
            at = 0
            while at < len(data):
                size = random.randrange(1, 3_000)
                await writer.append(data[at : at + size])
                at += size
                if random.random() < 0.3:
                    await writer.flush()
            await writer.seal()
            await writer.truncate(100)
            await writer.truncate(200)
        async with pravega.byte_reader("a", "bytes") as reader:
            assert b"".join([part async for part in reader]) == data[200:]


async def test_only_a_stream_of_one_segment_is_a_byte_stream() -> None:
    async with byte_stream(segments=3) as (_, pravega):
        for each in (pravega.byte_writer("a", "bytes"), pravega.byte_reader("a", "bytes")):
            with pytest.raises(RequestRejected, match="a/bytes has 3 segments, but a byte stream has one"):
                await each.open()
            await each.aclose()
        with pytest.raises(NoSuchStream):
            await pravega.byte_writer("a", "none").open()


async def test_bytes_are_stored_at_an_offset_or_not_at_all() -> None:
    async with byte_stream(max_event_bytes=100) as (_, pravega):
        async with pravega.byte_writer("a", "bytes") as one, pravega.byte_writer("a", "bytes") as other:
            await one.append(b"begin ")
            assert await one.append_at(6, b"one ")
            assert not await other.append_at(6, b"lost ")
            assert await other.append_at(await other.tail(), memoryview(b"other"))
            with pytest.raises(EventTooLarge):
                await one.append_at(15, b"x" * 101)
            assert await one.tail() == 15
            assert [await one.append_at(15, b""), await one.append_at(14, b"")] == [True, False]
        with pytest.raises(Closed):
            await one.append_at(15, b"late")
        async with pravega.byte_reader("a", "bytes") as reader:
            assert await reader.read_exactly(15) == b"begin one other"


@looped("do", ["close", "close after"])
async def test_whether_bytes_are_stored_at_an_offset_is_known_though_the_answer_was_lost(do: str) -> None:
    async with byte_stream() as (mock, pravega), pravega.byte_writer("a", "bytes") as writer:
        mock.faults.add("type = CONDITIONAL_APPEND", nth=1, do=do)
        assert await writer.append_at(0, b"once")
        assert not await writer.append_at(0, b"again")
        assert await writer.tail() == 4


async def test_what_is_closed_says_so_and_can_be_closed_twice() -> None:
    async with byte_stream() as (_, pravega):
        writer, reader = pravega.byte_writer("a", "bytes"), pravega.byte_reader("a", "bytes")
        with pytest.raises(Closed, match="is not open"):
            await writer.append(b"early")
        await writer.open()
        await reader.open()
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0.01)
        await reader.aclose()
        with pytest.raises(Closed):
            await waiting
        for each in (writer, reader):
            await each.aclose()
            await each.aclose()
            with pytest.raises(Closed, match="was closed"):
                await each.tail()
        with pytest.raises(Closed):
            await writer.append(b"late")
        with pytest.raises(Closed):
            await reader.read()


class TestWithTheOfficialClient:
    pytestmark = MARKS

    async def test_what_the_official_client_writes_is_read(self) -> None:
        async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
            assert await run(uri(mock), "byte_streams.write", size=2_000_000) == 2_000_000
            async with pravega.byte_reader("a", "bytes") as reader:
                assert await reader.read_exactly(2_000_000) == hashlib.shake_128(b"bytes").digest(2_000_000)
                assert await reader.tail() == 2_000_000

    async def test_the_official_client_reads_what_is_written(self) -> None:
        async with byte_stream() as (mock, pravega):
            async with pravega.byte_writer("a", "bytes") as writer:
                await writer.append(hashlib.shake_128(b"bytes").digest(9_000_000))
            assert await run(uri(mock), "byte_streams.read", size=9_000_000) is True
