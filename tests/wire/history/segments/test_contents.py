"""Contents: whatever pieces are read, in whatever order, the events are those of the segment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.history.segments.contents import Contents, hashes_of
from tests.wire.history.segments.support import event

PAYLOADS = st.lists(st.text("ab\0", max_size=12), min_size=1, max_size=12)


@given(PAYLOADS, st.data())
def test_any_reads_of_one_segment_agree_and_show_its_events(payloads: list[str], data: st.DataObject) -> None:
    whole = b"".join(map(event, payloads))
    hashes = hashes_of(whole)
    contents = Contents()
    starts = st.tuples(st.integers(0, len(whole)), st.integers(0, 40))
    for start, size in data.draw(st.lists(starts, max_size=20)):
        assert contents.read(start, whole[start : start + size], 0) is None
    at = 0
    while at < len(whole):
        size = data.draw(st.integers(1, 40))
        assert contents.read(at, whole[at : at + size], 0) is None
        at += size
    spans = [span for span in contents.certain([]) if span.start == 0]
    assert [(span.end, list(span.hashes)) for span in spans] == [(len(whole), hashes)]


@given(PAYLOADS, st.integers(0))
def test_a_byte_of_a_payload_that_differs_is_found(payloads: list[str], position: int) -> None:
    payloads = [f"{payload}!" for payload in payloads]
    whole = bytearray(b"".join(map(event, payloads)))
    contents = Contents()
    assert contents.read(0, bytes(whole), 0) is None
    marks = [offset for offset, byte in enumerate(whole) if byte == ord("!")]
    mark = marks[position % len(marks)]
    whole[mark] = ord("?")
    differing = contents.read(0, bytes(whole), 1)
    assert differing is not None
    assert differing[0] == mark - 7 - len(payloads[marks.index(mark)].encode())
