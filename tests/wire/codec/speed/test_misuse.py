"""Odd values, and code that runs in the middle: C does what Python does, and exposes none of its memory."""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from segstore.client.connection import Pending
from segstore.wire import DataAppended, ReadTable, decode, encode
from segstore.wire.commands.table import TableKey
from tests.looped import looped
from tests.wire.codec.speed.pairs import outcome, pairs
from tests.wire.codec.speed.writers import TIMER, Writers, with_acks, with_turns

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
        seen.extend(each[-1] for each in gc.get_objects() if type(each) is tuple and len(each) == count)

    while_collecting(look, 500)
    made = decode(frame)
    assert isinstance(made, ReadTable)
    assert len(made.keys) == count
    assert seen == []


async def test_a_task_that_is_done_and_items_that_come_meanwhile_are_as_in_python() -> None:
    async def nothing() -> None: ...

    class Other(Pending):
        """Items that C leaves to Python."""

    task = asyncio.ensure_future(nothing())
    await task
    found = []
    for tell in pairs()["resolve_stored"]:
        heard: list[Any] = []
        items: list[Any] = []

        def again(_: Any, heard: list[Any] = heard, items: list[Any] = items) -> None:
            heard.append(len(items))
            if len(heard) < 3:
                items.append(Pending(b"", 1, None, heard.append))

        items += [Pending(b"", 1, None, task), Other(b"", 1, None, again), Pending(b"", 1, None, again)]
        tell(items, heard.append)
        found.append(heard)
    assert found[0] == found[1] == [3, 4, None, None]


def test_what_setting_a_result_raises_is_raised_and_no_more_is_told() -> None:
    class Ending(asyncio.Future[None]):
        """It is done, and its callbacks cannot be scheduled."""

        def set_result(self, result: None) -> None:
            super().set_result(result)
            raise KeyboardInterrupt

    for tell in pairs()["resolve_stored"]:
        loop, heard = asyncio.new_event_loop(), list[Any]()
        items = [Pending(b"", 1, None, Ending(loop=loop)), Pending(b"", 1, None, heard.append)]
        with pytest.raises(KeyboardInterrupt):
            tell(items, heard.append)
        waited = loop.create_future()
        waited.add_done_callback(print)
        loop.close()
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            tell([Pending(b"", 1, None, waited), *items], heard.append)
        assert heard == []


def test_a_key_that_replaces_the_frames_while_flows_are_looked_up_has_no_effect_on_them() -> None:
    for settle in pairs()["acknowledge"]:
        made = Writers(2)
        acks, _, counters = with_acks(made)

        class Key:
            def __hash__(self) -> int:
                return 0

            def __eq__(self, _: object, acks: Any = acks) -> bool:
                acks.frames = memoryview(b"")
                return False

        before = made.state()
        outcome(settle, acks, {Key(): None, **made.flows}, counters)
        assert made.state() == before


def test_a_flow_that_owns_the_connection_gets_all_acknowledgements() -> None:
    found = []
    for settle in pairs()["acknowledge"]:
        made = Writers(2)
        acks, _, counters = with_acks(made)
        flows = {0: made.flows[1], **made.flows}
        found.append((outcome(settle, acks, flows, counters), made.state()))
    assert found[0] == found[1]


def _write_asked(made: Writers, function: Any, value: Any) -> Any:
    made.flows[1].asked = value
    return outcome(function, made.writers[0], b"data", print)


def _write_full_at(made: Writers, function: Any, value: Any) -> Any:
    made.writers[0]._events.full_at = value
    return outcome(function, made.writers[0], b"data", print)[:1] if isinstance(value, str) else None


def _turn_framed(made: Writers, function: Any, value: Any) -> Any:
    made.writers[0]._appends._frame_events = value  # type: ignore[union-attr]
    return outcome(function, made.outbox, list(made.outbox.turns)), [bytes(each) for each in made.outbox._out]


def _turn_closed(made: Writers, function: Any, value: Any) -> Any:
    made.flows[1].closed = value
    return outcome(function, made.outbox, list(made.outbox.turns)), made.notes


def _turn_without(made: Writers, function: Any, value: Any) -> Any:
    made.outbox.batch_bytes = 1 << 40  # C leaves it to Python
    delattr(made.flows[1], "turn" if value else "closed")
    return outcome(function, made.outbox, list(made.outbox.turns)), made.notes


@looped("value", [0, 1, "", "x", None, 1.5])
@looped(
    ("name", "do"),
    [("append", _write_asked), ("append", _write_full_at), ("run_turns", _turn_framed), ("run_turns", _turn_closed)],
)
def test_odd_values_in_the_place_of_bools_and_numbers_are_taken_as_python_takes_them(
    name: str, do: Callable[[Writers, Any, Any], Any], value: Any
) -> None:
    found = []
    for function in pairs()[name]:
        made = Writers(1)
        made.writers[0]._appends.timer = TIMER  # type: ignore[union-attr]
        if name == "run_turns":
            with_turns(made)
        found.append((do(made, function, value), made.outbox.turns == [made.flows[1]], made.notes))
    assert found[0] == found[1]


def test_a_shape_whose_node_fills_no_attribute_is_refused() -> None:
    from segstore import _speed  # type: ignore[attr-defined]

    class Record:
        __slots__ = ("a",)

    fills, fills_none = ("int8", 0, 0, 0, None, ()), ("int64", -1, 0, 0, None, ())
    with pytest.raises(ValueError, match="int64: a node of a record fills an attribute"):
        _speed.Shape(Record, 5, ("a",), (fills, fills_none))
