"""The memory that a peer can make a decoder use: at most twice the longest frame, 20 times for lists of tiny elements.

Measured with tracemalloc at the peak, over what was held before, without the help of the garbage collector. Frames that
are handed in as one buffer are the caller's; where bytes come in pieces the one incomplete frame is the decoder's and
counts. Most is tried with a lower limit of frames: tracing makes a million objects slow.
"""

import gc
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from segstore.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameDecoder,
    MergeSegments,
    MergeSegmentsBatch,
    PartialEvent,
    ReadTable,
    RemoveTableKeys,
    SegmentsBatchMerged,
    StorageChunksListed,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeysRead,
    TableRead,
    UpdateTableEntries,
    encode,
)
from segstore.wire.codec import CODECS, Codec
from tests.looped import looped
from tests.strategies import framed
from tests.wire.agreement import refusal

LIMIT = 1 << 20

EACH_CODEC = looped("codec", CODECS)


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # `peak_of` collects the garbage of this test alone, not of all before it
    tracemalloc.start()
    gc.disable()
    yield
    gc.enable()
    tracemalloc.stop()


def peak_of(call: Callable[[], Any]) -> int:
    """Bytes that a call takes at its peak beyond what was there, its result included."""
    gc.collect()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    result = call()
    _, peak = tracemalloc.get_traced_memory()
    del result
    return peak - before


@EACH_CODEC
@looped("length", [MAX_FRAME_BYTES - HEADER_BYTES, MAX_FRAME_BYTES, (1 << 31) - 1, -1])
def test_an_announced_length_takes_no_memory(codec: Codec, length: int) -> None:
    decoder = FrameDecoder(codec=codec)
    head = struct.pack(">ii", PartialEvent.code, length)
    assert peak_of(lambda: refusal(lambda: decoder.feed(head + b"few"))) < 16 * 1024
    assert decoder.buffered_bytes <= 11


LISTS = [
    (MergeSegmentsBatch.code, struct.pack(">qH", 1, 0)),
    (SegmentsBatchMerged.code, struct.pack(">qH", 1, 0)),
    (MergeSegments.code, struct.pack(">qHHH", 1, 0, 0, 0)),
    (UpdateTableEntries.code, struct.pack(">qHH", 1, 0, 0)),
    (RemoveTableKeys.code, struct.pack(">qHH", 1, 0, 0)),
    (ReadTable.code, struct.pack(">qHH", 1, 0, 0)),
    (TableRead.code, struct.pack(">qH", 1, 0)),
    (TableKeysRead.code, struct.pack(">qH", 1, 0)),
    (TableEntriesRead.code, struct.pack(">qH", 1, 0)),
    (TableEntriesUpdated.code, struct.pack(">q", 1)),
    (StorageChunksListed.code, struct.pack(">q", 1)),
]


@EACH_CODEC
@looped(("code", "start"), LISTS)
@looped("count", [(1 << 31) - 1, 1 << 24, -1, -(1 << 31)])
def test_an_announced_count_takes_no_memory(codec: Codec, code: int, start: bytes, count: int) -> None:
    frame = framed(code, start + struct.pack(">i", count) + bytes(2000))
    FrameDecoder(codec=codec).feed(framed(code, start + bytes(40)))  # what is made once is not counted,
    refusal(lambda: FrameDecoder(codec=codec).feed(framed(code, start + bytes(3))))  # nor what the first refusal makes
    assert peak_of(lambda: refusal(lambda: FrameDecoder(codec=codec).feed(frame))) < 64 * 1024


@EACH_CODEC
def test_dripping_a_frame_in_small_pieces_takes_its_length_and_little_more(codec: Codec) -> None:
    frame = encode(PartialEvent(bytes(LIMIT - HEADER_BYTES)))
    decoder = FrameDecoder(max_frame_bytes=LIMIT, codec=codec)

    def drip() -> None:
        for start in range(0, len(frame), 100):
            found = decoder.feed(frame[start : start + 100])
            assert decoder.buffered_bytes <= LIMIT
        assert len(found) == 1

    assert peak_of(drip) < 2 * LIMIT


@EACH_CODEC
def test_a_decoder_that_failed_holds_nothing(codec: Codec) -> None:
    decoder = FrameDecoder(max_frame_bytes=LIMIT, codec=codec)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    decoder.feed(encode(PartialEvent(bytes(LIMIT - HEADER_BYTES)))[:-1])
    assert refusal(lambda: decoder.feed(b"\0" + framed(0, b""))) is not None
    for _ in range(100):
        refusal(lambda: decoder.feed(bytes(1000)))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 32 * 1024


TINY_LIMIT = 1 << 14


def full(code: int, start: bytes, element: bytes, behind: bytes = b"", *, limit: int = TINY_LIMIT) -> bytes:
    """A frame as long as the limit, full of one element."""
    room = limit - HEADER_BYTES - len(start) - 4 - len(behind)
    count = room // len(element)
    return framed(code, start + struct.pack(">i", count) + element * count + behind)


KEY = struct.pack(">iiB", 13, 1, 7) + bytes(8)
VALUE = struct.pack(">iiB", 5, 1, 7)
TINY = {
    "one-byte keys": full(ReadTable.code, struct.pack(">qHH", 1, 0, 0), KEY),
    "keys without data": full(ReadTable.code, struct.pack(">qHH", 1, 0, 0), bytes(8)),
    "one-byte entries": full(TableRead.code, struct.pack(">qH", 1, 0), KEY + VALUE),
    "entries without data": full(TableRead.code, struct.pack(">qH", 1, 0), bytes(16)),
    "empty names": full(MergeSegmentsBatch.code, struct.pack(">qH", 1, 0), bytes(2), bytes(2)),
    "foreign names": full(MergeSegmentsBatch.code, struct.pack(">qH", 1, 0), b"\0\x10" + "é".encode() * 8, bytes(2)),
    "names with lengths": full(SegmentsBatchMerged.code, struct.pack(">qH", 1, 0), b"\0\1x" + bytes(8)),
    "versions": full(TableEntriesUpdated.code, struct.pack(">q", 1), b"\7" * 8),
    "attributes": full(MergeSegments.code, struct.pack(">qHHH", 1, 0, 0, 0), UUID(int=5).bytes + bytes(17)),
    "chunks": full(StorageChunksListed.code, struct.pack(">q", 1), bytes(27)),
}


@looped("codec", [codec for codec in CODECS if codec != "construct"])
@looped("frame", TINY.values())
def test_a_frame_of_tiny_elements_takes_20_times_its_length_and_little_if_elements_are_bounded(
    codec: Codec, frame: bytes
) -> None:
    body = frame[HEADER_BYTES:-1]
    cut_off = frame[:4] + struct.pack(">i", len(body)) + body
    for most_elements, most_bytes in ((None, 20 * TINY_LIMIT), (100, TINY_LIMIT)):
        make = partial(FrameDecoder, codec=codec, most_elements=most_elements)
        refusal(partial(make().feed, frame))  # functions that are made once are not counted
        for data in (frame, cut_off):
            assert peak_of(partial(refusal, partial(make().feed, data))) < most_bytes


@EACH_CODEC
def test_the_bound_holds_at_the_greatest_length_of_a_frame(codec: Codec) -> None:
    name = b"\x03\xe8" + b"x" * 1000
    frame = full(MergeSegmentsBatch.code, struct.pack(">qH", 1, 0), name, bytes(2), limit=MAX_FRAME_BYTES)
    assert peak_of(lambda: FrameDecoder(codec=codec).feed(frame)) < 2 * MAX_FRAME_BYTES
