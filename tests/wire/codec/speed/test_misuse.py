"""Odd values, and code that runs in the middle: C does what Python does, and exposes none of its memory."""

from __future__ import annotations

import gc
import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from segstore.wire import DataAppended, ReadTable, decode, encode
from segstore.wire.commands.table import TableKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.needs("the extension segstore._speed")


@pytest.fixture
def while_collecting() -> Iterator[Callable[[Callable[[], object], int], None]]:
    """Calls a function at the start of the collection that begins after the first N allocations."""
    threshold, calls = gc.get_threshold(), list[Any]()

    def begin(phase: str, _: Any) -> None:
        if phase == "start" and calls:
            calls.pop()()

    def prepare(call: Callable[[], object], after: int) -> None:
        calls[:] = [call]
        gc.set_threshold(gc.get_count()[0] + after, 10, 10)

    gc.callbacks.append(begin)
    yield prepare
    gc.callbacks.remove(begin)
    gc.set_threshold(*threshold)


def test_a_uuid_whose_bytes_change_while_it_is_made_is_remembered_for_no_other(
    while_collecting: Callable[[Callable[[], object], int], None],
) -> None:
    chance = random.Random(5)
    for after in range(40):
        own = uuid.UUID(int=chance.randrange(1 << 128))
        alike = uuid.UUID(int=own.int ^ (0xFFFF << 64 | 0xFFFF))  # it has the same place in the memo
        frame = bytearray(encode(DataAppended(1, own, 3, 2, 5)))
        at = frame.index(own.bytes)
        other = encode(DataAppended(1, alike, 3, 2, 5))

        def change(frame: bytearray = frame, at: int = at, alike: uuid.UUID = alike) -> None:
            frame[at : at + 16] = alike.bytes

        while_collecting(change, after % 8)
        made = decode(frame)
        assert isinstance(made, DataAppended)
        assert made.writer_id.bytes == made.writer_id.int.to_bytes(16, "big")
        assert decode(other) == decode(other, codec="python")


def test_no_code_sees_a_tuple_that_is_still_filled(
    while_collecting: Callable[[Callable[[], object], int], None],
) -> None:
    count, seen = 3000, list[Any]()
    frame = encode(ReadTable(1, "s", "t", tuple(TableKey(b"k", 5) for _ in range(count))))

    def look() -> None:
        seen.extend(object_[-1] for object_ in gc.get_objects() if type(object_) is tuple and len(object_) == count)

    while_collecting(look, 500)
    made = decode(frame)
    assert isinstance(made, ReadTable)
    assert len(made.keys) == count
    assert seen == []
