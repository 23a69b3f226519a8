"""Records, streams and captures for the tests of traces."""

import json
from typing import Any

from hypothesis import strategies as st

from segstore.wire import Command, encode
from segstore.wire.trace import (
    Direction,
    Metadata,
    Record,
    RecordKind,
    RecordWriter,
    TraceWriter,
    event_data,
    make_mark,
)
from tests.strategies import commands, mutated

__all__ = ["MARK", "METADATA", "capture", "frame", "frames", "in_memory", "record", "records", "whole_frames"]

MARK = make_mark(b"12345678")
METADATA = Metadata(17, "test", {"why": "tests"})

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_BITS = st.sampled_from((0, 1, 5, -1))


def frame(code: int, body: bytes = b"") -> bytes:
    """A frame whose header tells the truth."""
    return code.to_bytes(4, "big", signed=True) + len(body).to_bytes(4, "big") + body


def in_memory(size: int = 1 << 20, **settings: Any) -> TraceWriter:
    """A writer with memory of a size."""
    return TraceWriter(MARK, METADATA, memory=bytearray(size), **settings)


def whole_frames(max_size: int = 60) -> st.SearchStrategy[bytes]:
    """Frames of any code, most of which do not decode."""
    return st.builds(frame, st.integers(-130, 130), st.binary(max_size=max_size))


def frames() -> st.SearchStrategy[bytes]:
    """Frames that decode, and such that were damaged."""
    good = commands().map(encode)
    return st.one_of(good, good.flatmap(mutated), whole_frames())


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record: the data need not fit its kind."""
    kind = draw(st.sampled_from(RecordKind))
    facts = st.dictionaries(st.sampled_from(("peer", "reason", "é")), st.text(max_size=5) | st.integers() | st.none())
    data = st.binary(max_size=80)
    if kind is RecordKind.FRAME:
        data = st.one_of(data, frames())
    elif kind is not RecordKind.BYTES:
        data = st.one_of(
            data, facts.map(lambda drawn: event_data(**drawn)), facts.map(lambda d: json.dumps(d).encode())
        )
    return Record(draw(_INT64), draw(_INT64 | _BITS), draw(st.sampled_from(Direction)), kind, draw(data))


def record(
    command: Command | bytes,
    *,
    at: int = 0,
    connection: int = 1,
    reply: bool = False,
    kind: RecordKind = RecordKind.FRAME,
) -> Record:
    """One record of a frame."""
    data = command if isinstance(command, bytes) else encode(command)
    return Record(at, connection, Direction(reply), kind, data)


def capture(of: list[Record], *, a_block: int = 3, compress: bool = False, metadata: Metadata = METADATA) -> bytes:
    """A capture with a few records to the block."""
    writer = RecordWriter(MARK, metadata, compress=compress)
    out = [writer.start()]
    for index, each in enumerate(of, 1):
        out.append(writer.add(each))
        if index % a_block == 0:
            out.append(writer.take())
    out.append(writer.take())
    return b"".join(out)
