"""A reader group in a table: entries of the official client, hostile ones, round trips, and the rules of the state."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.reader_groups import (
    AcquireSegment,
    AddReader,
    CheckpointReader,
    GroupConfig,
    InitialState,
    ReleaseSegment,
    RemoveReader,
    SegmentCompleted,
    StoredGroup,
    Update,
    UpdateDistance,
    table,
)
from segstore.wire.reader_groups.table import (
    DISTANCE,
    FUTURE,
    ONLY,
    TOMBSTONE,
    UNASSIGNED,
    VERSION_VALUE,
    cbor_decode,
    cbor_encode,
    decode_config,
    decode_key,
    decode_offset,
    decode_offsets,
    decode_predecessors,
    decode_value,
    encode_config,
    encode_key,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_value,
)
from tests.looped import looped

# Written by pravega 0.3.8 for a group over a/s, of two segments, with one reader.
KEYS = {
    b"p06config/default": ("config", "default"),
    b"h06config": ("config", None),
    b"u17assigned_segments/r": ("assigned_segments", "r"),
    b"x$19unassigned_segments/a/s/1.#epoch.0": ("unassigned_segments", "a/s/1.#epoch.0"),
}
CONFIG = bytes.fromhex(
    "a267747970655f6964781a52656164657247726f7570436f6e66696756657273696f6e65646464617461987518a118621856183118a31878"
    "181918671872186f18751870185f1872186518661872186518731868185f18741869186d1865185f186d1869186c186c1869187318190b18"
    "b81874187318741861187218741869186e1867185f18731874187218651861186d185f186318751874187318a118a2186518731863186f18"
    "70186518a11864186e1861186d186518611861186618731874187218651861186d18a11864186e1861186d18651861187318691855186e18"
    "62186f1875186e18641865186418721865186e18641869186e1867185f18731874187218651861186d185f186318751874187318a0"
)
ASSIGNED = bytes.fromhex(
    "a267747970655f6964781e486173684d61703c53636f7065645365676d656e742c204f66667365743e6464617461987b18a218a3186518731863"
    "186f1870186518a11864186e1861186d186518611861186618731874187218651861186d18a11864186e1861186d186518611873186718731865"
    "1867186d1865186e187418a21866186e1875186d18621865187200186518741878185f1869186418f618a1186418721865186118640018a31865"
    "18731863186f1870186518a11864186e1861186d186518611861186618731874187218651861186d18a11864186e1861186d1865186118731867"
    "187318651867186d1865186e187418a21866186e1875186d18621865187201186518741878185f1869186418f618a11864187218651861186400"
)


def test_keys_are_those_of_the_official_client() -> None:
    for data, names in KEYS.items():
        assert decode_key(data) == names
        assert encode_key(*names) == data


def test_a_configuration_is_that_of_the_official_client() -> None:
    kind, data = decode_value(CONFIG)
    assert kind == "ReaderGroupConfigVersioned"
    assert decode_config(data) == GroupConfig({"a/s": {}}, refresh_ms=3000, checkpoint_ms=-1)
    assert encode_value(kind, encode_config(GroupConfig({"a/s": {}}, checkpoint_ms=5))) == CONFIG


def test_a_readers_segments_are_those_of_the_official_client() -> None:
    kind, data = decode_value(ASSIGNED)
    assert decode_offsets(data) == {"a/s/0.#epoch.0": 0, "a/s/1.#epoch.0": 0}
    assert encode_value(kind, encode_offsets({"a/s/0.#epoch.0": 0, "a/s/1.#epoch.0": 0})) == ASSIGNED


def test_small_values_are_those_of_the_official_client() -> None:
    assert VERSION_VALUE.hex() == "a267747970655f696464626c6f6264646174618100"
    assert encode_value("tombstone", cbor_encode({})).hex() == "a267747970655f696469746f6d6273746f6e6564646174618118a0"
    assert encode_value("u64", cbor_encode(2**64 - 1)).hex() == (
        "a267747970655f696463753634646461746189181b18ff18ff18ff18ff18ff18ff18ff18ff"
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(plain)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert cbor_decode(cbor_encode(value)) == value


@given(st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(0, 2**63 - 1)))
def test_offsets_survive(numbers: dict[tuple[int, int], int]) -> None:
    offsets = {f"scope/stream/{number}.#epoch.{epoch}": at for (epoch, number), at in numbers.items()}
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(st.integers(0, 2**63 - 1), st.sets(st.integers(0, 2**62)))
def test_an_offset_and_predecessors_survive(offset: int, before: set[int]) -> None:
    assert decode_offset(encode_offset(offset)) == offset
    assert decode_predecessors(encode_predecessors(sorted(before))) == sorted(before)


def test_a_configuration_with_cuts_survives() -> None:
    config = GroupConfig({"a/s": {0: 5, (1 << 32) + 3: 0}, "b/u": {}}, refresh_ms=50, checkpoint_ms=-1)
    assert decode_config(encode_config(config)) == config


def test_a_start_at_the_tail_is_read_and_another_is_refused() -> None:
    encoded = encode_config(GroupConfig({"a/s": {}}))
    head, tail = cbor_encode("Unbounded"), cbor_encode("Tail")
    assert decode_config(encoded.replace(head, tail)).starts == {"a/s": {}}
    with pytest.raises(ValueError, match="'Head' is not the start of a stream"):
        decode_config(encoded.replace(head, cbor_encode("Head")))


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    decoders = (cbor_decode, decode_key, decode_value, decode_config, decode_offsets)
    for decode in (*decoders, decode_predecessors):
        try:
            decode(data)
        except ValueError:
            continue


@looped(
    ("data", "text"),
    [
        ("", "1 bytes expected at 0, only 0 left"),
        ("18", "1 bytes expected at 1"),
        ("9b7fffffffffffffff", "items expected at 0, only 0 bytes left"),
        ("bb7fffffffffffffff00", "items expected at 0, only 1 bytes"),
        ("7b7fffffffffffffff", "bytes expected at 9, only 0"),
        ("61ff", "not UTF-8"),
        ("c000", "0xc0 at 0 starts no supported type"),
        ("9fff", "0x9f at 0 starts no supported type"),
        ("fb0000000000000000", "0xfb at 0"),
        ("0000", "1 trailing bytes after a value of 1"),
        ("81" * 40 + "00", "nested deeper than 16"),
    ],
)
def test_what_is_no_value_is_refused_with_the_place(data: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        cbor_decode(bytes.fromhex(data))


@looped(
    ("decode", "value", "text"),
    [
        (decode_key, 5, "is not a reader group key"),
        (decode_key, "xx", "is not a reader group key"),
        (decode_key, "05abc", "a name of 5 bytes is expected"),
        (decode_key, "01abc", "a name of 1 bytes is expected"),
        (decode_value, {"type_id": "x"}, "no data in a map of 1"),
        (decode_value, {"type_id": "x", "data": [256]}, "not a type and bytes"),
        (decode_value, [], "is not a map"),
        (decode_offset, {"read": -1}, "is not an offset"),
        (decode_offset, {"read": True}, "is not an offset"),
        (decode_predecessors, {}, "is not a list"),
        (decode_config, {"V2": {}}, "no V1"),
    ],
)
def test_what_is_no_entry_is_refused(decode: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(cbor_encode(value))


@given(st.text(), st.binary(max_size=300))
def test_a_value_is_a_map_of_a_name_and_numbers(kind: str, data: bytes) -> None:
    assert decode_value(encode_value(kind, data)) == (kind, data)


SEGMENT = "s/x/0.#epoch.0"
GONE = encode_value(TOMBSTONE, cbor_encode({}))
ONE, TWO, NEXT, OTHER = "s/x/0.#epoch.0", "s/x/1.#epoch.0", "s/x/2.#epoch.1", "s/y/2.#epoch.1"
CREATED = InitialState(GroupConfig({"s/x": {}, "s/y": {}}, checkpoint_ms=-1), {ONE: 0, TWO: 5}, {})


def facts(group: StoredGroup) -> dict[str, Any]:
    return {name: value for name, value in vars(group).items() if not name.startswith("_")}


def written(group: StoredGroup, *updates: Update) -> tuple[StoredGroup, list[tuple[str, str, bool]]]:
    """The group as another client reads it after updates, and the entries: map, key, and whether it is written."""
    draft, other = group.copy(), group.copy()
    for update in updates:
        draft.apply(update)
    entries = group.changes_to(draft)
    for entry in entries:
        other.take(*entry)
    for name in ("config", "readers", "unassigned", "future"):
        assert getattr(other, name) == getattr(draft, name), name
    return other, [(outer, inner, value != GONE) for outer, inner, value in entries]


def test_entries_of_each_map_are_taken_and_tombstones_and_removals_forgotten() -> None:
    group = StoredGroup()
    group.take(table.CONFIG, ONLY, encode_value("config", encode_config(GroupConfig({"s/x": {}}))))
    group.take(table.ASSIGNED, "one", encode_value("offsets", encode_offsets({SEGMENT: 7})))
    group.take(UNASSIGNED, "s/x/1.#epoch.0", encode_value("offset", encode_offset(9)))
    group.take(FUTURE, "s/x/2.#epoch.1", encode_value("set", encode_predecessors([0, 1])))
    group.take("a map of later clients", "key", encode_value("other", b"\0"))
    assert group.config == GroupConfig({"s/x": {}}, checkpoint_ms=-1)
    assert group.readers == {"one": {SEGMENT: 7}}
    assert group.unassigned == {"s/x/1.#epoch.0": 9}
    assert group.future == {"s/x/2.#epoch.1": {0, 1}}
    group.take(table.ASSIGNED, "one", GONE)
    group.take(UNASSIGNED, "s/x/1.#epoch.0", None)
    group.take(FUTURE, "s/x/2.#epoch.1", GONE)
    group.take(table.CONFIG, ONLY, GONE)
    assert facts(group) == facts(StoredGroup())


@looped(
    ("outer", "inner", "value", "why"),
    [
        (UNASSIGNED, "no segment", encode_value("offset", encode_offset(0)), "not a stream segment"),
        (UNASSIGNED, SEGMENT, encode_value("offset", cbor_encode({"read": -1})), "not an offset"),
        (table.ASSIGNED, "one", b"\xff", "no supported type"),
        (FUTURE, SEGMENT, encode_value("set", cbor_encode("text")), "not a list of segments"),
    ],
)
def test_malformed_entries_are_refused(outer: str, inner: str, value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StoredGroup().take(outer, inner, value)


def test_each_update_writes_the_entries_that_it_changes_those_that_are_gone_last() -> None:
    group, entries = written(StoredGroup(), CREATED)
    assert entries == [(table.CONFIG, ONLY, True), (UNASSIGNED, ONE, True), (UNASSIGNED, TWO, True)]
    group, entries = written(group, AddReader("r"), AcquireSegment("r", ONE))
    assert entries == [(table.ASSIGNED, "r", True), (DISTANCE, "r", True), (UNASSIGNED, ONE, False)]
    group, entries = written(group, CheckpointReader("c", "r", {ONE: 7}), UpdateDistance("r", 1, {ONE: 9}))
    assert (entries, group.readers) == ([(table.ASSIGNED, "r", True)], {"r": {ONE: 7}})
    group, entries = written(group, ReleaseSegment("r", ONE, 8))
    assert entries == [(table.ASSIGNED, "r", True), (UNASSIGNED, ONE, True)]
    assert (group.readers, group.unassigned) == ({"r": {}}, {ONE: 8, TWO: 5})
    group, entries = written(group, AcquireSegment("r", TWO), RemoveReader("r", {TWO: 6}))
    assert entries == [(UNASSIGNED, TWO, True), (table.ASSIGNED, "r", False), (DISTANCE, "r", False)]
    assert group.changes_to(group.copy()) == []


def test_a_successor_waits_for_its_predecessors_and_for_none_of_another_stream() -> None:
    group, _ = written(StoredGroup(), CREATED, AddReader("r"), AcquireSegment("r", ONE), AcquireSegment("r", TWO))
    group.take(FUTURE, OTHER, encode_value("set", encode_predecessors([0])))
    group, entries = written(group, SegmentCompleted("r", ONE, {NEXT: [0, 1]}))
    assert entries == [(table.ASSIGNED, "r", True), (FUTURE, NEXT, True)]
    assert group.future == {OTHER: {0}, NEXT: {1}}
    group, entries = written(group, SegmentCompleted("r", TWO, {NEXT: [0, 1]}))
    assert entries == [(table.ASSIGNED, "r", True), (UNASSIGNED, NEXT, True), (FUTURE, NEXT, False)]
    assert (group.unassigned, group.future) == ({NEXT: 0}, {OTHER: {0}})
