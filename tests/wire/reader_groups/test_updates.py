"""The state of a reader group of Java clients: events that such a client wrote, updates of each kind, hostile bytes."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.reader_groups import ReplayedGroup
from tests.wire.reader_groups.java import java_events

ZERO, ONE, NEXT = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0", "scope/stream/2.#epoch.1"


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def long(value: int) -> bytes:
    return struct.pack(">q", value)


def a_map(*entries: bytes) -> bytes:
    return bytes([len(entries)]) + b"".join(entries)


def an_object(kind: int, *revisions: bytes) -> bytes:
    parts = b"".join(bytes([number]) + struct.pack(">i", len(each)) + each for number, each in enumerate(revisions))
    return bytes([0, kind, 0, len(revisions)]) + parts


def updates(*objects: bytes) -> bytes:
    return struct.pack(">i", 2) + b"".join(struct.pack(">i", len(each)) + each for each in objects)


def test_what_a_java_client_wrote_is_replayed() -> None:
    group = ReplayedGroup()
    created, added, acquired, removed = java_events()
    group.apply(created)
    assert (group.readers, group.unassigned) == ({}, {ZERO: 0, ONE: 0})
    group.apply(added)
    assert group.positions() == {"reader": {}}
    group.apply(acquired)
    assert (group.positions(), group.unassigned) == ({"reader": {ZERO: 0, ONE: 0}}, {})
    group.apply(removed)
    assert (group.positions(), group.unassigned) == ({}, {ZERO: 68, ONE: 98})


def test_progress_completion_release_and_unknown_updates() -> None:
    group = ReplayedGroup()
    for event in java_events()[:3]:
        group.apply(event)
    progress = text("reader") + long(9), a_map(text(ZERO) + struct.pack(">dd", 0, 0.5) + long(40))
    group.apply(updates(an_object(6, *progress), an_object(8, b"a checkpoint"), an_object(6, text("reader") + long(1))))
    assert group.positions() == {"reader": {ZERO: 40, ONE: 0}}
    completed = text("reader") + text(ZERO) + a_map(text(NEXT) + a_map(long(0), long(1)))
    group.apply(updates(an_object(7, completed, b"", b"a later revision")))
    assert (group.positions(), group.future) == ({"reader": {ONE: 0}}, {NEXT: {1}})
    group.apply(updates(an_object(7, text("reader") + text(ONE) + a_map())))
    assert (group.positions(), group.future, group.unassigned) == ({"reader": {}}, {}, {NEXT: 0})
    group.apply(updates(an_object(5, text("reader") + text(NEXT)), an_object(4, text("reader") + text(NEXT) + long(7))))
    assert (group.positions(), group.unassigned) == ({"reader": {}}, {NEXT: 7})


def test_a_segment_is_unassigned_once_all_its_predecessors_are_read() -> None:
    group = ReplayedGroup()
    read = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    later = {number: f"scope/stream/{number}.#epoch.1" for number in (3, 4, 5, 6)}
    waits = a_map(
        text(later[3]) + a_map(long(0)),
        text(later[4]) + a_map(long(0), long(1)),
        text(later[5]) + a_map(long(2), long(99)),
    )
    readers = a_map(text("reader") + a_map(*(text(each) + long(0) for each in read)))
    group.apply(struct.pack(">i", 1) + an_object(1, bytes(3) + waits + readers + a_map()))

    def complete(number: int, *following: bytes) -> set[str]:
        group.apply(updates(an_object(7, text("reader") + text(read[number]) + a_map(*following))))
        return set(group.unassigned)

    assert complete(1, text(later[6]) + a_map(long(1))) == {later[6]}
    assert complete(0) == {later[6], later[3], later[4]}
    assert complete(2, text(later[5]) + a_map(long(2))) == {later[6], later[3], later[4]}  # it is waited for already
    assert group.future == {later[5]: {99}}


def test_a_compact_state_replaces_all_before_it() -> None:
    group = ReplayedGroup()
    for event in java_events()[:3]:
        group.apply(event)
    large = bytes([0x80 | 1, 4]) + b"c" * 260  # its length takes two bytes
    first = (
        large
        + b"\x00"
        + a_map(text("new") + long(5))
        + a_map(text(NEXT) + a_map(long(1)))
        + a_map(text("new") + a_map(text(ONE) + long(3)))
        + a_map(text(ZERO) + long(8))
        + a_map()
    )
    group.apply(struct.pack(">i", 1) + an_object(1, first, a_map(text(ONE) + long(6)) + a_map()))
    assert (group.positions(), group.unassigned, group.future) == ({"new": {ONE: 6}}, {ZERO: 8}, {NEXT: {1}})


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (b"", "4 bytes expected at 0"),
        (struct.pack(">i", 3), "neither an initial state nor updates"),
        (struct.pack(">i", 1) + b"\0\x0e\0\1", "type 14 in version 0.0 with 1 revisions is not known"),
        (struct.pack(">ii", 2, -5), "-5 bytes expected"),
        (struct.pack(">ii", 2, 1 << 30), "bytes expected at 8, only 0 left"),
        (updates(b"\0\2\0\1\7\0\0\0\0"), "revision 7 where 0 is expected"),
        (updates(an_object(5, text("r") + text(ZERO))), "cannot acquire"),
        (updates(an_object(4, text("r") + text(ZERO) + long(0))), "has no segment"),
        (updates(an_object(4, text("r") + text("<b>") + long(0))), "is not a stream segment"),
        (updates(an_object(2, b"\0\1\xff")), "starts no modified UTF-8 character"),
    ],
)
def test_other_bytes_are_refused(event: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ReplayedGroup().apply(event)


@given(st.data())
def test_damaged_events_are_refused_or_replayed(data: st.DataObject) -> None:
    group = ReplayedGroup()
    for event in java_events():
        damaged = bytearray(event)
        for _ in range(data.draw(st.integers(0, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(damaged)))
        with suppress(ValueError):
            group.apply(bytes(damaged[:cut]))
            assert set(group.positions()) == set(group.readers)
