"""Commands to measure with: as a store with some writers and segments sees them, not one value again and again.

`names` says how many different writers and segments there are. A store's connection repeats a few of them all the time
(WARM); COLD has a new one in every frame, more than any memo of the codec holds, and so shows what the memos are worth.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Final

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntry,
    TableKey,
    TableValue,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)

__all__ = ["COLD", "WARM", "Samples", "samples"]

WARM: Final = (64, 16)
"""(frames of each command, different names)"""
COLD: Final = (6000, 6000)

Samples = dict[str, list[Command]]

TOKEN: Final = "eyJhbGciOiJIUzUxMiJ9." + "c2VnbWVudHN0b3Jl" * 6 + ".c2ln"


def samples(count: int, names: int, seed: int = 1) -> Samples:
    """`count` values of each command under its type name, none above 1 KB on the wire."""
    chance = random.Random(seed)
    writers = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(names)]
    segments = [f"examples/orders-{chance.randrange(10**6)}/{n}.#epoch.{n % 3}" for n in range(names)]

    def request() -> int:
        return chance.randrange(1 << 16) << 32 | chance.randrange(1 << 20)

    def offset() -> int:
        return chance.randrange(1 << 40)

    def entry() -> TableEntry:
        return TableEntry(TableKey(chance.randbytes(16), offset()), TableValue(chance.randbytes(64)))

    def of(n: int) -> list[tuple[str, Callable[[], Command]]]:
        writer, segment = writers[n % names], segments[n % names]
        return [
            ("HELLO", lambda: Hello(17, 5)),
            ("SETUP_APPEND", lambda: SetupAppend(request(), writer, segment, TOKEN)),
            ("APPEND_SETUP", lambda: AppendSetup(request(), segment, writer, offset())),
            ("APPEND_BLOCK", lambda: AppendBlock(writer, chance.randbytes(900))),
            ("APPEND_BLOCK_END", lambda: AppendBlockEnd(writer, 900, chance.randbytes(100), 1, offset(), request())),
            ("DATA_APPENDED", lambda: DataAppended(request(), writer, offset(), offset(), offset())),
            ("READ_SEGMENT", lambda: ReadSegment(segment, offset(), 65536, "", request())),
            ("SEGMENT_READ", lambda: SegmentRead(segment, offset(), False, False, chance.randbytes(900), request())),
            (
                "STREAM_SEGMENT_INFO",
                lambda: StreamSegmentInfo(request(), segment, True, False, False, offset(), offset(), 0),
            ),
            ("CREATE_SEGMENT", lambda: CreateSegment(request(), segment, 1, 100, TOKEN, offset())),
            ("SEGMENT_CREATED", lambda: SegmentCreated(request(), segment)),
            (
                "UPDATE_SEGMENT_ATTRIBUTE",
                lambda: UpdateSegmentAttribute(request(), segment, writer, offset(), offset(), ""),
            ),
            ("NO_SUCH_SEGMENT", lambda: NoSuchSegment(request(), segment, "", offset())),
            (
                "UPDATE_TABLE_ENTRIES",
                lambda: UpdateTableEntries(
                    request(), segment, "", TableEntries(tuple(entry() for _ in range(4))), offset()
                ),
            ),
            ("KEEP_ALIVE", KeepAlive),
        ]

    found: Samples = {}
    for n in range(count):
        for name, make in of(n):
            found.setdefault(name, []).append(make())
    return found
