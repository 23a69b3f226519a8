"""Traces made up for measuring: what a store sees of many writers that append and readers that follow them.

    python -m bench.traffic FILE MEGABYTES

A round of every writer is a block, its end and an acknowledgement; now and then a read and its reply, a set-up, a
keep-alive. Request ids, event numbers and offsets go on as they do in life. Nothing here is random but what `seed`
makes so: the same arguments give the same file.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    DataAppended,
    Hello,
    KeepAlive,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    encode,
)
from segstore.wire.request_id import pack
from segstore.wire.trace import Direction, Metadata, Record, RecordKind, RecordWriter, event_data, make_mark

__all__ = ["records", "write_traffic"]

START_NS: Final = 1_760_000_000_000_000_000
TOKEN: Final = "eyJhbGciOiJIUzUxMiJ9." + "c2VnbWVudHN0b3Jl" * 6 + ".c2ln"


def write_traffic(
    path: Path, size: int, *, seed: int = 1, writers: int = 64, payload: int = 300, connections: int = 8
) -> int:
    """Writes a capture of about `size` bytes; how many records it has."""
    writer = RecordWriter(make_mark(seed.to_bytes(8, "big")), Metadata(17, "bench", {}))
    count = written = 0
    with path.open("wb") as file:
        written += file.write(writer.start())
        for record in records(seed=seed, writers=writers, payload=payload, connections=connections):
            count += 1
            block = writer.add(record)
            if block:
                written += file.write(block)
                if written >= size:
                    break
        file.write(writer.take())
    return count


def records(*, seed: int = 1, writers: int = 64, payload: int = 300, connections: int = 8) -> Iterator[Record]:
    """Records without end."""
    chance = random.Random(seed)
    ids = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(writers)]
    segments = [f"examples/orders/{number}.#epoch.0" for number in range(writers)]
    data = chance.randbytes(payload + 64)
    now = START_NS

    def record(connection: int, reply: bool, command: Command) -> Record:
        nonlocal now
        now += chance.randrange(1_000, 30_000)
        return Record(now, connection, Direction(int(reply)), RecordKind.FRAME, encode(command))

    for connection in range(1, connections + 1):
        yield Record(now, connection, Direction.REQUEST, RecordKind.OPEN, event_data(peer=f"127.0.0.1:{connection}"))
        yield record(connection, False, Hello(17, 5))
        yield record(connection, True, Hello(17, 5))
    for flow in range(writers):
        connection = flow % connections + 1
        first = pack(flow + 1, 0)
        yield record(connection, False, SetupAppend(first, ids[flow], segments[flow], TOKEN))
        yield record(connection, True, AppendSetup(first, segments[flow], ids[flow], -(1 << 63)))
    events, offsets, turn = [0] * writers, [0] * writers, 0
    while True:
        turn += 1
        for flow in range(writers):
            connection = flow % connections + 1
            size = chance.randrange(payload // 2, payload)
            before, events[flow] = events[flow] or -1, events[flow] + chance.randrange(1, 5)
            offsets[flow] += size
            request = pack(flow + 1, turn % (1 << 31))
            yield record(connection, False, AppendBlock(ids[flow], data[:size]))
            yield record(
                connection, False, AppendBlockEnd(ids[flow], size, b"", events[flow] - before, events[flow], request)
            )
            yield record(connection, True, DataAppended(request, ids[flow], events[flow], before, offsets[flow]))
            if flow % 8 == turn % 8:
                request = pack(writers + flow + 1, turn % (1 << 31))
                offset = offsets[flow] - size
                yield record(connection, False, ReadSegment(segments[flow], offset, 1 << 20, "", request))
                yield record(connection, True, SegmentRead(segments[flow], offset, True, False, data[:size], request))
        if turn % 100 == 0:
            yield record(turn // 100 % connections + 1, False, KeepAlive())


if __name__ == "__main__":
    print(write_traffic(Path(sys.argv[1]), int(sys.argv[2]) * 1_000_000), "records")
