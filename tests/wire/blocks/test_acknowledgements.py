"""Acknowledgements of runs: one for each number that rises, with the offset behind its append."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import WIRE_VERSION, DataAppended, FrameDecoder, decode
from segstore.wire.blocks import acknowledger

WRITER = UUID(int=(1 << 127) + 5)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
rows_of = st.lists(
    st.tuples(st.integers(0, 9) | int64, st.just(1), st.binary(max_size=9).map(memoryview) | st.binary(), int64)
)


def plain(rows: list[Any], previous: int, offset: int) -> tuple[list[DataAppended], int]:
    found = []
    for number, _, data, request_id in rows:
        offset += len(data)
        if number > previous:
            found.append(DataAppended(request_id, WRITER, number, previous, offset))
            previous = number
    return found, previous


@given(rows_of, st.integers(-1, 9) | int64, st.integers(0, 1 << 60))
def test_each_number_that_rises_is_acknowledged(rows: list[Any], previous: int, offset: int) -> None:
    out = bytearray(b"before")
    last = acknowledger(WIRE_VERSION)(rows, WRITER.bytes, previous, offset, out)
    assert out.startswith(b"before")
    assert (FrameDecoder().feed(out[6:]), last) == plain(rows, previous, offset)


def test_an_older_version_has_its_own_form() -> None:
    row = (3, 1, b"data", 9)
    now, then = bytearray(), bytearray()
    for version, out in ((WIRE_VERSION, now), (5, then)):
        acknowledger(version)([row], WRITER.bytes, 1, 10, out)
    assert decode(now) == DataAppended(9, WRITER, 3, 1, 14)
    assert len(then) < len(now)
