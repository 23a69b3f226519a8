"""Where two traces part: the first frame of each stream that differs, field by field.

Connections are compared in the order in which they first appear, whatever their numbers; each direction of one is a
stream of frames. Times, and what is noted when a connection begins or ends, are not compared.

Invariant: two traces have no difference exactly if every stream has the same bytes, cut into the same records.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.describe import describe
from segstore.wire.trace_blocks import Direction, Record, RecordKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Difference", "FieldDifference", "compare_frames", "differences"]

_DERIVED: Final = ("length", "count", "total")


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


def differences(left: Iterable[Record], right: Iterable[Record]) -> Iterator[Difference]:
    """The first difference of each stream that has one, in the order of connections."""
    one, other = _streams(left), _streams(right)
    for number in range(max(len(one), len(other))):
        for direction in Direction:
            mine = one[number][direction] if number < len(one) else []
            its = other[number][direction] if number < len(other) else []
            found = _first(number + 1, direction, mine, its)
            if found is not None:
                yield found


def _streams(records: Iterable[Record]) -> list[tuple[list[Record], list[Record]]]:
    places: dict[int, int] = {}
    streams: list[tuple[list[Record], list[Record]]] = []
    for record in records:
        place = places.get(record.connection)
        # A number that is opened again is another connection, unless nothing has happened on it yet.
        if place is None or (record.kind is RecordKind.OPEN and any(streams[place])):
            place = places[record.connection] = len(streams)
            streams.append(([], []))
        if record.kind in (RecordKind.FRAME, RecordKind.BYTES):
            streams[place][record.direction].append(record)
    return streams


def _first(connection: int, direction: Direction, left: list[Record], right: list[Record]) -> Difference | None:
    for index, (one, other) in enumerate(zip_longest(left, right)):
        if one is not None and other is not None and (one.data, one.kind) == (other.data, other.kind):
            continue
        fields = compare_frames(one.data, other.data) if one is not None and other is not None else ()
        return Difference(
            connection, direction, index + 1, one, other, fields, max(0, len(left) - index), max(0, len(right) - index)
        )
    return None


def compare_frames(left: bytes, right: bytes) -> tuple[FieldDifference, ...]:
    """The fields in which two frames differ, in wire order, as far as both can be read.

    Lengths and counts are told only if nothing else differs. Values of secrets are withheld.
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
    telling = tuple(each for each in found if each.field.rpartition(".")[2] not in _DERIVED)
    return telling or tuple(found)


def _shown(value: Any, secret: bool) -> Any:
    return f"<{len(value)} characters>" if secret and isinstance(value, str) else None if secret else value
