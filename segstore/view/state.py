"""The state of segments, writers and transactions in a trace, as changes by record.

`States.see` takes the records of a trace in order and adds a change for each fact that a reply states and that differs
from the last one. The page finds the state at any record as the last change of each fact up to there.

Only replies count: a request may fail, and its reply may be lost. So the state is what the trace alone proves; a fact
without a change is unknown. The end of a connection removes its set-ups of writers.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from segstore.wire import commands as c
from segstore.wire.names import SegmentName
from segstore.wire.trace import Direction, RecordKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from segstore.wire.schema import Command
    from segstore.wire.trace import Exchange

FACTS: Final = {
    "segment": ("exists", "sealed", "length", "start offset", "merged into"),
    "writer": ("set up on connections", "last event number acknowledged"),
    "transaction": ("state", "segments created", "segments committed", "segments aborted"),
}
"""The facts about each kind of entity, in the order in which the page shows them."""
MOST_EXACT: Final = (1 << 53) - 1
"""The largest integer that a number of JavaScript represents exactly, with all smaller ones."""
_NO_EVENT: Final = -(1 << 63)

Value = int | str
Entity = dict[str, tuple["array[int]", list[Value]]]
"""By fact: the records after which it changed, and its value from each on."""


class States:
    """The changes so far. entities: by kind, name, and segment of a writer."""

    def __init__(self) -> None:
        self.entities: dict[tuple[str, str, str], Entity] = {}
        self._set_up: dict[int, dict[int, Entity]] = {}
        self._connections: dict[int, dict[int, int]] = {}
        """By the id of a writer's entity: the numbers of the connections that it is set up on, by their lanes."""
        self._record = 0
        self._lane = 0

    def as_json(self) -> list[list[Any]]:
        """Returns [kind, name, segment of a writer, {fact: [records, values]}] for each entity.

        Numbers are differences to the number before, which compress well.
        """
        return [
            [*key, {fact: [_differences(part) for part in entity[fact]] for fact in FACTS[key[0]] if fact in entity}]
            for key, entity in self.entities.items()
        ]

    def see(self, at: int, lane: int, seen: Exchange) -> None:
        """Takes the next record. at: its number. lane: that of its connection."""
        self._record, self._lane = at, lane
        command = seen.command
        if command is None:
            if seen.record.kind is RecordKind.CLOSE:
                self._close(lane)
        elif seen.record.direction is Direction.REPLY and (step := _STEPS.get(type(command))) is not None:
            step(self, seen, command)

    def _set(self, entity: Entity, fact: str, value: Value) -> None:
        if isinstance(value, int) and abs(value) > MOST_EXACT:
            value = "none" if value == _NO_EVENT else str(value)
        records, values = entity.setdefault(fact, (array("q"), []))
        if not values or values[-1] != value:
            records.append(self._record)
            values.append(value)

    def _entity(self, kind: str, name: str, of: str = "") -> Entity:
        return self.entities.setdefault((kind, name, of), {})

    # --- segments -----------------------------------------------------------------------------------------------

    def segment(
        self, name: str, exists: str | None = None, *, length: int = -1, start: int = -1, sealed: bool | None = None
    ) -> Entity:
        """Sets facts of a segment; -1 and None are unknown.

        A reply that does not state whether the segment exists shows that it did, but may come after its deletion.
        """
        entity = self._entity("segment", name)
        if exists is not None or "exists" not in entity:
            self._set(entity, "exists", exists or "yes")
        if length >= 0:
            self._set(entity, "length", length)
        if start >= 0:
            self._set(entity, "start offset", start)
        if sealed is not None:
            self._set(entity, "sealed", "yes" if sealed else "no")
        return entity

    def merged(self, source: str, target: str, length: int) -> None:
        self._set(self.segment(source, "no"), "merged into", target)
        self.segment(target, length=length)
        self._transaction(source, "committed")

    def _transaction(self, segment: str, state: str) -> None:
        transaction = SegmentName.parse(segment).transaction_id
        if transaction is not None:
            entity = self._entity("transaction", str(transaction))
            self._set(entity, "state", state)
            fact = f"segments {'created' if state == 'open' else state}"
            count = entity[fact][1][-1] if fact in entity else 0
            assert isinstance(count, int)
            self._set(entity, fact, count + 1)

    def created(self, seen: Exchange, reply: c.SegmentCreated) -> None:
        name, is_table = reply.segment, any(isinstance(answer.command, c.CreateTableSegment) for answer in seen.answers)
        # How much entries of a table take is in no reply.
        self.segment(name, "yes", length=-1 if is_table else 0, start=0, sealed=False)
        self._transaction(name, "open")

    def deleted(self, name: str) -> None:
        self.segment(name, "no")
        self._transaction(name, "aborted")

    # --- writers ------------------------------------------------------------------------------------------------

    def set_up(self, seen: Exchange, reply: c.AppendSetup) -> None:
        entity = self._entity("writer", str(reply.writer_id), reply.segment)
        self._set(entity, "last event number acknowledged", reply.last_event_number)
        self._set_up.setdefault(self._lane, {})[id(entity)] = entity
        self._connections.setdefault(id(entity), {})[self._lane] = seen.connection
        self._report_connections(entity)
        self.segment(reply.segment, "yes")

    def acknowledged(self, seen: Exchange, command: c.DataAppended) -> None:
        for segment in seen.segments[:1]:
            self.segment(segment, length=command.current_segment_write_offset)
            self._set(
                self._entity("writer", str(command.writer_id), segment),
                "last event number acknowledged",
                command.event_number,
            )

    def _close(self, lane: int) -> None:
        for entity in self._set_up.pop(lane, {}).values():
            self._connections[id(entity)].pop(lane, None)
            self._report_connections(entity)

    def _report_connections(self, entity: Entity) -> None:
        self._set(
            entity, "set up on connections", ", ".join(map(str, self._connections[id(entity)].values())) or "none"
        )


def _differences(values: Iterable[Value]) -> list[Value]:
    differences: list[Value] = []
    last = 0
    for value in values:
        differences.append(value - last if isinstance(value, int) else value)
        last = value if isinstance(value, int) else last
    return differences


def _asked(seen: Exchange, name: str) -> Any:
    """A field of the request that a reply answers; -1 if the trace does not have it."""
    return getattr(seen.answers[0].command, name, -1) if seen.answers else -1


def _info(states: States, _: Exchange, reply: c.StreamSegmentInfo) -> None:
    if not reply.exists or reply.is_deleted:
        states.segment(reply.segment_name, "no")
    else:
        start, sealed = reply.start_offset, reply.is_sealed
        states.segment(reply.segment_name, "yes", length=reply.write_offset, start=start, sealed=sealed)


def _read(states: States, _: Exchange, reply: c.SegmentRead) -> None:
    end = reply.offset + len(reply.data)
    if reply.end_of_segment:
        states.segment(reply.segment, length=end, sealed=True)
    else:
        states.segment(reply.segment, length=end if reply.at_tail else -1)


def _batch_merged(states: States, _: Exchange, reply: c.SegmentsBatchMerged) -> None:
    for source, length in zip(reply.sources, reply.new_target_write_offset, strict=False):
        states.merged(source, reply.target, length)


_STEPS: Final[dict[type[Command], Callable[[States, Exchange, Any], object]]] = {
    c.DataAppended: States.acknowledged,
    c.SegmentRead: _read,
    c.AppendSetup: States.set_up,
    c.SegmentCreated: States.created,
    c.SegmentDeleted: lambda states, _, reply: states.deleted(reply.segment),
    c.SegmentSealed: lambda states, _, reply: states.segment(reply.segment, sealed=True),
    c.SegmentTruncated: lambda states, seen, reply: states.segment(
        reply.segment, start=_asked(seen, "truncation_offset")
    ),
    c.SegmentsMerged: lambda states, _, reply: states.merged(reply.source, reply.target, reply.new_target_write_offset),
    c.SegmentsBatchMerged: _batch_merged,
    c.StreamSegmentInfo: _info,
    c.SegmentAlreadyExists: lambda states, _, reply: states.segment(reply.segment, "yes"),
    c.SegmentIsSealed: lambda states, _, reply: states.segment(reply.segment, sealed=True),
    c.SegmentIsTruncated: lambda states, _, reply: states.segment(reply.segment, start=reply.start_offset),
    c.NoSuchSegment: lambda states, _, reply: states.segment(reply.segment, "no"),
}
"""The facts in each type of reply."""
