"""Updates of a reader group's state: bytes that a Java client wrote, earlier and later revisions, hostile bytes."""

from __future__ import annotations

import pytest

from segstore.wire.reader_groups import AcquireSegment, SegmentCompleted, Update, UpdateDistance, encode_update
from segstore.wire.reader_groups.updates import decode_kind, decode_update
from segstore.wire.reader_groups.versioned import Output, encode_object
from tests.looped import looped
from tests.wire.reader_groups.java import java_updates

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
