"""Updates and configurations of reader groups: bytes of a Java client, earlier and later revisions, hostile bytes."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.reader_groups import (
    AcquireSegment,
    GroupConfig,
    SegmentCompleted,
    Update,
    UpdateDistance,
    encode_update,
)
from segstore.wire.reader_groups.updates import decode_config, decode_kind, decode_update, encode_config
from segstore.wire.versioned import Output, encode_object
from tests.looped import looped
from tests.wire.reader_groups.java import java_configs, java_updates

ZERO, NEXT = "scope/stream/0.#epoch.0", "scope/stream/3.#epoch.1"


def decoded(data: bytes) -> Update:
    return decode_update(*decode_kind(data))


@looped(("name", "data"), [(name, data) for name, data, _ in java_updates()])
def test_an_update_has_the_bytes_of_a_java_client(name: str, data: bytes) -> None:
    update = decoded(data)
    if name == "completed":  # its ranges are in the order of a hash map
        assert decoded(encode_update(update)) == update
        assert sorted(encode_update(update)) == sorted(data)
    else:
        assert encode_update(update) == data


def test_earlier_and_later_revisions_are_read() -> None:
    later = encode_object([Output().text("r").text(ZERO), Output().long(9)], kind=5)
    assert decoded(later) == AcquireSegment("r", ZERO)
    assert decoded(encode_object([Output().text("r").long(7)], kind=6)) == UpdateDistance("r", 7, {})
    completed = Output().text("r").text(ZERO).count(1).text(NEXT).longs([0, 1])
    assert decoded(encode_object([completed], kind=7)) == SegmentCompleted("r", ZERO, {NEXT: [0, 1]})


@looped(
    ("data", "why"),
    [
        (b"", "4 bytes expected at 0"),
        (b"\0\x0e\0\1", r"type 14 in version 0\.0 with 1 revisions is not known"),
        (encode_object([Output().text("r").text("<b>").long(0)], kind=4), "is not a stream segment"),
        (encode_object([Output().integer(0x0001FF00)], kind=2), "starts no modified UTF-8 character"),
        (encode_object([Output().text("r").count(1 << 29)], kind=3), "bytes expected at 7"),
    ],
)
def test_other_bytes_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoded(data)


PLAIN = GroupConfig({"scope/stream": {}}, {"scope/stream": {}})
FULL = GroupConfig(
    {"scope/stream": {0: 5, 1: 100_000, (1 << 32) + 7: -1, (3 << 32) + 1_000_000: 1 << 40}, "other/t": {}},
    {"scope/stream": {0: 40, 1: 4_000_000_000, (1 << 32) + 7: -1, (3 << 32) + 1_000_000: 1 << 41}, "other/t": {}},
    refresh_ms=1234,
    checkpoint_ms=-1,
    most_checkpoints=7,
    retention="manual",
    generation=42,
    id=UUID("01234567-89ab-cdef-8123-456789abcdef"),
)


@looped(("name", "config"), [("plain", PLAIN), ("full", FULL)])
def test_a_configuration_has_the_bytes_of_a_java_client(name: str, config: GroupConfig) -> None:
    assert decode_config(java_configs()[name]) == config
    assert encode_config(config) == java_configs()[name]


cuts = st.dictionaries(
    st.sampled_from(["a/s", "b/t"]), st.dictionaries(st.integers(0, (1 << 62) - 1), st.integers(-1, (1 << 61) - 1))
)


@given(cuts, cuts, st.integers(0, 2), st.uuids())
def test_configurations_survive(starts: dict, ends: dict, retention: int, identifier: UUID) -> None:  # type: ignore[type-arg]
    kind = ("none", "manual", "automatic")[retention]
    config = GroupConfig(starts, ends, 1, 2, 3, kind, 4, identifier)
    assert decode_config(encode_config(config)) == config


def test_earlier_revisions_and_cuts_are_read() -> None:
    cut = Output().text("a/s").count(1).compact_long(3).compact_long(77)
    first = Output().long(5).long(6).count(1).text("a/s").array(encode_object([cut])).count(0)
    assert decode_config(encode_object([first])) == GroupConfig({"a/s": {3: 77}}, {}, 6, 5)


def test_an_unknown_type_of_retention_is_refused() -> None:
    plain = java_configs()["plain"]
    with pytest.raises(ValueError, match="3 is no type of retention"):
        decode_config(plain[:-25] + b"\3" + plain[-24:])
