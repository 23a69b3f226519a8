"""The state of a reader group from the entries of its table: kept, removed, refused."""

from __future__ import annotations

import pytest

from segstore.wire.reader_groups import StoredGroup
from segstore.wire.reader_groups.stored import ASSIGNED, CONFIG, FUTURE, ONLY, UNASSIGNED
from segstore.wire.reader_groups.table import TOMBSTONE
from tests.wire.reader_groups.entries import (
    cbor_encode,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_streams,
    encode_value,
)

SEGMENT = "s/x/0.#epoch.0"
GONE = encode_value(TOMBSTONE, cbor_encode({}))


def test_entries_of_each_map_are_taken_and_tombstones_and_removals_forgotten() -> None:
    group = StoredGroup()
    group.take(CONFIG, ONLY, encode_value("config", encode_streams(("s", "x"))))
    group.take(ASSIGNED, "one", encode_value("offsets", encode_offsets({SEGMENT: 7})))
    group.take(UNASSIGNED, "s/x/1.#epoch.0", encode_value("offset", encode_offset(9)))
    group.take(FUTURE, "s/x/2.#epoch.1", encode_value("set", encode_predecessors([0, 1])))
    group.take("a map of later clients", "key", encode_value("other", b"\0"))
    assert group.streams == ["s/x"]
    assert group.readers == {"one": {SEGMENT: 7}}
    assert group.unassigned == {"s/x/1.#epoch.0": 9}
    assert group.future == {"s/x/2.#epoch.1": {0, 1}}
    group.take(ASSIGNED, "one", GONE)
    group.take(UNASSIGNED, "s/x/1.#epoch.0", None)
    group.take(FUTURE, "s/x/2.#epoch.1", GONE)
    group.take(CONFIG, ONLY, GONE)
    assert vars(group) == vars(StoredGroup())


@pytest.mark.parametrize(
    ("outer", "inner", "value", "why"),
    [
        (UNASSIGNED, "no segment", encode_value("offset", encode_offset(0)), "not a stream segment"),
        (UNASSIGNED, SEGMENT, encode_value("offset", cbor_encode({"read": -1})), "not an offset"),
        (ASSIGNED, "one", b"\xff", "no supported type"),
        (FUTURE, SEGMENT, encode_value("set", cbor_encode("text")), "not a list of segments"),
    ],
)
def test_malformed_entries_are_refused(outer: str, inner: str, value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StoredGroup().take(outer, inner, value)
