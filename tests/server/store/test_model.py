"""The store against a plain model, and recovery: any requests in any order, then the journal applied again.

The model is a dict of names to bytes with a start, a seal and the writers' numbers. What the model says a request does
or raises, the store must do or raise; and at every point the operations that were journalled, as bytes, rebuild the
same state in an empty store.
"""

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segstore.server.store import (
    EVENT_COUNT,
    NULL_VALUE,
    AttributeUpdate,
    BadAttribute,
    BadOffset,
    Container,
    IllegalArgument,
    NoSuchSegment,
    ReadResult,
    SegmentExists,
    SegmentSealed,
    SegmentStore,
    SegmentTruncated,
    StoreError,
    name_bytes,
    operations,
)
from segstore.server.store.attributes import COMMON_KEYS, UpdateType
from segstore.server.store.errors import Unmapped
from segstore.server.store.memory import ATTRIBUTE_BYTES, SEGMENT_BYTES, TABLE_KEY_BYTES
from tests.server.store.journal import Journal
from tests.server.store.test_chunks import allocated_bytes
from tests.server.support import append_to

CONTAINERS = 3
STREAMS = [f"scope/stream{number}/0.#epoch.0" for number in range(3)]
NAMES = [*STREAMS, f"{STREAMS[0]}#transaction.{1:032x}", f"{STREAMS[1]}#transaction.{2:032x}", "plain"]
TABLES = ["scope/_tables/hash", "scope/_tables/fixed"]
WRITERS = [UUID(int=10), UUID(int=11)]
ATTRIBUTE = UUID(int=99)

names = st.sampled_from(NAMES)
writers = st.sampled_from(WRITERS)
payloads = st.one_of(st.binary(max_size=40), st.integers(100, 6000).map(lambda size: bytes([size % 251]) * size))


@dataclass
class Model:
    data: bytes = b""
    start: int = 0
    sealed: bool = False
    mapped: bool = False
    events: int | None = None
    attribute: int | None = None
    numbers: dict[UUID, int] = field(default_factory=dict)


def outcome(error: type[StoreError] | None) -> str:
    return "done" if error is None else error.__name__


class StoreAgainstModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.journals: dict[int, list[bytes]] = {number: [] for number in range(CONTAINERS)}
        self.store = SegmentStore(CONTAINERS, journal=self._journal)
        self.rebuilt = SegmentStore(CONTAINERS)
        self.model: dict[str, Model] = {}
        self.retired: set[str] = set()
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.now_ms = 1000
        for name in NAMES:
            self.create(name)

    def _journal(self, container: int):  # type: ignore[no-untyped-def]
        journal = self.journals[container]
        return Journal(lambda operation: journal.append(operations.encode(operation)))

    def _expect(self, expected: type[StoreError] | None, request) -> object:  # type: ignore[no-untyped-def]
        try:
            result, got = request(), None
        except StoreError as error:
            result, got = None, type(error)
        assert outcome(got) == outcome(expected) or (expected and got and issubclass(got, expected)), (got, expected)
        return result

    @rule(milliseconds=st.integers(0, 30))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(name=names)
    def create(self, name: str) -> None:
        index_used_up = f"{name}#index" in self.store.container_for(f"{name}#index").retired_names
        exists = name in self.model or name in self.retired
        expected = SegmentExists if exists or (index_used_up and name in STREAMS) else None
        self._expect(expected, lambda: self.store.create_segment(name, now_ms=self.now_ms))
        if not exists:
            self.model[name] = Model()

    @rule(name=names, meant=st.sampled_from([False, False, True]))
    def delete(self, name: str, meant: bool) -> None:
        # Deletions are kept rare, or hardly a segment lives long enough to be interesting.
        if not meant and name in self.model:
            return
        model = self.model.pop(name, None)
        self._expect(NoSuchSegment if model is None else None, lambda: self.store.delete_segment(name))
        if model is not None and (model.mapped or model.data):
            self.retired.add(name)

    @rule(
        name=names,
        writer=writers,
        data=payloads,
        skip=st.integers(0, 3),
        stale=st.sampled_from([False] * 5 + [True]),
        events=st.integers(0, 3),
    )
    def append(self, name: str, writer: UUID, data: bytes, skip: int, stale: bool, events: int) -> None:
        model = self.model.get(name)
        last = NULL_VALUE if model is None else model.numbers.get(writer, NULL_VALUE)
        number = skip if last == NULL_VALUE else last + skip
        claimed = last + 1 if stale else last
        expected = (
            NoSuchSegment if model is None else SegmentSealed if model.sealed else BadAttribute if stale else None
        )
        length = self._expect(
            expected,
            lambda: append_to(
                self.store,
                name,
                writer,
                number,
                events,
                memoryview(data),
                last_event_number=claimed,
                now_ms=self.now_ms,
            ),
        )
        if expected is None and model is not None:
            model.data += data
            model.numbers[writer] = number
            model.events = (model.events or 0) + events
            assert length == len(model.data)

    @rule(name=names, writer=writers, data=payloads, off_by=st.sampled_from([0, 0, 1, -1, None]))
    def append_conditionally(self, name: str, writer: UUID, data: bytes, off_by: int | None) -> None:
        model = self.model.get(name)
        if model is None or model.sealed:
            return
        last = model.numbers.get(writer, NULL_VALUE)
        expected_offset = -1 if off_by is None else len(model.data) + off_by
        refused = expected_offset >= 0 and expected_offset != len(model.data)
        self._expect(
            BadOffset if refused else None,
            lambda: append_to(
                self.store,
                name,
                writer,
                last,
                1,
                data,
                last_event_number=last,
                now_ms=self.now_ms,
                expected_offset=expected_offset,
            ),
        )
        if not refused:
            model.data += data
            model.numbers[writer] = last
            model.events = (model.events or 0) + 1

    @rule(name=names, writer=writers)
    def set_up(self, name: str, writer: UUID) -> None:
        model = self.model.get(name)
        if model is None:
            self._expect(NoSuchSegment, lambda: self.store.setup_append(name, writer, now_ms=self.now_ms))
            return
        model.mapped = True
        index = f"{name}#index"
        home = self.store.container_for(index)
        used_up = name in STREAMS and index not in home.segments and index in home.retired_names
        last = self._expect(
            SegmentExists if used_up else None, lambda: self.store.setup_append(name, writer, now_ms=self.now_ms)
        )
        assert used_up or last == model.numbers.get(writer, NULL_VALUE)

    @rule(name=names, meant=st.sampled_from([False, False, True]))
    def seal(self, name: str, meant: bool) -> None:
        model = self.model.get(name)
        if not meant and model is not None and not model.sealed:
            return
        expected = NoSuchSegment if model is None else SegmentSealed if model.sealed else None
        self._expect(expected, lambda: self.store.container_for(name).seal_segment(name, now_ms=self.now_ms))
        if model is not None:
            model.sealed = model.mapped = True

    @rule(name=names, share=st.floats(-0.2, 1.2))
    def truncate(self, name: str, share: float) -> None:
        model = self.model.get(name)
        offset = int(share * len(model.data)) if model is not None else 0
        expected: type[StoreError] | None = None
        if model is None:
            expected = NoSuchSegment
        elif offset < 0:
            expected = Unmapped if model.mapped else IllegalArgument
        elif not model.start <= offset <= len(model.data):
            expected = SegmentTruncated
        self._expect(expected, lambda: self.store.truncate_segment(name, offset, now_ms=self.now_ms))
        if model is not None:
            model.mapped = True
            model.start = offset if expected is None else model.start

    @rule(name=names, new=st.integers(-3, 3), compare=st.sampled_from([NULL_VALUE, -1, 0, 1]))
    def update_attribute(self, name: str, new: int, compare: int) -> None:
        model = self.model.get(name)
        expected: type[StoreError] | None = None
        if model is None:
            expected = NoSuchSegment
        elif model.sealed:
            expected = SegmentSealed
        elif (NULL_VALUE if model.attribute is None else model.attribute) != compare:
            expected = BadAttribute
        self._expect(
            expected,
            lambda: self.store.container_for(name).update_attribute(name, ATTRIBUTE, new, compare, now_ms=self.now_ms),
        )
        if model is not None:
            model.mapped = True
            model.attribute = new if expected is None else model.attribute

    @rule(into_name=names, source=names, condition=st.sampled_from([None, NULL_VALUE, 0, 1]))
    def merge(self, into_name: str, source: str, condition: int | None) -> None:
        into, out = self.model.get(into_name), self.model.get(source)
        updates = []
        if condition is not None:
            updates = [AttributeUpdate(ATTRIBUTE, UpdateType.REPLACE_IF_EQUALS, 1, condition)]
        expected: type[StoreError] | None = None
        if into is None or out is None:
            expected = NoSuchSegment
        else:
            out.sealed = out.mapped = into.mapped = True
            if out.data and out.start:
                expected = Unmapped
            elif into.sealed:
                expected = SegmentSealed
            elif condition is not None and (NULL_VALUE if into.attribute is None else into.attribute) != condition:
                expected = BadAttribute
        length = self._expect(expected, lambda: self.store.merge(into_name, source, updates, now_ms=self.now_ms))
        if expected is None and into is not None and out is not None:
            into.data += out.data
            into.events = (into.events or 0) + (out.events or 0)
            into.attribute = into.attribute if condition is None else 1
            del self.model[source]
            self.retired.add(source)
            assert length == len(into.data)

    @rule(name=names, offset=st.integers(-2, 8000), size=st.integers(8, 5000))
    def read(self, name: str, offset: int, size: int) -> None:
        model = self.model.get(name)
        expected: type[StoreError] | None = None
        if model is None:
            expected = NoSuchSegment
        elif offset < 0 and not model.mapped:
            expected = IllegalArgument
        elif offset < 0 or (model.sealed and offset > len(model.data)):
            expected = Unmapped
        elif offset < model.start:
            expected = SegmentTruncated
        if model is not None:
            model.mapped = True
        result = self._expect(expected, lambda: self.store.read(name, offset, size))
        if expected is not None or model is None:
            return
        want = model.data[offset : offset + size]
        if not want and not model.sealed:
            assert result is None
            return
        assert isinstance(result, ReadResult)
        short = len(want) < size
        assert b"".join(result.data) == want
        assert (result.at_tail, result.end_of_segment) == (short and not model.sealed, short and model.sealed)

    @rule(name=st.sampled_from(TABLES), key=st.sampled_from([b"aaaa", b"bbbb", b"cccc"]), value=st.binary(max_size=9))
    def put(self, name: str, key: bytes, value: bytes) -> None:
        if name not in self.tables:
            key_length = 4 if name.endswith("fixed") else 0
            self.store.container_for(name).create_table_segment(name, key_length=key_length, now_ms=self.now_ms)
        self.store.container_for(name).update_table(name, [(key, value, NULL_VALUE)], now_ms=self.now_ms)
        self.tables.setdefault(name, {})[key] = value

    @rule(name=st.sampled_from(TABLES), key=st.sampled_from([b"aaaa", b"bbbb", b"cccc"]))
    def remove(self, name: str, key: bytes) -> None:
        if name in self.tables:
            self.store.container_for(name).remove_table_keys(name, [(key, NULL_VALUE)], now_ms=self.now_ms)
            self.tables[name].pop(key, None)

    @invariant()
    def segments_are_what_the_model_says(self) -> None:
        for name in NAMES:
            home = self.store.container_for(name)
            assert (name in home.segments) == (name in self.model)
            assert (name in home.retired_names) == (name in self.retired)
        for name, model in self.model.items():
            container, segment = self.store.container_for(name), self.store.segment(name)
            assert (segment.start_offset, segment.length) == (model.start, len(model.data))
            assert segment.sealed == model.sealed
            assert segment.read_bytes(model.start, len(model.data) - model.start) == model.data[model.start :]
            assert segment.event_count == model.events
            assert container.get_attribute(name, ATTRIBUTE) == (
                NULL_VALUE if model.attribute is None else model.attribute
            )
            for writer in WRITERS:
                assert container.get_attribute(name, writer) == model.numbers.get(writer, NULL_VALUE)

    @invariant()
    def the_journal_rebuilds_the_same_state(self) -> None:
        again = self.rebuilt
        for number, journal in self.journals.items():
            for line in journal:
                again.containers[number].apply(operations.decode(line))
            journal.clear()
        for number, container in self.store.containers.items():
            assert snapshot(again, number) == snapshot(self.store, number)
            assert again.containers[number].retired_names == container.retired_names
        for name, model in self.tables.items():
            for store in (self.store, again):
                table = store.table(name)
                assert {key: value for key, _, value in table.get(sorted(model))} == model
                assert table.info()[2] == len(model)

    @invariant()
    def an_index_has_a_segment_or_had_one_that_was_merged(self) -> None:
        self.store.drop_merged_indexes(1 << 62, 0)
        segments = {name for container in self.store.containers.values() for name in container.segments}
        assert {name.removesuffix("#index") for name in segments} <= segments

    @invariant()
    def the_account_is_what_a_recount_gives(self) -> None:
        assert self.store.pool.memory.used == sum(map(recounted, self.store.containers.values()))

    def teardown(self) -> None:
        for container in self.store.containers.values():
            container.clear()
        assert self.store.pool.memory.used == 0


def recounted(container: Container) -> int:
    """The memory of a container, computed from its content."""
    total = sum(map(name_bytes, container.retired_names))
    for name, segment in container.segments.items():
        total += SEGMENT_BYTES + name_bytes(name) + allocated_bytes(segment)
        total += ATTRIBUTE_BYTES * len(segment.attributes.keys() - COMMON_KEYS.keys())
        if segment.table is not None:
            total += sum(TABLE_KEY_BYTES + 2 * len(key) for key, _ in segment.table.positions())
    return total


def snapshot(store: SegmentStore, number: int) -> dict[str, object]:
    """All that a container holds, but for what is not journalled."""
    return {
        name: (
            segment.start_offset,
            segment.length,
            segment.sealed,
            segment.last_modified_ms,
            segment.is_table,
            segment.is_transient,
            dict(segment.attribute_values()),
            segment.read_bytes(segment.start_offset, segment.length - segment.start_offset),
        )
        for name, segment in store.containers[number].segments.items()
    }


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_recovered_transient_segment_has_all_that_it_had() -> None:
    journal: list[operations.Operation] = []
    store = SegmentStore(journal=lambda _: Journal(journal.append))
    name = store.container_for("parent").create_transient_segment("parent", WRITERS[0], "0f" * 16, now_ms=5)
    store.setup_append(name, WRITERS[0], now_ms=6)
    append_to(store, name, WRITERS[0], 1, 1, b"data", last_event_number=NULL_VALUE, now_ms=7)
    assert store.setup_append(name, EVENT_COUNT, now_ms=7) == 1
    append_to(store, name, EVENT_COUNT, 9, 1, b"more", last_event_number=1, now_ms=8)
    again = SegmentStore()
    for operation in journal:
        again.containers[0].apply(operation)
    again.containers[0].recovered()
    assert snapshot(again, 0) == snapshot(store, 0)
    assert again.containers[0].expired_transients(8, 600) == [name]
