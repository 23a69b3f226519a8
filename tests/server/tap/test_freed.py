"""What a tap holds for a connection is bounded, and freed with the connection."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Iterator

import pytest

from segstore.server import MockSegmentStore
from segstore.wire import AppendBlock, ReadSegment, encode
from tests.server.support import HELLO, SEGMENT, WRITER, create, set_up, until
from tests.server.tap.test_server import connected, reset, tap_before


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_what_a_connection_holds_is_freed_with_it_and_without_the_garbage_collector(watched: bool) -> None:
    read = encode(ReadSegment(SEGMENT, 0, 100, "", 3))
    async with MockSegmentStore() as mock, tap_before(mock.host, mock.port, watched=watched) as tap:
        async with await connected(tap) as peer:
            await peer.ask(HELLO, create(), set_up())
            peer.send_bytes(read * 100 + encode(AppendBlock(WRITER, bytes(1000))) + struct.pack(">ii", 9, 8_000_000))
            await until(lambda: not watched or tap.held_bytes > 1000)
            links = [weakref.ref(each) for each in tap.links]
            reset(peer.writer)
        await until(lambda: not tap.links)
        await until(lambda: [link() for link in links] == [None])
