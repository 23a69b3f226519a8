"""Whole appends as rows, from any declaration of them."""

from uuid import UUID

from segstore.wire import AppendBlock, AppendBlockEnd, SetupAppend, encode
from segstore.wire.blocks import WHOLE_APPENDS, BlockWriter
from segstore.wire.codec.joining import joining_of

WRITER = UUID(int=5)


def whole(number: int, data: bytes = b"data") -> bytes:
    return encode(AppendBlock(WRITER, data)) + encode(AppendBlockEnd(WRITER, len(data), b"", 3, number, number + 100))


def test_rows_have_the_columns_that_are_declared() -> None:
    joining, record = joining_of(WHOLE_APPENDS._replace(row=("data", "last_event_number"))), BlockWriter("s", WRITER)
    out: list[list[tuple[BlockWriter, list[tuple[object, int]]]]] = []
    view = memoryview(whole(7) + whole(8, b"more") + whole(2) + whole(9))
    stop, count = joining.take(view, 0, len(view), 1 << 20, {WRITER.bytes: record}, out, 9)
    assert (stop, count, record.last_event_number) == (2 * len(whole(1)), 2, 8), "a number that falls is left"
    assert out == [[(record, [(b"data", 7), (b"more", 8)])]]
    assert (joining.block, SetupAppend.code in joining.changes) == (AppendBlock.code, True)
