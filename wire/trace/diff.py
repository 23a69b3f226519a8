"""Compares two traces: the first frame of each stream that differs, field by field.

Connections are compared in the order in which they first appear, whatever their numbers; each direction of one is a
stream of frames. Times, and what is noted when a connection begins or ends, are not compared.

Invariants: two traces have no difference exactly if every stream has the same bytes, cut into the same records; memory
is bounded by how far one trace is ahead of the other in a stream, and by `max_waiting_bytes`, whatever their lengths.
"""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.inspect import describe
from segstore.wire.trace.blocks import Direction, Record, RecordKind, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_WAITING_BYTES: Final = 512 * 1024 * 1024
"""Of records that are kept until the other trace has come as far."""

_RECORD_BYTES: Final = 256
"""What a record takes beside its data, roughly."""
_DERIVED: Final = ("length", "count", "total")


class TracesTooFarApart(TraceError):
    """One trace is so far ahead of the other that they cannot be held against each other. Attribute: limit (bytes)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the two traces are more than {limit} bytes apart in their order, more than is kept; compare them by "
            "connection, after `trace filter -f 'connection = …'`"
        )
        self.limit = limit


class FieldDifference(NamedTuple):
    """One field in which two frames differ; None on the side that does not have it, `secret` if values are withheld."""

    field: str
    left: Any
    right: Any
    secret: bool


class Difference(NamedTuple):
    """The first record in which a stream differs.

    connection: from 1, in the order of appearance. number: from 1, within the stream. left, right: None where the
    stream has ended on that side. fields: what differs in two frames. left_over, right_over: how many follow.
    """

    connection: int
    direction: Direction
    number: int
    left: Record | None
    right: Record | None
    fields: tuple[FieldDifference, ...]
    left_over: int
    right_over: int


def differences(
    left: Iterable[Record], right: Iterable[Record], *, max_waiting_bytes: int = MAX_WAITING_BYTES
) -> Iterator[Difference]:
    """The first difference of each stream that has one, in the order of connections.

    Both traces are read side by side, and a record is kept until the other trace has come to the one that it is held
    against. Raises TracesTooFarApart.
    """
    sides = (_Side(), _Side())
    streams: list[list[_Pair]] = []
    waiting = 0
    for both in zip_longest(left, right):
        for side, record in enumerate(both):
            if record is None:
                continue
            number = sides[side].number(record)
            if number == len(streams):
                streams.append([_Pair() for _ in Direction])
            if record.kind in (RecordKind.FRAME, RecordKind.BYTES):
                waiting += streams[number][record.direction].add(side, record)
        if waiting > max_waiting_bytes:
            raise TracesTooFarApart(max_waiting_bytes)
    for number, pairs in enumerate(streams, 1):
        for direction, pair in zip(Direction, pairs, strict=True):
            found = pair.difference()
            if found is not None:
                at, one, other, fields = found
                over = [pair.counts[0] - at + 1, pair.counts[1] - at + 1]
                yield Difference(number, direction, at, one, other, fields, max(0, over[0]), max(0, over[1]))


class _Side:
    """One of the two traces: which connection is which."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._used: list[bool] = []

    def number(self, record: Record) -> int:
        """The number of a record's connection, from 0, in the order of appearance."""
        place = self._places.get(record.connection)
        # A number that is opened again is another connection, unless nothing has happened on it yet.
        if place is None or (record.kind is RecordKind.OPEN and self._used[place]):
            place = self._places[record.connection] = len(self._used)
            self._used.append(False)
        if record.kind in (RecordKind.FRAME, RecordKind.BYTES):
            self._used[place] = True
        return place


class _Pair:
    """A stream in both traces: how much there was of it, what of one waits for the other, and where they part."""

    __slots__ = ("_found", "_waiting", "_whose", "counts")

    def __init__(self) -> None:
        self.counts = [0, 0]
        self._waiting: deque[Record] = deque()
        self._whose = 0
        self._found: tuple[int, Record | None, Record | None] | None = None

    def add(self, side: int, record: Record) -> int:
        """The next record on one side; how many bytes wait more than before, or less."""
        self.counts[side] += 1
        if self._found is not None:
            return 0
        if not self._waiting or self._whose == side:
            self._whose = side
            self._waiting.append(record)
            return _size(record)
        mate = self._waiting.popleft()
        freed = _size(mate)
        if (record.data, record.kind) != (mate.data, mate.kind):
            self._found = self.counts[side], *((mate, record) if side else (record, mate))
            freed += sum(map(_size, self._waiting))
            self._waiting.clear()
        return -freed

    def difference(
        self,
    ) -> tuple[int, Record | None, Record | None, tuple[FieldDifference, ...]] | None:
        """The number of the first record in which they differ, both, and their fields."""
        if self._found is not None:
            number, one, other = self._found
            assert one is not None
            assert other is not None
            return number, one, other, compare_frames(one.data, other.data)
        if not self._waiting:
            return None
        first, number = self._waiting[0], 1 + min(self.counts)
        return (number, None, first, ()) if self._whose else (number, first, None, ())


def _size(record: Record) -> int:
    return len(record.data) + _RECORD_BYTES


def compare_frames(left: bytes, right: bytes) -> tuple[FieldDifference, ...]:
    """The fields in which two frames differ, in wire order, as far as both can be read.

    Lengths, counts and bytes that no field has are told only if nothing else differs. Values of secrets are withheld.
    """
    one = {span.field: span for span in describe(left).spans}
    other = {span.field: span for span in describe(right).spans}
    found = []
    for field in dict.fromkeys((*one, *other)):
        mine, its = one.get(field), other.get(field)
        raw = [side[span.offset : span.offset + span.length] for side, span in ((left, mine), (right, its)) if span]
        if len(raw) == 2 and raw[0] == raw[1]:
            continue
        values = [None if span is None else _shown(span.value, span.secret) for span in (mine, its)]
        secret = any(span is not None and span.secret for span in (mine, its))
        found.append(FieldDifference(field, values[0], values[1], secret))
    telling = tuple(each for each in found if each.field and each.field.rpartition(".")[2] not in _DERIVED)
    return telling or tuple(found)


def _shown(value: Any, secret: bool) -> Any:
    return f"<{len(value)} characters>" if secret and isinstance(value, str) else None if secret else value
