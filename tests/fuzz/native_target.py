"""What `tests.fuzz.native` runs for an input: all that C answers is what Python answers."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from segstore.client.stream import frame_event
from segstore.pipeline.trace.batches import in_order, make_filler
from segstore.pipeline.trace.columns import ALL_COLUMNS, select
from segstore.pipeline.trace.files import Located, RecordChunk
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.rows import RowMaker
from segstore.wire import (
    AppendBlock,
    Command,
    DataAppended,
    FrameDecoder,
    KeepAlive,
    SetupAppend,
    WireError,
    decode,
    encode,
)
from segstore.wire.blocks import WHOLE_APPENDS, AppendBlockDecoder, BlockWriter, acknowledger, split_events
from segstore.wire.codec import codec
from segstore.wire.codec.generate import FrameRows
from segstore.wire.hashing import murmur3_128_low
from segstore.wire.trace import Direction, Record, RecordKind
from segstore.wire.trace.framing import frames_into, marked, numbers, whole_frames
from tests.wire.blocks.served import served
from tests.wire.codec.speed.columns import columns_of, values_in

if TYPE_CHECKING:
    import random

__all__ = ["run_alone", "run_input"]

ASK = codec.SPEED._codec
NIL_ID = uuid.UUID(int=0)
ACKNOWLEDGE = acknowledger(17)
LOOP, ACKS_LOOP = (
    codec.SPEED.frames(frozenset({AppendBlock.code}), joined=joined, in_rows=in_rows, most_elements=None)
    for joined, in_rows in ((WHOLE_APPENDS, None), (None, DataAppended))
)
IN_COLUMNS = [name for name in ALL_COLUMNS if name not in ("file", "block", "time", "fields", "events")]
ODD: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 1 << 31, 1 << 63, 1 << 128, 1 << 24, "", "text", "\0", "é", "x" * 70_000, b"", b"data"),
    *(bytearray(b"x"), memoryview(b"12345678")[::2], memoryview(b"1234").cast("I"), (), [], (None,), (1, "x"), [1]),
    *(object(), KeepAlive(), int, ("a", "b"), (1 << 63,), uuid.UUID(int=1), bytes(3000)),
)


def run_alone(data: bytes) -> None:
    """Lets C read and write an input."""
    value = ASK.decode(data)
    if value is not None:
        ASK.encode(value)
    if data[-1:] < b"@":  # for a fourth of them, the same ones each time
        view = memoryview(data)
        second = 16 + int.from_bytes(data[4:8], "big")
        writers = {data[at : at + 16]: BlockWriter("a", NIL_ID) for at in (8, second)}
        slow = unread if len(data) & 1 else None
        LOOP(view, 0, len(data), len(data), slow, [], 64, 4096, writers, False)
        ACKS_LOOP(view, 0, len(data), len(data), unread, [], 64, 4096, None, False)


def unread(*_where: Any) -> None:
    """Stands in for Python's decoder: returns None."""


def run_input(data: bytes, chance: random.Random) -> None:
    """Compares what C and Python make of an input. chance: decides the same for the same input."""
    size = 8 + int.from_bytes(data[4:8], "big")
    frame = data[:size]
    found = ASK.decode(frame)
    if found is not None:
        expected = decode(frame, codec="python")
        assert type(found) is type(expected)
        assert found == expected
        assert ASK.decode(bytearray(frame)) == ASK.decode(memoryview(frame)) == found
        _written(found)
        _odd(found, chance)
    if chance.random() < 0.2:
        _filled(data, chance)
    if chance.random() < 0.2:  # Python, which is slow to refuse, reads all of them, too
        _streams(data, chance)
    _shortcuts(data, chance)


def _shortcuts(data: bytes, chance: random.Random) -> None:
    """Calls functions with pieces of the input, some of them odd, in C and in Python."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    pieces: list[Any] = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if chance.random() < 0.2:
        pieces[chance.randrange(len(pieces))] = chance.choice(ODD)
    few, number = chance.randrange(9), chance.choice((0, 1, -1, 5000, 1 << 40, -(1 << 63), chance.choice(ODD)))
    start = chance.randrange(len(data) + 9)
    framed = b"".join(frame_event(piece) for piece in pieces if type(piece) is bytes) + data
    kind = chance.choice((bytes, bytearray, memoryview, lambda data: memoryview(data)[::2]))
    both(split_events, lambda: (kind(framed), start, few * 9, 5, lambda *each: each, None, []))
    both(murmur3_128_low, lambda: (pieces[0], number))
    bounds = [*cuts, len(data)]
    recorded = b"".join(numbers(at, few + at % 2, stop) for at, stop in enumerate(bounds))
    if chance.random() < 0.2:
        recorded = chance.choice((recorded[start % len(recorded) :], numbers(5, few - 4, start), *ODD))
    at, most = chance.choice((0, *cuts, start)), chance.choice((64, 1 << 24, number))
    both(whole_frames, lambda: (data, at, most, marked(data[:few])))
    runs, rows = chance.choice((recorded, numbers(1, 2, few))), chance.choice((9, few))
    both(frames_into, lambda: (bytearray(26 * 9), rows, few // 2, 7, runs, bytes(4 * few)))


def behind(function: Any) -> Any:
    """The function in Python."""
    return getattr(function, "__wrapped__", function)


def both(function: Any, arguments: Any) -> None:
    """Calls the function in C and in Python, each with arguments of its own."""
    found = []
    for call in (function, behind(function)):
        given = arguments()
        result = _outcome(call, *given)
        if isinstance(result, list) and all(isinstance(each, bytes) for each in result):
            result = b"".join(result)
        found.append((result, [repr(each) for each in given if isinstance(each, list)]))
    assert found[0] == found[1], function


def _written(value: Command) -> None:
    written, parts = ASK.encode(value), ASK.encode_parts(value)
    if written is not None:
        assert written == encode(value, codec="python")
    assert parts is None or b"".join(parts) == written


def _odd(value: Command, chance: random.Random) -> None:
    """Writes the value with something odd in one attribute."""
    if not value.__struct_fields__:
        return
    bad, name = copy.copy(value), chance.choice(value.__struct_fields__)
    getattr(type(bad), name).__set__(bad, chance.choice(ODD))
    written, parts = ASK.encode(bad), ASK.encode_parts(bad)
    if written is not None:
        assert written == encode(bad, codec="python")
    assert parts is None or b"".join(parts) == written


def _streams(data: bytes, chance: random.Random) -> None:
    """Reads a stream in two pieces, with C and with Python."""
    options: dict[str, Any] = {
        "acks_in_rows": chance.random() < 0.5,
        "unknown": chance.choice(("keep", "refuse")),
        "most_elements": chance.choice((None, 1)),
        "max_frame_bytes": chance.choice((0x00FF_FFFF, 300, 64)),
    }
    cut, most = chance.randrange(len(data) + 1), chance.choice((None, None, 1))
    found = _fed("c", data, cut, None if options["acks_in_rows"] else most, options)
    assert found == _fed("python", data, cut, None if options["acks_in_rows"] else most, options)
    ids = {each[1].writer_id for each in found if isinstance(each, tuple) and isinstance(each[1], AppendBlock)}
    ways = {"cuts": [cut], "limit": options["max_frame_bytes"]}
    assert served(data, _known(ids), codec="c", most=most or 256, **ways) == served(
        data, _known(ids), codec="python", runs=False, **ways
    )


def _known(ids: set[uuid.UUID]) -> AppendBlockDecoder:
    """A decoder that knows these writers, but for every fourth."""
    blocks = AppendBlockDecoder()
    blocks.feed_all(SetupAppend(1, each, "a", "") for each in sorted(ids) if each.int % 4)
    return blocks


def _filled(data: bytes, chance: random.Random) -> None:
    """Fills columns from what looks like frames, as records that end anywhere, and compares them with Python's rows."""
    records, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big") + 8 if chance.random() < 0.9 else chance.randrange(30)
        kind = RecordKind.FRAME if chance.random() < 0.9 else chance.choice([*RecordKind])
        records.append(Record(at - 9, at, chance.choice([*Direction]), kind, data[at : at + size]))
        at += max(size, 1)
    names = [name for name in IN_COLUMNS if chance.random() < 0.5 or name in ("error", "request_id")]
    columns = in_order(select(names))
    one = RowMaker(columns, tokens=chance.random() < 0.5)
    chosen = chance.choice((Chosen(), Chosen(until_ns=40), Chosen(frozenset(("UNKNOWN",)))))
    fill = make_filler(one, chosen)
    located = [Located(0, number, record) for number, record in enumerate(records)]
    given = columns_of(records)
    count, filled = fill.fill(*given, 0, len(records), lambda number: one.row("", located[number]))
    found = [values_in(buffers, count, column.type) for buffers, column in zip(filled, columns, strict=True)]
    rows = RowMaker(columns, tokens=one.tokens, chosen=chosen).rows(RecordChunk("", 0, None, located))
    assert list(zip(*found, strict=True)) == list(rows)


def _fed(name: codec.Codec, data: bytes, cut: int, most: int | None, options: dict[str, Any]) -> list[Any]:
    frames, found = FrameDecoder(codec=name, **options), list[Any]()
    try:
        for piece in (data[:cut], memoryview(data)[cut:]):
            for each in frames.feed(piece, most=most):
                found += _in_full(each)
            found.append(frames.position)
    except WireError as error:
        return [*found, *(kind for each in error.decoded for kind, _ in _in_full(each)), str(error)]
    return [*found, frames.buffered_bytes]


def _in_full(item: Any) -> list[tuple[type, Command]]:
    if isinstance(item, FrameRows):
        rows = [DataAppended(id_, uuid.UUID(bytes=w), n, p, at) for w, n, p, id_, at in item.fields]
        return [(DataAppended, row) for row in rows]
    return [(type(item), item)]


def _outcome(call: Any, *arguments: Any) -> Any:
    """What a call returns or raises."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 — of whatever kind, it is to be the same
        return type(error), str(error)
