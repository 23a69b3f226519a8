"""One segment: its attributes and the gate of its appends."""

from uuid import UUID

from segstore.server.store import EVENT_COUNT, NULL_VALUE, ChunkPool, Kind, Segment
from segstore.server.store.attributes import SCALE_POLICY_TYPE, SEGMENT_TYPE, core_id

A = UUID(int=1)


def segment(kind: Kind = Kind.STREAM) -> Segment:
    return Segment("s", kind, ChunkPool(), 7)


def test_core_and_extended_attributes_are_set_and_read_alike() -> None:
    s = segment()
    for attribute_id in (A, SCALE_POLICY_TYPE, core_id(8)):
        assert s.attribute(attribute_id) is None
        s.set_attribute(attribute_id, 5)
        assert s.attribute(attribute_id) == 5
    assert dict(s.attribute_values()) == {A: 5, SCALE_POLICY_TYPE: 5, core_id(8): 5}


def test_a_null_value_is_kept_and_counted() -> None:
    s = segment()
    assert s.attribute(A) is None
    s.set_attribute(A, NULL_VALUE)
    assert s.attribute(A) == NULL_VALUE
    assert len(s.attributes) == 1


def test_an_event_count_past_int64_wraps_when_it_is_read() -> None:
    s = segment()
    s.set_attribute(EVENT_COUNT, 1 << 63)
    assert s.attribute(EVENT_COUNT) == s.event_count == -(1 << 63)


def test_overwriting_the_kind_does_not_change_what_a_segment_is() -> None:
    s = segment(Kind.TRANSIENT)
    s.set_attribute(SEGMENT_TYPE, 0)
    assert (s.is_transient, s.is_table, s.attribute(SEGMENT_TYPE)) == (True, False, 0)


def test_the_gate_is_open_for_plain_segments_alone() -> None:
    assert not segment().gate
    assert segment(Kind.TRANSIENT).gate
    assert segment(Kind.FIXED_KEY_TABLE).gate
    sealed = segment()
    sealed.seal()
    assert (sealed.sealed, sealed.gate) == (True, True)


def test_a_segment_that_is_discarded_holds_nothing() -> None:
    s = segment(Kind.TABLE)
    s.set_attribute(A, 5)
    s.write(b"data")
    s.discard()
    assert (s.attributes, s.table, s.charged) == ({}, None, 0)
