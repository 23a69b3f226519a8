"""All containers of a store: routing, ownership, and what happens around a request for a user's segment."""

from collections.abc import Callable
from uuid import UUID

import pytest

from segstore.server.store import (
    NULL_VALUE,
    ChunkPool,
    IllegalArgument,
    MemoryAccount,
    NoSuchSegment,
    NotOwner,
    ReadResult,
    SegmentExists,
    SegmentSealed,
    SegmentStore,
    StoreError,
    StoreFull,
    WakeReason,
    state,
)
from segstore.server.store.errors import IndexTruncated, Unmapped
from segstore.server.store.index import unpack_entry
from segstore.wire.names import container_of
from tests.server.support import append_to

W = UUID("00000000-0000-0001-0000-00000000000a")
S = "scope/stream/0.#epoch.0"
INDEX = S + "#index"


def txn(number: int) -> str:
    return f"{S}#transaction.{number:032x}"


@pytest.fixture
def store() -> SegmentStore:
    store = SegmentStore()
    store.create_segment(S, now_ms=1)
    return store


def write(store: SegmentStore, name: str, data: bytes, now_ms: int = 5) -> int:
    last = store.setup_append(name, W, now_ms=now_ms)
    return append_to(store, name, W, max(last + 1, 1), 1, data, last_event_number=last, now_ms=now_ms)


def read(store: SegmentStore, name: str, offset: int = 0) -> bytes:
    result = store.read(name, offset, 100_000)
    assert isinstance(result, ReadResult)
    return b"".join(result.data)


def name_in(container: int, count: int, form: str = "scope/stream{}/0.#epoch.0") -> str:
    return next(name for name in map(form.format, range(1000)) if container_of(name, count) == container)


def entries(store: SegmentStore) -> list[tuple[int, int, int]]:
    data = read(store, INDEX)
    return [unpack_entry(data[at : at + 24]) for at in range(0, len(data), 24)]


def test_a_segment_of_a_container_that_is_not_owned_is_refused() -> None:
    store = SegmentStore(2, owned=[0])
    other = name_in(1, 2)
    with pytest.raises(NotOwner) as error:
        store.create_segment(other, now_ms=1)
    assert (error.value.segment, error.value.container) == (other, 1)
    for request in (store.segment_info, store.delete_segment, store.container_for, store.table):
        with pytest.raises(NotOwner):
            request(other)
    store.create_segment(name_in(0, 2), now_ms=1)


def test_a_released_container_can_be_owned_again_with_its_segments(store: SegmentStore) -> None:
    write(store, S, b"data")
    store.container_for(S).wait(S, 4, "reader")
    container = store.release(0)
    assert store.waiters.take_woken() == [("reader", WakeReason.NOT_OWNED)]
    with pytest.raises(NotOwner):
        store.segment_info(S)
    store.own(0, container)
    assert read(store, S) == b"data"


def test_a_segment_whose_index_belongs_elsewhere_is_created_and_refused() -> None:
    name = next(
        name
        for name in map("scope/stream/{}".format, range(1000))
        if container_of(name, 2) == 0 and container_of(name + "#index", 2) == 1
    )
    store = SegmentStore(2, owned=[0])
    with pytest.raises(NotOwner) as error:
        store.create_segment(name, now_ms=1)
    assert error.value.segment == name
    assert store.segment_info(name).length == 0


def test_a_users_segment_gets_an_index_and_loses_it(store: SegmentStore) -> None:
    assert store.segment_info(INDEX).length == 0
    store.delete_segment(S)
    for name in (S, INDEX):
        with pytest.raises(NoSuchSegment):
            store.segment_info(name)
    store.create_segment(S, now_ms=2)


@pytest.mark.parametrize("name", ["x", "scope/_tables/t", "_system/_stream/0.#epoch.0", txn(1)])
def test_other_segments_get_no_index(store: SegmentStore, name: str) -> None:
    store.create_segment(name, now_ms=1)
    assert name + "#index" not in store.container_for(name).segments


def test_an_existing_index_is_reported_as_the_existing_segment_which_is_created_without_one() -> None:
    store = SegmentStore()
    store.create_segment(INDEX, now_ms=1)
    with pytest.raises(SegmentExists) as error:
        store.create_segment(S, now_ms=1)
    assert error.value.segment == S
    write(store, S, b"x")
    assert (store.segment_info(S).length, store.segment_info(INDEX).length) == (1, 0)


def test_deleting_an_index_is_refused_and_done_and_setting_up_an_append_brings_it_back(store: SegmentStore) -> None:
    with pytest.raises(IllegalArgument) as error:
        store.delete_segment(INDEX)
    assert error.value.message == "segmentName is already an index segment name"
    with pytest.raises(NoSuchSegment):
        store.segment_info(INDEX)
    assert store.setup_append(S, W, now_ms=2) == NULL_VALUE
    assert (store.segment_info(INDEX).length, store.segment_info(INDEX).last_modified_ms) == (0, 2)
    write(store, S, b"x" * 9)
    assert store.segment_info(INDEX).length == 24


def test_an_index_whose_name_is_used_up_is_reported_by_its_own_name(store: SegmentStore) -> None:
    write(store, S, b"x")
    assert entries(store) == [(1, 1, 15)]
    with pytest.raises(IllegalArgument):
        store.delete_segment(INDEX)
    with pytest.raises(SegmentExists) as error:
        store.setup_append(S, W, now_ms=2)
    assert error.value.segment == INDEX
    store.create_segment(txn(1), now_ms=2)
    write(store, txn(1), b"more")
    assert store.merge(S, txn(1), now_ms=3) == 5, "a merge goes on without an index"
    assert INDEX not in store.container_for(INDEX).segments


def test_appends_within_ten_milliseconds_share_an_entry(store: SegmentStore) -> None:
    for now_ms in (100, 103, 109, 110, 115, 200):
        write(store, S, b"0123456789", now_ms)
    assert store.segment_info(INDEX, now_ms=209).length == 48
    assert store.segment_info(INDEX, now_ms=210).length == 72
    assert entries(store) == [(30, 3, 110), (50, 5, 120), (60, 6, 210)]


def test_an_entry_is_not_there_before_its_time(store: SegmentStore) -> None:
    write(store, S, b"0123456789", 100)
    assert store.read(INDEX, 0, 100, now_ms=109) is None
    assert store.locate_offset(S, 0, now_ms=109) == 10
    assert store.read(INDEX, 0, 100, now_ms=110) is not None


def test_readers_at_the_tail_of_an_index_are_woken_by_the_sweep(store: SegmentStore) -> None:
    write(store, S, b"0123456789", 100)
    store.container_for(INDEX).wait(INDEX, 0, "reader")
    assert store.settle_index(109) == 0
    assert store.settle_index(110) == 1
    assert store.waiters.take_woken() == [("reader", WakeReason.DATA)]


def test_the_sweep_writes_a_bounded_number_of_entries(store: SegmentStore) -> None:
    for number in range(20):
        name = f"scope/stream{number}/0.#epoch.0"
        store.create_segment(name, now_ms=100)
        write(store, name, b"0123456789", 100)
    written = [store.settle_index(110, 2) for _ in range(20)]
    assert max(written) <= 2 * len(store.containers)
    assert sum(written) == 20


def test_the_sweep_reaches_an_idle_segment_behind_busy_segments(store: SegmentStore) -> None:
    *busy, idle = [f"scope/stream{number}/0.#epoch.0" for number in range(30)]
    for name in (*busy, idle):
        store.create_segment(name, now_ms=100)
        write(store, name, b"0123456789", 100)
    for name in busy:
        write(store, name, b"0123456789", 110)
    assert store.settle_index(110, 1) == 1


def test_locate_offset_answers_as_recorded(store: SegmentStore) -> None:
    assert store.locate_offset(S, 10) == 0
    for number in range(4):
        write(store, S, b"x" * 100, 1000 * number)
    targets = [0, 1, 99, 100, 101, 250, 300, 399, 400, 401, 1 << 62, -1, -(1 << 63)]
    located = [store.locate_offset(S, target, now_ms=9000) for target in targets]
    assert located == [100, 100, 100, 100, 200, 300, 300, 400, 400, 400, 400, 100, 100]
    store.truncate_segment(S, 200, now_ms=9000)
    info = store.segment_info(INDEX)
    assert (info.start_offset, info.length) == (48, 96)
    assert [store.locate_offset(S, target) for target in (0, 150, 250)] == [300, 300, 300]
    with pytest.raises(Unmapped):
        store.locate_offset(INDEX, 0)
    store.delete_segment(S)
    with pytest.raises(NoSuchSegment):
        store.locate_offset(S, 0)


def test_an_index_truncated_inside_an_entry_is_reported_after_the_segment_was_truncated(store: SegmentStore) -> None:
    write(store, S, b"x" * 100)
    store.settle_index()
    with pytest.raises(IllegalArgument, match="is already an index segment name"):
        store.truncate_segment(INDEX, 5)
    with pytest.raises(IndexTruncated):
        store.locate_offset(S, 0)
    with pytest.raises(IndexTruncated) as cut:
        store.truncate_segment(S, 50)
    assert cut.value.segment == S
    assert store.segment_info(S).start_offset == 50


def test_an_index_is_written_to_when_the_memory_is_full() -> None:
    account = MemoryAccount(1 << 20)
    store = SegmentStore(pool=ChunkPool(memory=account))
    store.create_segment(S, now_ms=1)
    write(store, S, b"x" * 100)
    account.charge((1 << 20) - account.used)
    with pytest.raises(StoreFull):
        store.create_segment("other", now_ms=2)
    store.settle_index()
    assert store.segment_info(INDEX).length == 24


def test_truncation_without_an_index_is_fine(store: SegmentStore) -> None:
    write(store, S, b"x" * 100)
    with pytest.raises(IllegalArgument):
        store.delete_segment(INDEX)
    store.truncate_segment(S, 40)
    assert store.segment_info(S).start_offset == 40


def test_an_index_knows_of_as_many_events_only_once(store: SegmentStore) -> None:
    write(store, INDEX, b"0" * 24)
    write(store, S, b"x", 100)
    assert store.segment_info(INDEX).length == 24
    write(store, S, b"y", 200)
    assert store.segment_info(INDEX).length == 48


def test_a_merge_is_written_to_the_targets_index_and_the_sources_goes_after_a_while(store: SegmentStore) -> None:
    other = "scope/other/5.#epoch.0"
    store.create_segment(other, now_ms=1)
    write(store, other, b"data", 100)
    assert store.merge(S, other, now_ms=101) == 4
    store.drop_merged_indexes(now_ms=110, idle_ms=10)
    assert store.segment_info(other + "#index", now_ms=101).length == 24
    store.drop_merged_indexes(now_ms=111, idle_ms=10)
    with pytest.raises(NoSuchSegment):
        store.segment_info(other + "#index", now_ms=101)
    assert store.segment_info(INDEX, now_ms=101).length == 0
    assert store.segment_info(INDEX, now_ms=111).length == 24


def test_a_batch_merges_in_order_and_counts_missing_sources_as_done(store: SegmentStore) -> None:
    for number in (1, 2, 3):
        store.create_segment(txn(number), now_ms=1)
        write(store, txn(number), b"from %d" % number)
    assert store.merge_batch(S, [txn(1), txn(2)], now_ms=2) == [6, 12]
    assert store.merge_batch(S, [txn(1), txn(3)], now_ms=2) == [12, 18]
    assert store.merge_batch(S, [txn(1), txn(2), txn(3)], now_ms=2) == [18, 18, 18]
    assert store.merge_batch(S, [], now_ms=2) == []
    assert read(store, S) == b"from 1from 2from 3"


def test_an_index_is_truncated_and_merged_into_and_then_reported_to_have_no_index(store: SegmentStore) -> None:
    write(store, INDEX, b"0" * 24)
    with pytest.raises(IllegalArgument) as error:
        store.truncate_segment(INDEX, 24)
    assert (error.value.segment, store.segment_info(INDEX).start_offset) == (INDEX, 24)
    store.create_segment(txn(1), now_ms=1)
    write(store, txn(1), b"from 1")
    with pytest.raises(IllegalArgument) as error:
        store.merge_batch(INDEX, [txn(1)], now_ms=2)
    assert (error.value.segment, store.segment_info(INDEX).length) == (INDEX, 30)
    assert store.merge_batch(INDEX, [], now_ms=2) == []


def test_a_batch_into_nothing_names_the_target(store: SegmentStore) -> None:
    missing = "scope/stream/9.#epoch.0"
    store.create_segment(txn(1), now_ms=1)
    for source in (txn(1), txn(2)):
        with pytest.raises(NoSuchSegment) as error:
            store.merge_batch(missing, [source], now_ms=2)
        assert error.value.segment == missing
    assert not store.segment_info(txn(1)).sealed


def test_a_batch_into_a_sealed_segment_names_the_target_and_seals_all_sources(store: SegmentStore) -> None:
    store.container_for(S).seal_segment(S, now_ms=1)
    for number in (1, 2):
        store.create_segment(txn(number), now_ms=1)
    with pytest.raises(SegmentSealed) as error:
        store.merge_batch(S, [txn(1), txn(2)], now_ms=2)
    assert error.value.segment == S
    assert store.segment_info(txn(1)).sealed
    assert store.segment_info(txn(2)).sealed


def test_a_container_remembers_the_last_names_that_were_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_RETIRED_NAMES", 10)
    store = SegmentStore()
    names = [f"plain{number}" for number in range(25)]
    for name in names:
        store.create_segment(name, now_ms=1)
        write(store, name, b"data")
        store.delete_segment(name)
    assert list(store.containers[0].retired_names) == names[-10:]
    with pytest.raises(SegmentExists):
        store.create_segment(names[-10], now_ms=1)
    store.create_segment(names[0], now_ms=1)


def test_a_batch_continues_after_a_source_that_is_refused(store: SegmentStore) -> None:
    for number in (1, 2):
        store.create_segment(txn(number), now_ms=1)
        write(store, txn(number), b"from %d" % number)
    store.truncate_segment(txn(1), 2)
    with pytest.raises(Unmapped):
        store.merge_batch(S, [txn(1), txn(2)], now_ms=2)
    assert read(store, S) == b"from 2"


@pytest.mark.parametrize(
    ("request_", "kind", "named"),
    [
        (lambda store: store.locate_offset(INDEX, 1), Unmapped, INDEX),
        (lambda store: store.truncate_segment(INDEX, 0), IllegalArgument, INDEX),
        (lambda store: store.delete_segment(INDEX), IllegalArgument, INDEX),
        (lambda store: store.merge_batch(INDEX, [txn(1)], now_ms=1), IllegalArgument, INDEX),
        (lambda store: store.truncate_segment(S, -1), IllegalArgument, S),
        (lambda store: store.table(S), Unmapped, S),
        (lambda store: store.create_segment(S, now_ms=1), SegmentExists, S),
        (lambda store: store.merge(S, txn(2), now_ms=1), NoSuchSegment, txn(2)),
    ],
)
def test_a_refusal_names_the_segment_that_was_asked_for(
    store: SegmentStore, request_: Callable[[SegmentStore], object], kind: type[StoreError], named: str
) -> None:
    with pytest.raises(kind) as error:
        request_(store)
    assert error.value.segment == named


def test_a_merge_between_containers_with_journals_of_their_own_is_refused_by_the_sources_name() -> None:
    store = SegmentStore(2)
    store.separate_journals = True
    target, source = name_in(0, 2), name_in(1, 2)
    for name in (target, source):
        store.create_segment(name, now_ms=1)
    with pytest.raises(Unmapped) as error:
        store.merge(target, source, now_ms=2)
    assert error.value.segment == source
    assert not store.segment(source).sealed


def test_a_store_has_containers_and_owns_each_of_them_once() -> None:
    with pytest.raises(ValueError, match="container 0 is owned already"):
        SegmentStore(1).own(0)
    with pytest.raises(KeyError):
        SegmentStore(1, owned=[]).release(0)


def test_a_container_that_is_opened_on_first_use_is_owned_and_asked_for_by_that() -> None:
    store = SegmentStore(2, owned=[0])
    asked: list[int] = []
    store.unopened[1] = lambda: asked.append(1)
    mine, other = name_in(0, 2), name_in(1, 2)
    assert (store.owns(mine), store.owns(other), asked) == (True, True, [])
    with pytest.raises(NotOwner):
        store.segment_info(other)
    assert asked == [1]
    del store.unopened[1]
    assert not store.owns(other)


def test_a_truncation_leaves_an_index_entry_that_is_not_due_for_later(store: SegmentStore) -> None:
    write(store, S, b"0123456789", now_ms=5)
    store.truncate_segment(S, 4, now_ms=6)
    assert store.containers[0].segments[INDEX].length == 0
    assert store.segment_info(INDEX, now_ms=100).length == 24
    assert entries(store) == [(10, 1, 15)]
