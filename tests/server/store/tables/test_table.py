"""Tables against recorded facts, against a plain dict, and against hostile input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segstore.server.store import (
    BadOffset,
    ChunkPool,
    IllegalArgument,
    SegmentSealed,
    StoreError,
    Unanswered,
    Unsupported,
)
from segstore.server.store.chunks import SegmentData
from segstore.server.store.errors import KeyBadVersion, KeyMissing, TableNotEmpty, Unmapped
from segstore.server.store.tables import TableSegment, TableWrite
from segstore.server.store.tables import iteration as table_iteration
from segstore.server.store.tables.log import NO_VERSION
from tests.looped import looped

ABSENT = -1
HASH_ORDER = [1, 6, 4, 0, 2, 9, 3, 5, 7, 8]
"""The order in which the reference walked key0 to key9, recorded (key3 by its hash)."""


class Driver:
    """A table with its segment, driven as a container drives it, and what a journal would have kept."""

    def __init__(self, key_length: int = 0) -> None:
        self.data = SegmentData(ChunkPool())
        self.table = TableSegment("scope/_tables/t", self.data, key_length)
        self.journal: list[Callable[[Driver], None]] = []

    def put(self, *entries: tuple[bytes, bytes] | tuple[bytes, bytes, int], offset: int = -1) -> list[int]:
        versioned = [(entry[0], entry[1], entry[2] if len(entry) == 3 else NO_VERSION) for entry in entries]
        return self.carry_out(self.table.plan_update(versioned, offset))

    def remove(self, *keys: bytes | tuple[bytes, int], offset: int = -1) -> None:
        versioned = [key if isinstance(key, tuple) else (key, NO_VERSION) for key in keys]
        self.carry_out(self.table.plan_remove(versioned, offset))

    def carry_out(self, write: TableWrite) -> list[int]:
        self.note(lambda driver: driver.append(write.data))
        if write.forgotten:
            self.note(lambda driver: driver.table.forget(write.forgotten))
        compaction = self.table.plan_compaction()
        if compaction is not None:
            data, offset = compaction
            self.note(lambda driver: driver.append(data))
            self.note(lambda driver: driver.data.truncate(offset))
        return write.versions

    def note(self, change: Callable[[Driver], None]) -> None:
        self.journal.append(change)
        change(self)

    def append(self, data: bytes) -> None:
        offset = self.data.length
        self.data.write(data)
        self.table.appended(offset)

    def value(self, key: bytes) -> bytes | None:
        ((_, version, value),) = self.table.get([key])
        return None if version == ABSENT else value

    def keys(self, *page: Any) -> tuple[list[tuple[bytes, int]], bytes]:
        """A page of keys with their versions, and the token of the next one."""
        entries, token = self.table.iterate(*page, with_values=False)
        assert not any(value for _, _, value in entries)
        return [(key, version) for key, version, _ in entries], token

    def all_pages(self, count: int) -> list[tuple[bytes, int, bytes]]:
        items: list[tuple[bytes, int, bytes]] = []
        token = b""
        while True:
            page, token = self.table.iterate(count, token)
            if not page:
                assert token == b""
                return items
            items += page


def ten_keys(driver: Driver) -> None:
    for number in range(10):
        driver.put((b"key%d" % number, b"value%d" % number))
    driver.remove(b"key3")


def test_a_version_is_the_offset_of_an_entry_of_17_bytes_and_key_and_value() -> None:
    driver = Driver()
    assert driver.put((b"a", b"1")) == [0]
    assert driver.put((b"a", b"2"), (b"bb", b"")) == [19, 38]
    assert driver.table.info() == (0, 57, 2, 0)
    driver.remove(b"a")
    assert driver.table.info() == (0, 75, 1, 0)
    assert driver.table.get([b"a", b"bb"]) == [(b"a", ABSENT, b""), (b"bb", 38, b"")]


def test_the_recorded_dialogue_of_table_offsets_holds() -> None:
    driver = Driver()
    assert driver.put((b"a", b"1"), offset=0) == [0]
    with pytest.raises(BadOffset) as stale:
        driver.put((b"a", b"2"), offset=0)
    assert (stale.value.expected, stale.value.actual) == (0, 19)
    assert driver.put((b"a", b"2"), offset=19) == [19]
    with pytest.raises(BadOffset) as beyond:
        driver.put((b"a", b"2"), offset=1019)
    assert beyond.value.actual == 38
    with pytest.raises(BadOffset):
        driver.remove(b"a", offset=0)
    driver.remove(b"a", offset=38)
    assert driver.table.info()[1] == 56
    assert driver.put((b"a", b"2"), offset=-2) == [56]
    assert driver.put((b"a", b"2"), offset=NO_VERSION) == [75]


def test_sizes_are_bounded_after_conditions_and_before_the_seal_and_the_offset() -> None:
    driver = Driver()
    assert driver.put((b"k" * 8192, b"v" * ((1 << 20) - 8192 - 17))) == [0]
    with pytest.raises(IllegalArgument, match=r"^Key\+Value serialization too large\.$"):
        driver.put((b"k", b"v" * ((1 << 20) - 17)), offset=3)
    with pytest.raises(IllegalArgument, match=r"^Key too large\.$"):
        driver.table.plan_remove([(b"k" * 8193, NO_VERSION)], sealed=True)
    with pytest.raises(KeyMissing):
        driver.put((b"k" * 8193, b"", 0))
    with pytest.raises(SegmentSealed):
        driver.table.plan_update([(b"k", b"v", NO_VERSION)], 3, sealed=True)


def test_hash_tables_are_walked_in_the_recorded_order_with_the_recorded_tokens() -> None:
    driver = Driver()
    assert driver.keys(10) == ([], b"")
    ten_keys(driver)
    order = [number for number in HASH_ORDER if number != 3]
    page, token = driver.keys(3)
    assert page == [(b"key%d" % number, 27 * number) for number in order[:3]]
    assert token.hex() == "0000010000000010a4b3504c2769fce9547f6dda310dd8b0"
    entries, token = driver.table.iterate(100, token)
    assert entries == [(b"key%d" % number, 27 * number, b"value%d" % number) for number in order[3:]]
    assert token.hex() == "00000100000000105bda7a9c0fb9e5102411342f9bedf63f"
    assert driver.keys(100, token) == ([], b"")
    assert driver.keys(0) == ([], b"")
    assert driver.table.iterate(-1) == ([], b"")
    assert len(driver.all_pages(2**31 - 1)) == 9


def test_an_iteration_continues_past_a_key_that_was_removed_or_added_meanwhile() -> None:
    driver = Driver()
    ten_keys(driver)
    _, token = driver.keys(2)
    driver.remove(b"key6", b"key4")
    driver.put((b"key3", b"again"))
    page, _ = driver.keys(100, token)
    assert [key for key, _ in page] == [b"key%d" % number for number in (0, 2, 9, 3, 5, 7, 8)]


def test_a_page_ends_when_it_reaches_two_mebibytes() -> None:
    driver = Driver()
    for number in range(5):
        driver.put((b"key%d" % number, bytes(900_000)))
    assert [len(driver.table.iterate(100)[0]), len(driver.keys(100)[0])] == [3, 5]
    assert len(driver.all_pages(100)) == 5
    of_keys = Driver()
    for number in range(300):
        of_keys.put((number.to_bytes(8192, "big"), b""))
    assert len(of_keys.keys(1000)[0]) == 256


def test_a_range_on_a_hash_table_is_refused_before_its_token_is_read() -> None:
    driver = Driver()
    for bounds in ((b"a", b"b"), (b"a", b""), (b"", b"b")):
        with pytest.raises(IllegalArgument, match=r"^Range Iterators not supported for HashTableSegments\.$"):
            driver.table.iterate(10, b"bad", *bounds)


def test_a_delta_follows_the_log() -> None:
    driver = Driver()
    driver.put((b"a", b"1"))
    driver.put((b"b", b"2"))
    driver.remove(b"a")
    driver.put((b"b", b"3"))
    assert driver.table.delta(0, 1) == ([(b"a", 0, b"1")], False, False, 19)
    assert driver.table.delta(0, 100) == ([(b"b", 56, b"3")], False, True, 75)
    assert driver.table.delta(19, 1) == ([(b"b", 19, b"2")], False, False, 38)
    assert driver.table.delta(38, 1) == ([(b"b", 56, b"3")], False, True, 75)
    assert driver.table.delta(38, 0) == ([], False, True, 0)
    assert driver.table.delta(75, 10) == ([], False, True, 0)
    assert driver.table.delta(0, -5) == ([], False, True, 0)


def test_a_delta_is_refused_outside_of_the_table_and_inside_of_an_entry() -> None:
    driver = Driver()
    driver.put((b"a", b"1"))
    with pytest.raises(IllegalArgument, match=r"^startOffset: startOffset must be a non-negative number\.$"):
        driver.table.delta(-1, 10)
    with pytest.raises(
        IllegalArgument, match=r"^fromPosition \(20\) can not exceed the length \(19\) of the TableSegment\.$"
    ):
        driver.table.delta(20, 10)
    assert driver.table.delta(3, 10) == ([], False, True, 0)  # less than a header is left: recorded
    driver.put((b"b", b"2"))
    with pytest.raises(Unmapped):
        driver.table.delta(3, 10)


def test_a_table_is_deleted_if_empty_only_when_it_is() -> None:
    driver = Driver()
    driver.table.check_delete(True)
    driver.put((b"a", b"1"))
    driver.table.check_delete(False)
    with pytest.raises(TableNotEmpty):
        driver.table.check_delete(True)
    driver.remove(b"a")
    driver.table.check_delete(True)
    Driver(4).table.check_delete(False)
    with pytest.raises(Unsupported):
        Driver(4).table.check_delete(True)


@looped(("key_length", "kept"), [(0, 0), (1, 1), (256, 256)])
def test_key_lengths_up_to_256_make_fixed_key_tables(key_length: int, kept: int) -> None:
    assert Driver(key_length).table.info() == (0, 0, 0, kept)


def test_a_fixed_key_table_writes_nothing_when_it_removes() -> None:
    driver = Driver(4)
    assert driver.put((b"aaaa", b"1"), (b"bbbb", b"2")) == [0, 22]
    driver.remove(b"aaaa", b"zzzz")
    assert driver.table.info() == (0, 44, 1, 4)
    driver.remove((b"bbbb", 22), offset=44)
    assert driver.table.get([b"aaaa", b"bbbb"]) == [(b"aaaa", ABSENT, b""), (b"bbbb", ABSENT, b"")]


def test_a_fixed_key_table_calls_a_missing_key_a_bad_version_and_checks_it_before_the_offset() -> None:
    driver = Driver(4)
    driver.put((b"aaaa", b"1"))
    for batch in ([(b"zzzz", b"", 7)], [(b"aaaa", b"", ABSENT)], [(b"aaaa", b"", 0), (b"aaaa", b"", 1)]):
        with pytest.raises(KeyBadVersion):
            driver.put(*batch, offset=99)
    with pytest.raises(SegmentSealed):
        driver.table.plan_update([(b"zzzz", b"", 7)], sealed=True)
    with pytest.raises(IllegalArgument, match="too large"):
        driver.table.plan_update([(b"zzzz", bytes(1 << 20), 7)], sealed=True)
    assert driver.put((b"bbbb", b"", ABSENT), (b"aaaa", b"", 0)) == [22, 43]


def test_a_fixed_key_table_is_walked_in_the_order_of_its_keys() -> None:
    driver = Driver(2)
    for key in (b"\xff\xff", b"bb", b"aa", b"\x00\x00", b"cc"):
        driver.put((key, b""))
    keys = [key for key, _ in driver.keys(100)[0]]
    assert keys == [b"\x00\x00", b"aa", b"bb", b"cc", b"\xff\xff"]
    page, token = driver.keys(100, b"", b"ab", b"cc")
    assert [key for key, _ in page] == [b"bb", b"cc"]
    assert token == bytes.fromhex("00000100" + "00000003" + "02") + b"cc"
    assert driver.keys(100, b"", b"cd", b"ce") == ([], b"")
    with pytest.raises(IllegalArgument, match=r"^firstKey must be smaller than or equal to lastKey\.$"):
        driver.keys(100, b"", b"cc", b"bb")
    with pytest.raises(IllegalArgument, match=r"^ContinuationToken not supported for FixedKeyLengthTableSegments\.$"):
        driver.keys(100, token)
    with pytest.raises(Unsupported):
        driver.table.delta(-1, 10)


def test_a_fixed_key_page_is_a_leaf_and_a_range_continues_from_it() -> None:
    driver = Driver(4)
    driver.put(*[(number.to_bytes(4, "big"), b"") for number in range(6000)])
    page, token = driver.keys(1)
    assert 1 < len(page) < 6000
    seen = len(page)
    while page:
        following = (int.from_bytes(page[-1][0], "big") + 1).to_bytes(4, "big")
        page, token = driver.keys(1, b"", following)
        seen += len(page)
    assert (seen, token) == (6000, b"")


def test_an_entry_that_was_truncated_away_is_never_answered() -> None:
    driver = Driver()
    driver.put((b"a", b"1"))
    driver.append(b"\x00\x00\x00\x00\x00\x00\x00\x01x")
    assert driver.table.info() == (0, 28, 1, 0)
    driver.data.truncate(1)
    with pytest.raises(Unanswered):
        driver.table.get([b"a"])
    assert driver.table.info() == (1, 28, 1, 0)
    driver.put((b"a", b"2"))
    assert driver.table.get([b"a"]) == [(b"a", 28, b"2")]


def test_events_appended_to_a_table_end_its_deltas_and_nothing_else() -> None:
    driver = Driver()
    driver.put((b"a", b"1"))
    driver.append(b"\x00\x00\x00\x00\x00\x00\x00\x01x")
    assert driver.put((b"b", b"2")) == [28]
    assert driver.table.get([b"a", b"b"]) == [(b"a", 0, b"1"), (b"b", 28, b"2")]
    assert driver.keys(10)[0] == [(b"a", 0), (b"b", 28)]
    assert driver.table.delta(28, 10) == ([(b"b", 28, b"2")], False, True, 47)
    for count in (1, 100):
        with pytest.raises(Unmapped):
            driver.table.delta(0, count)


def test_an_empty_key_is_a_key_like_others() -> None:
    driver = Driver()
    assert driver.table.get([b""]) == [(b"", ABSENT, b"")]
    assert driver.put((b"", b"x")) == [0]
    assert driver.table.get([b""]) == [(b"", 0, b"x")]
    assert driver.table.iterate(1)[0] == [(b"", 0, b"x")]
    driver.remove(b"")
    assert driver.table.info()[2] == 0


def test_buffers_are_copied() -> None:
    driver = Driver()
    buffer = bytearray(b"kv")
    view = memoryview(buffer)
    write = driver.table.plan_update([(view[:1], view[1:], NO_VERSION)])
    buffer[:] = b"xx"
    driver.carry_out(write)
    assert driver.value(b"k") == b"v"


def test_a_table_that_is_overwritten_again_and_again_stays_small_and_keeps_its_versions() -> None:
    driver = Driver()
    (pinned,) = driver.put((b"pinned", b"for ever"))
    for number in range(900):
        (version,) = driver.put((b"hot%d" % (number % 3), bytes(16 * 1024)))
    start_offset, length, *_ = driver.table.info()
    assert start_offset > 0
    assert length - start_offset < 5 * 1024 * 1024
    assert driver.table.get([b"pinned", b"hot2"]) == [
        (b"pinned", pinned, b"for ever"),
        (b"hot2", version, bytes(16 * 1024)),
    ]
    with pytest.raises(KeyBadVersion):
        driver.put((b"pinned", b"", version))
    fresh = driver.table.delta(0, 2**31 - 1)
    assert fresh.should_clear
    assert {key for key, _, _ in fresh.entries} >= {b"pinned", b"hot0", b"hot1", b"hot2"} or not fresh.reached_end
    driver.put((b"pinned", b"changed", pinned))
    assert driver.value(b"pinned") == b"changed"


def test_a_replayed_journal_gives_the_same_table() -> None:
    driver = Driver()
    for number in range(700):
        driver.put((b"hot%d" % (number % 5), bytes([number % 251]) * 16_000))
    replayed = Driver()
    for change in driver.journal:
        change(replayed)
    assert replayed.table.info() == driver.table.info()
    assert replayed.all_pages(10) == driver.all_pages(10)
    for both in (driver, replayed):
        for number in range(300):
            both.put((b"hot%d" % (number % 5), bytes(16_000)))
    assert replayed.table.info() == driver.table.info()


def test_a_table_can_be_restored_from_its_bytes_and_positions() -> None:
    driver = Driver(4)
    driver.put((b"aaaa", b"1"), (b"bbbb", b"2"))
    driver.remove(b"aaaa")
    driver.append(b"an event")
    anew = Driver(4)
    anew.data.write(driver.data.read_bytes(0, driver.data.length))
    anew.table.restore(driver.table.positions(), driver.table.live_bytes)
    assert anew.table.info() == driver.table.info()
    assert anew.table.iterate(10) == driver.table.iterate(10)


KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
CHANGES = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(KEYS, st.binary(max_size=3), st.sampled_from(["any", "absent", "right", "wrong"])), max_size=4
        ),
        st.sampled_from([-1, 0, 1]),
    ),
    max_size=30,
)


def all_entries(driver: Driver) -> dict[bytes, tuple[int, bytes]]:
    pages = driver.table.iterate(100)[0] if driver.table.is_fixed_key else driver.all_pages(2)
    return {key: (version, value) for key, version, value in pages}


@pytest.mark.parametrize("many", [2, 16_384])
@given(key_length=st.sampled_from([0, 1]), changes=CHANGES, walked=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_behaves_as_a_dict_with_versions(
    monkeypatch: pytest.MonkeyPatch,
    many: int,
    key_length: int,
    changes: list[tuple[bool, list[tuple[bytes, bytes, str]], int]],
    walked: bool,
) -> None:
    """many: number of keys from which they are sorted before any iteration. walked: whether they are sorted, after each
    change."""
    monkeypatch.setattr(table_iteration, "_MANY", many)
    driver = Driver(key_length)
    model: dict[bytes, tuple[int, bytes]] = {}
    length = 0
    for removal, batch, place in changes:
        offset = -1 if place < 0 else length + place
        versions = []
        for key, _, wish in batch:
            held = model.get(key, (ABSENT, b""))[0]
            versions.append({"any": NO_VERSION, "absent": ABSENT, "right": held, "wrong": held + 1}[wish])
        missing = [key not in model and version >= 0 for (key, _, _), version in zip(batch, versions, strict=True)]
        wrong = [
            key in model and version not in (NO_VERSION, model[key][0])
            for (key, _, _), version in zip(batch, versions, strict=True)
        ]
        expected: type[StoreError] | None = None
        if any(missing) or any(wrong):
            expected = KeyMissing if any(missing) and not key_length else KeyBadVersion
        elif offset >= 0 and offset != length:
            expected = BadOffset
        raised: type[StoreError] | None = None
        try:
            if removal:
                driver.remove(
                    *[(key, version) for (key, _, _), version in zip(batch, versions, strict=True)], offset=offset
                )
            else:
                driver.put(
                    *[(key, value, version) for (key, value, _), version in zip(batch, versions, strict=True)],
                    offset=offset,
                )
        except StoreError as error:
            raised = type(error)
        assert raised is expected
        if expected is None:
            for key, value, _ in batch:
                if removal:
                    model.pop(key, None)
                    length += 0 if key_length else 17 + len(key)
                else:
                    model[key] = (length, value)
                    length += 17 + len(key) + len(value)
        assert driver.table.info() == (0, length, len(model), key_length)
        if walked:
            assert all_entries(driver) == model
    assert all_entries(driver) == model
    if key_length:
        assert [key for key, _ in driver.keys(9)[0]] == sorted(model)
        return
    told: dict[bytes, tuple[int, bytes]] = {}
    delta = driver.table.delta(0, 2**31 - 1)
    told.update({key: (version, value) for key, version, value in delta.entries})
    assert told == model
    assert delta.last_position in (length, 0)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), st.integers(-3, 400), st.integers(-2, 5))
def test_no_delta_does_more_than_be_refused_whatever_the_log_holds(
    appends: Iterable[bytes], position: int, count: int
) -> None:
    driver = Driver()
    for data in appends:
        driver.append(data)
        driver.put((b"k", data))
    try:
        delta = driver.table.delta(position, count)
    except (IllegalArgument, Unmapped):
        return
    assert len(delta.entries) <= max(count, 0)
    assert delta.last_position == 0 or delta.last_position > position
