"""Compares two traces: the first frame of each stream that differs, field by field.

Connections are matched in order of first appearance, whatever their numbers; each direction of a connection is a stream
of frames. Times, and the data recorded when a connection starts or ends, are not compared. A `Translation` compares two
runs of one program, whose ids differ.

Controller calls are matched in order, with a translation by equal requests: calls that are in flight together may come
in another order. Their metadata and peers are not compared.

If one trace has a record more, at the first difference or behind it, the comparison reports this instead of differences
of later records: the next `_MOST_ALIGNED` records of the traces are aligned by their commands, segments and payloads.

Invariants: without a translation, two traces have no difference if and only if every stream has the same bytes, split
into the same records, and the calls are the same in order; a record is held until the other trace has reached its
counterpart, and no longer.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import chain, zip_longest
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from segstore.wire.codec import decode
from segstore.wire.commands import Hello, KeepAlive
from segstore.wire.errors import WireError
from segstore.wire.inspect import DifferingPlace, describe, differing_places
from segstore.wire.trace.blocks import Direction, Record, RecordKind
from segstore.wire.trace.call_fields import CallField, Pairing, facts_of, fields_of, key_of_call, take_ids
from segstore.wire.trace.calls import CONTROLLER, Call
from segstore.wire.trace.exchanges import Exchange, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

VARYING_FIELDS: Final = frozenset({"last_modified", "server_stack_trace"})
"""Fields that differ between two correct stores, or between two runs of a store."""

_KEEP_ALIVE: Final = struct.pack(">i", KeepAlive.code)
_HELLO: Final = struct.pack(">i", Hello.code)
_MOST_ALIGNED: Final = 256
_DERIVED: Final = ("length", "count", "total")


class FieldDifference(NamedTuple):
    """A field in which two frames differ; None on a side without it. secret: whether values are withheld. is_data:
    whether values are bytes of a payload, as hex.
    """

    field: str
    left: Any
    right: Any
    secret: bool
    is_data: bool = False

    def places(self) -> Iterator[DifferingPlace]:
        """The places in which the values differ, as text for people. Not for secret ones."""
        sides = (bytes.fromhex(side) if self.is_data and side is not None else side for side in (self.left, self.right))
        return differing_places(self.field, *sides)


class Difference(NamedTuple):
    """The first record in which a stream differs, or the calls of a method.

    connection: from 1, in order of appearance; `CONTROLLER` for a call. number: from 1, within the stream; of a call,
    its place among the calls of the left trace if that has it, else of the right trace. left, right: None if the record
    or call is missing on that side. fields: differing fields. left_over, right_over: number of records that follow; of
    calls, number of calls of the method that differ, too. places: the numbers of both records in their traces, from 1;
    0 without a record. more: the records, counted by name, that the left and the right trace have more: missing here on
    the other side, else in the rest of the stream.
    """

    connection: int
    direction: Direction
    number: int
    left: Record | None
    right: Record | None
    fields: tuple[FieldDifference, ...]
    left_over: int
    right_over: int
    places: tuple[int, int]
    more: tuple[dict[str, int], dict[str, int]] = ({}, {})

    @property
    def more_text(self) -> str:
        """Describes the records that only trace A or B has; "" if no trace has more."""
        return "; ".join(
            f"{trace} has "
            + ", ".join(f"{'one' if count == 1 else count} more {name}" for name, count in records.items())
            for trace, records in zip("AB", self.more, strict=True)
            if records
        )


class Translation:
    """Makes two runs of one program comparable: an id may differ if it always stands for the same id of the other run.

    Request ids are paired within a connection, other ids in the whole trace (see `Pairing`).
    KeepAlives are left out, as clocks send them. ignore: names of fields that may differ in any way.
    ids: the pairs of ids that are not request ids.
    """

    def __init__(self, ignore: frozenset[str] = VARYING_FIELDS) -> None:
        self.ids: Pairing[str] = Pairing()
        self._ignore = ignore
        self._request_ids: Pairing[tuple[int, str]] = Pairing()

    @staticmethod
    def compares(record: Record) -> bool:
        """Whether a record takes part."""
        return record.kind is not RecordKind.FRAME or not record.data.startswith(_KEEP_ALIVE)

    def key(self, record: Record) -> Any:
        """Returns the facts that a request shares with its equal in the other run; None if they do not identify it."""
        if record.direction or record.kind is not RecordKind.FRAME or record.data.startswith(_HELLO):
            return None
        return tuple(
            (span.field, take_ids(str(span.value))[0])
            for span in describe(record.data).spans
            if span.kind != "data" and not span.secret and span.field not in ("request_id", *self._ignore)
        )

    def call_key(self, call: Call) -> tuple[Any, tuple[str, ...]]:
        """Returns the facts that a call shares with its equal in the other run, and its ids."""
        return key_of_call(call.rpc, {name: field for name, field in fields_of(call).items() if self.counts(name)})

    def counts(self, path: str) -> bool:
        """Whether the field of a call is compared."""
        return self._ignore.isdisjoint(step.partition("[")[0] for step in path.split("."))

    def pair(self, left: str, right: str) -> None:
        """Pairs two ids if they fit."""
        if self.ids.fits(left, right):
            self.ids.pair(left, right)

    def call_fields(self, left: Call, right: Call) -> tuple[FieldDifference, ...]:
        """Returns the fields of two calls that differ beyond ids and times. The ids in all other fields are paired."""
        one, other = (
            {name: fact for name, fact in facts_of(call).items() if self.counts(name)} for call in (left, right)
        )
        differing = differing_fields(one, other, self.ids.fits)
        differ = {difference.field for difference in differing}
        for name in one:
            for pair in () if name in differ else zip(one[name].ids, other[name].ids, strict=True):
                self.pair(*pair)
        return differing

    def fields(self, connection: int, left: bytes, right: bytes) -> tuple[FieldDifference, ...]:
        """The fields that differ beyond ids. If none does, the ids are paired."""
        pairs: list[tuple[Pairing[Any], Any, Any]] = []
        quickly = _top_fields(left, right)
        if not quickly or not all(self._same(connection, difference, pairs) for difference in quickly):
            pairs.clear()
            fields = (field for field in compare_frames(left, right) if not self._same(connection, field, pairs))
            if differing := tuple(fields):
                return differing
        for pairing, one, other in pairs:
            pairing.pair(one, other)
        return ()

    def equal(self, frame: bytes) -> None:
        """Pairs the ids of a frame that both runs have with themselves."""
        try:
            command = decode(frame, unknown="keep")
        except WireError:
            return
        for text in (str(getattr(command, "writer_id", "")), *segments_of(command)):
            for identifier in take_ids(text)[1]:
                self.pair(identifier, identifier)

    def _same(self, connection: int, field: FieldDifference, pairs: list[tuple[Pairing[Any], Any, Any]]) -> bool:
        if field.field.partition(".")[0] in self._ignore:
            return True
        if field.secret or field.left is None or field.right is None:
            return False
        if field.field == "request_id":
            new: list[tuple[Pairing[Any], Any, Any]] = [
                (self._request_ids, (connection, str(field.left)), (connection, str(field.right)))
            ]
        elif isinstance(field.left, str) and isinstance(field.right, str):
            texts = (field.left, field.right)
            if field.is_data:
                texts = tuple(bytes.fromhex(text).decode("latin-1") for text in texts)  # type: ignore[assignment]
            (rest, mine), (other, its) = map(take_ids, texts)
            if rest != other or len(mine) != len(its):  # a name may contain what stands for an id
                return False
            new = [(self.ids, *pair) for pair in zip(mine, its, strict=True)]
        else:
            return False
        pairs += new
        return all(pairing.fits(one, other) for pairing, one, other in new)


def _top_fields(left: bytes, right: bytes) -> list[FieldDifference]:
    """The fields of two frames that differ, found fast; empty if only `compare_frames` can determine them."""
    try:
        one, other = decode(left), decode(right)
    except WireError:
        return []
    if type(one) is not type(other) or len(left) != len(right):
        return []
    fields = []
    for name in one.__struct_fields__:
        mine, its = getattr(one, name), getattr(other, name)
        if mine != its:
            is_data = isinstance(mine, (bytes, memoryview))
            if is_data:
                mine, its = mine.hex(), its.hex()
            elif isinstance(mine, UUID):
                mine, its = str(mine), str(its)
            fields.append(FieldDifference(name, mine, its, name in one.secrets, is_data))
    return fields


def differences(
    left: Iterable[Record], right: Iterable[Record], *, translation: Translation | None = None
) -> Iterator[Difference]:
    """Returns the first difference of each method's calls, then of each stream, in order of connections.

    translation: for two runs of one program; connections are then matched by their first requests, and in order of
    appearance where those are ambiguous. Reads both traces in parallel; a record is held until its counterpart has been
    read.
    """
    calls, connections = _Calls(translation), _Connections(translation)
    for place, both in enumerate(zip_longest(left, right), 1):
        for side, record in enumerate(both):
            if record is not None:
                compared: _Calls | _Connections = calls if record.kind is RecordKind.CALL else connections
                compared.add(side, _Placed(place, record))
    connections.match_rest()
    yield from calls.differences()
    yield from connections.differences()


class _Placed(NamedTuple):
    """A record and its number in the trace, from 1."""

    place: int
    record: Record


def _difference(
    connection: int,
    direction: Direction,
    number: int,
    left: _Placed | None,
    right: _Placed | None,
    fields: tuple[FieldDifference, ...] = (),
) -> Difference:
    one, other = (None if side is None else side.record for side in (left, right))
    places = (left.place if left else 0, right.place if right else 0)
    return Difference(connection, direction, number, one, other, fields, 0, 0, places)


@dataclass(slots=True)
class _Connection:
    """A connection of one trace. number: from 1, in order of appearance. held: records until it is matched.

    is_known: whether it can be found by its key.
    """

    number: int
    held: list[_Placed] = field(default_factory=list)
    pairs: list[_Pair] | None = None
    is_known: bool = False


class _Side:
    """The connections of either trace. unmatched: the connections that can still be matched, by key."""

    def __init__(self) -> None:
        self._all: list[_Connection] = []
        self._current: dict[int, _Connection] = {}
        self.unmatched: dict[Any, deque[_Connection]] = {}

    def connection(self, record: Record) -> _Connection:
        """Returns the connection of a record."""
        current = self._current.get(record.connection)
        # A reopened number is a new connection, unless the old one has no records yet.
        if current is None or (record.kind is RecordKind.OPEN and (current.pairs is not None or current.held)):
            current = self._current[record.connection] = _Connection(len(self._all) + 1)
            self._all.append(current)
        return current

    def left_over(self) -> list[_Connection]:
        """The connections that were not matched and have records."""
        return [connection for connection in self._all if connection.held]


class _Connections:
    """Compares the connections of two traces."""

    def __init__(self, translation: Translation | None) -> None:
        self._translation = translation
        self._sides = (_Side(), _Side())
        self._streams: list[tuple[int, list[_Pair]]] = []

    def add(self, side: int, placed: _Placed) -> None:
        """Adds the next record of one side."""
        record, translation = placed.record, self._translation
        connection = self._sides[side].connection(record)
        if record.kind not in (RecordKind.FRAME, RecordKind.BYTES):
            return
        if translation is not None and not translation.compares(record):
            return
        if connection.pairs is not None:
            connection.pairs[record.direction].add(side, placed)
            return
        connection.held.append(placed)
        key = connection.number if translation is None else translation.key(record)
        if key is None or connection.is_known:
            return
        connection.is_known = True
        mates = self._sides[1 - side].unmatched.get(key)
        if mates:
            mate = mates.popleft()
            self._match(*((mate, connection) if side else (connection, mate)))
        else:
            self._sides[side].unmatched.setdefault(key, deque()).append(connection)

    def _match(self, *mates: _Connection | None) -> None:
        """Compares two connections, starting with the records that they hold."""
        number = next(mate.number for mate in mates if mate is not None)
        pairs = [_Pair(number, direction, self._translation) for direction in Direction]
        self._streams.append((number, pairs))
        for side, connection in enumerate(mates):
            if connection is not None:
                connection.pairs, held, connection.held = pairs, connection.held, []
                for placed in held:
                    pairs[placed.record.direction].add(side, placed)

    def match_rest(self) -> None:
        """Compares the remaining connections, in order, once both traces have ended."""
        for left_over in zip_longest(*(side.left_over() for side in self._sides)):
            self._match(*left_over)

    def differences(self) -> Iterator[Difference]:
        """The first difference of each stream."""
        for _, pairs in sorted(self._streams, key=itemgetter(0)):
            yield from (difference for pair in pairs if (difference := pair.difference()) is not None)


_Key = tuple[str, int]


def _key_of(record: Record) -> _Key:
    """Returns a record's name, and a hash of its texts and payloads without ids, the same in another run."""
    spans = describe(record.data, unknown="keep").spans if record.kind is RecordKind.FRAME else ()
    texts = (
        bytes.fromhex(span.value).decode("latin-1") if span.kind == "data" else str(span.value)
        for span in spans
        if span.kind != "plain" and not span.secret and span.value is not None
    )
    return Exchange(record, 0).name, hash(tuple(take_ids(text)[0] for text in texts))


def _appends(names: Counter[str]) -> dict[str, int]:
    """Counts by name; an append that came as a block and its end is counted once, as its end."""
    if names["APPEND_BLOCK"] == names["APPEND_BLOCK_END"]:
        del names["APPEND_BLOCK"]
    return {name: count for name, count in names.items() if count}


@dataclass(slots=True)
class _Pair:
    """A stream in both traces: its record counts, the records still unmatched, and the first difference.

    From the first difference on, the names of the records of either side are counted, and the keys of the first records
    are held to align them.
    """

    connection: int
    direction: Direction
    translation: Translation | None
    counts: list[int] = field(default_factory=lambda: [0, 0])
    _waiting: deque[_Placed] = field(default_factory=deque)
    _waiting_side: int = 0
    _found: tuple[int, _Placed, _Placed, tuple[FieldDifference, ...]] | None = None
    _names: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    _ahead: tuple[list[_Key], list[_Key]] = field(default_factory=lambda: ([], []))

    def add(self, side: int, placed: _Placed) -> None:
        """Adds the next record of one side."""
        self.counts[side] += 1
        if self._found is not None:
            self._count(side, placed)
            return
        if not self._waiting or self._waiting_side == side:
            self._waiting_side = side
            self._waiting.append(placed)
            return
        waited = self._waiting.popleft()
        record, mate = placed.record, waited.record
        if (record.data, record.kind) != (mate.data, mate.kind):
            one, other = (waited, placed) if side else (placed, waited)
            fields = self._fields(one.record, other.record)
            if self.translation is not None and not fields and record.kind is mate.kind is RecordKind.FRAME:
                return
            self._found = self.counts[side], one, other, fields
            self._count(side, placed)
            for earlier in (waited, *self._waiting):
                self._count(1 - side, earlier)
            self._waiting.clear()
        elif self.translation is not None and record.kind is RecordKind.FRAME:
            self.translation.equal(record.data)

    def _fields(self, one: Record, other: Record) -> tuple[FieldDifference, ...]:
        if self.translation is None:
            return compare_frames(one.data, other.data)
        return self.translation.fields(self.connection, one.data, other.data)

    def _count(self, side: int, placed: _Placed) -> None:
        self._names[side][Exchange(placed.record, 0).name] += 1
        if len(self._ahead[side]) < _MOST_ALIGNED:
            self._ahead[side].append(_key_of(placed.record))

    def difference(self) -> Difference | None:
        """Returns the first difference, and the records that one side has more; None if there is no difference."""
        if self._found is not None:
            number, one, other, fields = self._found
            longer = self._longer()
            if longer is None:
                left, right = self._names
                return self._difference(number, one, other, fields, (_appends(left - right), _appends(right - left)))
            first = other if longer[0] else one
        elif self._waiting:
            number, first = 1 + min(self.counts), self._waiting[0]
            names = Counter(Exchange(placed.record, 0).name for placed in self._waiting)
            longer = self._waiting_side, _appends(names)
        else:
            return None
        side, more = longer
        if side:
            return self._difference(number, None, first, (), ({}, more))
        return self._difference(number, first, None, (), (more, {}))

    def _difference(
        self,
        number: int,
        left: _Placed | None,
        right: _Placed | None,
        fields: tuple[FieldDifference, ...],
        more: tuple[dict[str, int], dict[str, int]],
    ) -> Difference:
        in_left, in_right = (max(0, count - number + 1) for count in self.counts)
        difference = _difference(self.connection, self.direction, number, left, right, fields)
        return difference._replace(left_over=in_left, right_over=in_right, more=more)

    def _longer(self) -> tuple[int, dict[str, int]] | None:
        """Returns the side whose next records the other side lacks, and their names; None if they only differ."""
        (tag, _, left, _, right), *_ = SequenceMatcher(None, *self._ahead, autojunk=False).get_opcodes()
        if tag not in ("delete", "insert"):
            return None
        side, length = (0, left) if tag == "delete" else (1, right)
        run, others = self._ahead[side][:length], Counter(self._ahead[1 - side])
        counts = Counter(self._ahead[side])
        if all(counts[key] <= others[key] for key in run):  # they come later
            return None
        return side, _appends(Counter(name for name, _ in run))


# --- calls ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Call:
    """A call of one trace: its request and its answer. number: from 1. mate: the same call of the other trace."""

    number: int
    rpc: str
    ids: tuple[str, ...] = ()
    records: list[_Placed | None] = field(default_factory=lambda: [None, None])
    mate: _Call | None = None


@dataclass(slots=True)
class _CallSide:
    """The calls of one trace. pending: unanswered calls, by the numbers in their records. waiting: calls without a
    mate.
    """

    count: int = 0
    pending: dict[int, _Call] = field(default_factory=dict)
    waiting: dict[Any, deque[_Call]] = field(default_factory=dict)

    def left_over(self) -> dict[str, list[_Call]]:
        """The calls without a mate, by method."""
        by_method: dict[str, list[_Call]] = {}
        for call in sorted(chain.from_iterable(self.waiting.values()), key=attrgetter("number")):
            by_method.setdefault(call.rpc, []).append(call)
        return by_method


class _Calls:
    """Compares the calls of two traces."""

    def __init__(self, translation: Translation | None) -> None:
        self._translation = translation
        self._sides = (_CallSide(), _CallSide())
        self._open: dict[_Call, None] = {}  # those of the left trace whose mate is known and an answer is not
        self._found: dict[tuple[str, Direction], Difference] = {}

    def add(self, side: int, placed: _Placed) -> None:
        """Adds the next record of one side."""
        record = placed.record
        here, call = self._sides[side], Call.unpack(record.data)
        own = here.pending.pop(call.number, None) if call is not None and record.direction else None
        if own is None:
            here.count += 1
            own = _Call(here.count, "" if call is None else call.rpc)
            if call is not None and not record.direction:
                here.pending[call.number] = own
            self._match(side, own, call, record.direction)
        own.records[record.direction] = placed
        if own.mate is None:
            return
        left, right = (own.mate, own) if side else (own, own.mate)
        if None in left.records or None in right.records:
            self._open[left] = None
        else:
            self._open.pop(left, None)
            self._compare(left, right)

    def _match(self, side: int, own: _Call, call: Call | None, direction: Direction) -> None:
        """Looks for the same call of the other trace."""
        key: Any = own.number
        if self._translation is not None:
            key = None
            if call is not None and not direction:
                key, own.ids = self._translation.call_key(call)
        others = self._sides[1 - side].waiting
        there = others.get(key, deque()) if key is not None else deque()
        mate = next((candidate for candidate in there if self._fit(side, own, candidate)), None)
        if mate is None:
            self._sides[side].waiting.setdefault(key, deque()).append(own)
            return
        there.remove(mate)
        if not there:
            del others[key]
        own.mate, mate.mate = mate, own
        for pair in zip(*((mate.ids, own.ids) if side else (own.ids, mate.ids)), strict=True):
            if self._translation is not None:
                self._translation.pair(*pair)

    def _fit(self, side: int, own: _Call, mate: _Call) -> bool:
        left, right = (mate, own) if side else (own, mate)
        return self._translation is None or all(map(self._translation.ids.fits, left.ids, right.ids))

    def _compare(self, left: _Call, right: _Call) -> None:
        for direction in Direction:
            one, other = left.records[direction], right.records[direction]
            fields = self._fields(one, other)
            if fields or (one is None) is not (other is None):
                self._differ(left.rpc, _difference(CONTROLLER, direction, left.number, one, other, fields))

    def _fields(self, one: _Placed | None, other: _Placed | None) -> tuple[FieldDifference, ...]:
        """The fields that differ beyond ids, whose pairs are then known."""
        if one is None or other is None:
            return ()
        left, right = Call.unpack(one.record.data), Call.unpack(other.record.data)
        if self._translation is not None and left is not None and right is not None:
            return self._translation.call_fields(left, right)
        return differing_fields(_facts(one.record, left), _facts(other.record, right), None)

    def _differ(self, rpc: str, difference: Difference) -> None:
        first = self._found.setdefault((rpc, difference.direction), difference)
        if first is not difference:
            over = (first.left_over + (difference.left is not None), first.right_over + (difference.right is not None))
            self._found[rpc, difference.direction] = first._replace(left_over=over[0], right_over=over[1])

    def differences(self) -> list[Difference]:
        """The first difference of each method, of requests and of answers, once both traces have ended."""
        for call in self._open:
            assert call.mate is not None
            self._compare(call, call.mate)
        left, right = (side.left_over() for side in self._sides)
        for rpc in dict.fromkeys((*left, *right)):
            for one, other in zip_longest(left.get(rpc, ()), right.get(rpc, ())):
                if one is not None and other is not None:
                    self._compare(one, other)
                    continue
                only = one or other
                place = next(direction for direction in Direction if only.records[direction] is not None)
                mine, its = (only.records[place], None) if other is None else (None, only.records[place])
                self._differ(rpc, _difference(CONTROLLER, place, only.number, mine, its))
        return sorted(self._found.values(), key=lambda each: (each.number, each.direction))


def _facts(record: Record, call: Call | None) -> dict[str, CallField]:
    return {"": CallField(record.data.hex(), (), record.data)} if call is None else facts_of(call)


def compare_frames(left: bytes, right: bytes) -> tuple[FieldDifference, ...]:
    """Returns the fields in which two frames differ, in wire order, as far as both can be read.

    Lengths, counts and bytes outside of fields are reported only if nothing else differs. Secret values are withheld.
    """
    one = {span.field: span for span in describe(left).spans}
    other = {span.field: span for span in describe(right).spans}
    differing = []
    for name in dict.fromkeys((*one, *other)):
        mine, its = one.get(name), other.get(name)
        raw = [side[span.offset : span.offset + span.length] for side, span in ((left, mine), (right, its)) if span]
        if len(raw) == 1 or raw[0] != raw[1]:
            is_data = all(span is None or span.kind == "data" for span in (mine, its))
            differing.append(_field_difference(name, mine, its, is_data))
    telling = tuple(
        difference
        for difference in differing
        if difference.field and difference.field.rpartition(".")[2] not in _DERIVED
    )
    return telling or tuple(differing)


def differing_fields(
    left: Mapping[str, CallField], right: Mapping[str, CallField], fits: Callable[[str, str], bool] | None
) -> tuple[FieldDifference, ...]:
    """Returns the fields in which the messages of two calls differ. fits: whether two ids may stand for each other, and
    times are not compared; None to compare all values.
    """
    sides = ((name, left.get(name), right.get(name)) for name in dict.fromkeys((*left, *right)))
    return tuple(
        _field_difference(name, one, other)
        for name, one, other in sides
        if one is None or other is None or not _agree(one, other, fits)
    )


def _agree(one: CallField, other: CallField, fits: Callable[[str, str], bool] | None) -> bool:
    if fits is None or one.secret:
        return bool(one.value == other.value)
    return one.rest == other.rest and all(map(fits, one.ids, other.ids))


def _field_difference(name: str, left: Any, right: Any, is_data: bool = False) -> FieldDifference:
    """left, right: a span, or a field of a call; None on a side without it."""
    secret = any(side is not None and side.secret for side in (left, right))
    values = [None if side is None else _shown(side.value, secret) for side in (left, right)]
    return FieldDifference(name, values[0], values[1], secret, is_data)


def _shown(value: Any, secret: bool) -> Any:
    return f"<{len(value)} characters>" if secret and isinstance(value, str) else None if secret else value
