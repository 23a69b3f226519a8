"""One container: what each request answers and what it refuses, in the order in which the reference refuses."""

from uuid import UUID

import pytest

from segstore.server.store import (
    EVENT_COUNT,
    NULL_VALUE,
    BadAttribute,
    BadOffset,
    Container,
    ReadResult,
    SegmentExists,
    SegmentSealed,
    SegmentTruncated,
    read_length,
)
from segstore.server.store.attributes import SCALE_POLICY_RATE, SEGMENT_TYPE, core_id
from segstore.server.store.errors import AttributeLimit, TableNotEmpty, Unmapped
from tests.server.support import append_to

W = UUID("00000000-0000-0001-0000-00000000000a")
X = UUID("00000000-0000-0002-0000-00000000000b")
A = UUID("0000000a-0000-0000-0000-000000000001")
HEX = "0123456789abcdef" * 2


@pytest.fixture
def container() -> Container:
    container = Container()
    container.create_segment("s", scale_type=1, target_rate=100, rollover_size=-7, now_ms=1)
    return container


def write(container: Container, name: str, data: bytes, writer: UUID = W) -> int:
    last = container.setup_append(name, writer, now_ms=5)
    number = max(last + 1, 1)
    return append_to(container, name, writer, number, 1, data, last_event_number=last, now_ms=5)


def read(container: Container, name: str, offset: int = 0, size: int = 1000) -> tuple[bytes, bool, bool]:
    result = container.read(name, offset, size)
    assert isinstance(result, ReadResult)
    data = b"".join(result.data)
    assert result.offset == offset
    return data, result.at_tail, result.end_of_segment


def test_a_new_segment_is_empty_and_knows_its_policy(container: Container) -> None:
    info = container.segment("s")
    assert (info.name, info.length, info.start_offset, info.sealed, info.last_modified_ms) == ("s", 0, 0, False, 1)
    assert [container.get_attribute("s", core_id(n)) for n in (0, 1, 2, 3, 4, 9)] == [1, NULL_VALUE, 1, 100, 0, 0]


def test_a_segment_without_a_name_has_no_reply(container: Container) -> None:
    with pytest.raises(Unmapped):
        container.create_segment("", now_ms=2)


def test_a_segment_that_held_data_can_be_created_again_if_names_are_reused() -> None:
    container = Container(reuse_names=True)
    container.create_segment("s", now_ms=1)
    write(container, "s", b"data")
    container.delete_segment("s")
    container.create_segment("s", now_ms=2)
    assert container.segment("s").length == 0
    assert container.setup_append("s", W, now_ms=3) == NULL_VALUE


def test_the_table_of_a_reader_group_can_be_made_again_and_no_other_one(container: Container) -> None:
    group, other = "s/group_kvtable/0.#epoch.0", "s/_tables/t"
    for name in (group, other):
        container.create_table_segment(name, now_ms=1)
        container.update_table(name, [(b"key", b"value", -1)], now_ms=1)
        container.delete_table_segment(name, must_be_empty=False)
    container.create_table_segment(group, now_ms=2)
    assert container.table(group).info()[2] == 0
    with pytest.raises(SegmentExists):
        container.create_table_segment(other, now_ms=2)


def test_a_conditional_append_checks_its_number_before_the_offset(container: Container) -> None:
    write(container, "s", b"one")
    with pytest.raises(BadOffset) as error:
        append_to(container, "s", W, 2, 1, b"x", last_event_number=1, now_ms=2, expected_offset=4)
    assert (error.value.segment, error.value.expected, error.value.actual) == ("s", 4, 3)
    with pytest.raises(BadOffset):
        append_to(container, "s", W, 2, 1, b"x", last_event_number=1, now_ms=2, expected_offset=0)
    with pytest.raises(BadAttribute):
        append_to(container, "s", W, 2, 1, b"x", last_event_number=0, now_ms=2, expected_offset=4)
    assert append_to(container, "s", W, 2, 1, b"x", last_event_number=1, now_ms=2, expected_offset=3) == 4
    assert append_to(container, "s", W, 3, 1, b"x", last_event_number=2, now_ms=2, expected_offset=-1) == 5


def test_a_core_attribute_that_is_absent_cannot_be_a_writer(container: Container) -> None:
    assert container.setup_append("s", EVENT_COUNT, now_ms=2) == NULL_VALUE
    with pytest.raises(BadAttribute):
        append_to(container, "s", EVENT_COUNT, 5, 1, b"x", last_event_number=NULL_VALUE, now_ms=2)
    assert container.segment("s").length == 0


def test_a_core_attribute_that_is_there_is_a_writer_like_any_other(container: Container) -> None:
    last = container.setup_append("s", SCALE_POLICY_RATE, now_ms=2)
    assert last == 100
    append_to(container, "s", SCALE_POLICY_RATE, 101, 1, b"x", last_event_number=last, now_ms=2)
    assert container.get_attribute("s", SCALE_POLICY_RATE) == 101
    last = container.setup_append("s", EVENT_COUNT, now_ms=2)
    append_to(container, "s", EVENT_COUNT, 50, 1, b"y", last_event_number=last, now_ms=2)
    assert container.get_attribute("s", EVENT_COUNT) == 2


def test_a_fixed_key_table_takes_no_attributes_but_core_ones() -> None:
    container = Container()
    container.create_table_segment("fixed", key_length=16, now_ms=1)
    with pytest.raises(Unmapped):
        container.setup_append("fixed", W, now_ms=2)
    with pytest.raises(Unmapped):
        container.update_attribute("fixed", W, 1, NULL_VALUE, now_ms=2)
    container.update_policy("fixed", scale_type=1, target_rate=1, now_ms=2)


def test_a_reply_carries_between_eight_bytes_and_two_mebibytes() -> None:
    assert [read_length(n) for n in (-5, 0, 8, 9, 1 << 30)] == [8, 8, 8, 9, 2 * 1024 * 1024]


def test_truncation_moves_the_start_and_nothing_else(container: Container) -> None:
    write(container, "s", b"0123456789")
    container.truncate_segment("s", 4)
    container.truncate_segment("s", 4)
    for offset in (3, 11):
        with pytest.raises(SegmentTruncated) as error:
            container.truncate_segment("s", offset)
        assert (error.value.start_offset, error.value.offset) == (4, offset)
    with pytest.raises(SegmentTruncated) as error:
        container.read("s", 3, 8)
    assert error.value.start_offset == 4
    assert read(container, "s", 4) == (b"456789", True, False)


def test_the_policy_can_be_changed_until_the_segment_is_sealed(container: Container) -> None:
    container.update_policy("s", scale_type=2, target_rate=-5, now_ms=2)
    assert [container.get_attribute("s", core_id(n)) for n in (2, 3)] == [2, -5]
    container.seal_segment("s", now_ms=3)
    with pytest.raises(SegmentSealed):
        container.update_policy("s", scale_type=1, target_rate=1, now_ms=4)


def test_an_absent_core_attribute_equals_nothing(container: Container) -> None:
    with pytest.raises(BadAttribute):
        container.update_attribute("s", EVENT_COUNT, 1, NULL_VALUE, now_ms=2)
    container.update_attribute("s", SCALE_POLICY_RATE, 7, 100, now_ms=2)
    assert container.get_attribute("s", SCALE_POLICY_RATE) == 7


def expired(container: Container, now_ms: int, idle_ms: int) -> list[str]:
    return container.expired_transients(now_ms, idle_ms)


@pytest.mark.seed("43.6")
def test_transient_segments_expire_after_their_last_use(container: Container) -> None:
    name = container.create_transient_segment("s", W, HEX, now_ms=1000)
    assert expired(container, 1599, 600) == []
    assert expired(container, 1600, 600) == [name]
    container.setup_append(name, W, now_ms=1500)
    assert expired(container, 1600, 600) == []
    append_to(container, name, W, 1, 1, b"x", last_event_number=NULL_VALUE, now_ms=2000)
    assert expired(container, 2599, 600) == []
    assert expired(container, 2600, 600) == [name]
    container.delete_segment(name)
    assert expired(container, 9999, 600) == []


@pytest.mark.seed("43.6")
def test_all_transient_segments_expire_after_a_recovery(container: Container) -> None:
    name = container.create_transient_segment("s", W, HEX, now_ms=1000)
    container.recovered()
    assert expired(container, 1000, 600) == [name]


def test_a_table_segment_is_a_segment_with_entries(container: Container) -> None:
    container.create_table_segment("t", now_ms=1)
    assert container.update_table("t", [(b"a", b"1", NULL_VALUE)], now_ms=2) == [0]
    recorded = bytes.fromhex("00000000010000000180000000000000006131")
    assert read(container, "t") == (recorded, True, False)
    assert container.get_attribute("t", SEGMENT_TYPE) == 1
    assert container.get_attribute("t", core_id(12)) == NULL_VALUE
    assert write(container, "t", b"foreign x") == 28
    assert container.table("t").get([b"a"]) == [(b"a", 0, b"1")]
    with pytest.raises(TableNotEmpty):
        container.delete_table_segment("t", must_be_empty=True)
    container.remove_table_keys("t", [(b"a", NULL_VALUE)], now_ms=3)
    container.delete_table_segment("t", must_be_empty=True)
    with pytest.raises(Unmapped):
        container.table("s")


def test_a_sealed_table_takes_no_entries(container: Container) -> None:
    container.create_table_segment("t", key_length=4, now_ms=1)
    assert container.get_attribute("t", SEGMENT_TYPE) == 5
    container.seal_segment("t", now_ms=2)
    with pytest.raises(SegmentSealed):
        container.update_table("t", [(b"abcd", b"1", NULL_VALUE)], now_ms=3)


def test_a_change_of_a_table_wakes_readers_of_its_bytes(container: Container) -> None:
    container.create_table_segment("t", now_ms=1)
    container.wait("t", 0, "reader")
    container.update_table("t", [(b"a", b"1", NULL_VALUE)], now_ms=2)
    assert [token for token, _ in container.waiters.take_woken()] == ["reader"]


def test_a_segment_takes_attributes_up_to_the_limit_and_core_ones_do_not_count() -> None:
    container = Container(max_attributes=2)
    container.create_segment("s", now_ms=1)
    for number in (1, 2):
        assert container.setup_append("s", UUID(int=number << 64 | 1), now_ms=2) == NULL_VALUE
    with pytest.raises(AttributeLimit) as refused:
        container.setup_append("s", UUID(int=3 << 64 | 1), now_ms=2)
    assert (refused.value.segment, refused.value.limit) == ("s", 2)
    assert container.setup_append("s", UUID(int=2 << 64 | 1), now_ms=2) == NULL_VALUE, "it has that one"
    container.update_policy("s", scale_type=1, target_rate=2, now_ms=3)
    assert container.segment("s").last_modified_ms == 3


def test_an_impossible_key_length_is_refused_before_the_name_is_looked_up(container: Container) -> None:
    for name in ("s", "fresh"):
        with pytest.raises(Unmapped, match="key length 257 is above 256"):
            container.create_table_segment(name, key_length=257, now_ms=1)
    assert set(container.segments) == {"s"}


def test_index_segments_are_counted_apart_through_creation_deletion_and_recovery() -> None:
    container = Container()
    for name in ("scope/s/0.#epoch.0", "scope/s/0.#epoch.0#index", "scope/s/1.#epoch.0#index"):
        container.create_segment(name, now_ms=0)
    assert container.index_count == 2
    container.delete_segment("scope/s/1.#epoch.0#index")
    assert (container.index_count, len(container.segments)) == (1, 2)
    other = Container()
    for segment in container.segments.values():
        other.adopt(segment)
    assert other.index_count == 1
    other.clear()
    assert other.index_count == 0


def test_entries_go_to_the_index_segment_that_is_there() -> None:
    container, name = Container(reuse_names=True), "scope/s/0.#epoch.0"
    writer = UUID(int=7)
    container.create_segment(name, now_ms=0)
    last, now_ms = container.setup_append(name, writer, now_ms=0), 0

    def append(times: int) -> None:
        nonlocal last, now_ms
        for _ in range(times):
            now_ms += 10
            container.append(name, writer.bytes, [(last + 1, 1, b"data", 0)], last, now_ms)
            last += 1

    append(3)
    found = []
    for _ in range(2):
        container.create_index_segment(name + "#index", now_ms=now_ms)
        append(2)
        index = container.segment(name + "#index")
        found.append(index)
        assert index.length == 48
        container.seal_segment(index.name, now_ms=now_ms)
        append(1)
        assert index.length == 48
        container.delete_segment(index.name)
        append(2)
    assert [each.length for each in found] == [0, 0], "both are gone, and nothing was written to them since"
