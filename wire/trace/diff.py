"""Compares two traces: the first frame of each stream that differs, field by field.

Connections are matched in order of first appearance, whatever their numbers; each direction of a connection is a stream
of frames. Times, and the data recorded when a connection starts or ends, are not compared.

Invariants: two traces have no difference if and only if every stream has the same bytes, split into the same records;
memory is bounded by how far one trace is ahead of the other in a stream, and by `max_waiting_bytes`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.inspect import describe
from segstore.wire.trace.blocks import Direction, Record, RecordKind, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_WAITING_BYTES: Final = 512 * 1024 * 1024
"""Default limit on records buffered until the other trace has caught up."""

_RECORD_BYTES: Final = 256
"""Approximate overhead of a record."""
_DERIVED: Final = ("length", "count", "total")


class TracesTooFarApart(TraceError):
    """One trace is too far ahead of the other for a comparison. Attribute: limit (bytes)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the order of the two traces differs by more than {limit} bytes; compare them by "
            "connection, after `trace filter -f 'connection = …'`"
        )
        self.limit = limit


class FieldDifference(NamedTuple):
    """A field in which two frames differ; None on a side without it. secret: whether values are withheld."""

    field: str
    left: Any
    right: Any
    secret: bool


class Difference(NamedTuple):
    """The first record in which a stream differs.

    connection: from 1, in order of appearance. number: from 1, within the stream. left, right: None if the stream has
    ended on that side. fields: differing fields of two frames. left_over, right_over: number of records that follow.
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
    """Returns the first difference of each stream that has one, in order of connections.

    Reads both traces in parallel; a record is buffered until its counterpart has been read. Raises TracesTooFarApart.
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
    """The connection numbering of one of the two traces."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._used: list[bool] = []

    def number(self, record: Record) -> int:
        """Returns the number of a record's connection, from 0, in order of appearance."""
        place = self._places.get(record.connection)
        # A reopened number is a new connection, unless the old one has no records yet.
        if place is None or (record.kind is RecordKind.OPEN and self._used[place]):
            place = self._places[record.connection] = len(self._used)
            self._used.append(False)
        if record.kind in (RecordKind.FRAME, RecordKind.BYTES):
            self._used[place] = True
        return place


@dataclass(slots=True)
class _Pair:
    """A stream in both traces: its record counts, the records still unmatched, and the first difference."""

    counts: list[int] = field(default_factory=lambda: [0, 0])
    _waiting: deque[Record] = field(default_factory=deque)
    _whose: int = 0
    _found: tuple[int, Record, Record] | None = None

    def add(self, side: int, record: Record) -> int:
        """Adds the next record of one side; returns the change in buffered bytes."""
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

    def difference(self) -> tuple[int, Record | None, Record | None, tuple[FieldDifference, ...]] | None:
        """Returns the first difference, with its number, both records and their fields."""
        if self._found is not None:
            number, one, other = self._found
            return number, one, other, compare_frames(one.data, other.data)
        if not self._waiting:
            return None
        first, number = self._waiting[0], 1 + min(self.counts)
        return (number, None, first, ()) if self._whose else (number, first, None, ())


def _size(record: Record) -> int:
    return len(record.data) + _RECORD_BYTES


def compare_frames(left: bytes, right: bytes) -> tuple[FieldDifference, ...]:
    """Returns the fields in which two frames differ, in wire order, as far as both can be read.

    Lengths, counts and bytes outside of fields are reported only if nothing else differs. Secret values are withheld.
    """
    one = {span.field: span for span in describe(left).spans}
    other = {span.field: span for span in describe(right).spans}
    found = []
    for name in dict.fromkeys((*one, *other)):
        mine, its = one.get(name), other.get(name)
        raw = [side[span.offset : span.offset + span.length] for side, span in ((left, mine), (right, its)) if span]
        if len(raw) == 2 and raw[0] == raw[1]:
            continue
        values = [None if span is None else _shown(span.value, span.secret) for span in (mine, its)]
        secret = any(span is not None and span.secret for span in (mine, its))
        found.append(FieldDifference(name, values[0], values[1], secret))
    telling = tuple(each for each in found if each.field and each.field.rpartition(".")[2] not in _DERIVED)
    return telling or tuple(found)


def _shown(value: Any, secret: bool) -> Any:
    return f"<{len(value)} characters>" if secret and isinstance(value, str) else None if secret else value
