"""Recordings of kept traffic: what passes between start and stop, bounded, as captures."""

import pytest

from segstore.server.recordings import NoSuchRecording, RecordingRefused, Recordings
from segstore.server.traffic import KEPT_BYTES, Traffic
from segstore.wire import KeepAlive, encode
from segstore.wire.trace import Direction, Record, RecordKind, read_records
from tests.server.support import append
from tests.server.traffic.test_traffic import traffic

PING = encode(KeepAlive())


@pytest.fixture
def kept() -> Traffic:
    return traffic()


def read(recordings: Recordings, name: str) -> list[Record]:
    """The records of the capture, which are also those that the recording counts and yields."""
    found = recordings.get(name)
    data = b"".join(found.trace())
    records = [record for record in read_records(data) if isinstance(record, Record)]
    assert records == list(found.all_records())
    assert (len(data), len(records)) == (found.size, found.records)
    return records


def test_it_holds_what_passes_between_start_and_stop(kept: Traffic) -> None:
    recordings = Recordings(kept)
    number = kept.opened(peer="here")
    kept.received(number, PING)
    recordings.start("one")
    kept.received(number, PING[:3])
    assert read(recordings, "one") == []
    kept.received(number, PING[3:])
    recordings.start("two")
    kept.sent(number, [PING])
    recordings.stop("one")
    kept.closed(number, Direction.REQUEST)
    recordings.stop("two")
    frames = [(Direction.REQUEST, RecordKind.FRAME), (Direction.REPLY, RecordKind.FRAME)]
    assert [(each.direction, each.kind) for each in read(recordings, "one")] == frames
    assert [each.kind for each in read(recordings, "two")] == [RecordKind.FRAME, RecordKind.CLOSE]


def test_it_keeps_what_the_ring_discards() -> None:
    kept = traffic(1000)
    recordings = Recordings(kept)
    recordings.start("all")
    number, frame = kept.opened(), encode(append(1, bytes(2000)))
    for _ in range(10):
        kept.received(number, frame)
        kept.flush()
    assert list(kept.records()) == []
    assert [each.data for each in read(recordings, "all")[1:]] == [frame] * 10


def test_one_with_a_low_limit_holds_what_fits() -> None:
    kept = traffic(KEPT_BYTES)
    recordings = Recordings(kept)
    recordings.start("few", 2 * 1024 * 1024)
    number, frame = kept.opened(), encode(append(1, bytes(20_000)))
    for _ in range(1_000):
        kept.received(number, frame)
    assert sum(len(each.data) for each in read(recordings, "few")) > 1024 * 1024


def test_one_that_reaches_its_limit_ends_and_stopping_it_reports_that(kept: Traffic) -> None:
    recordings = Recordings(kept)
    found = recordings.start("small", 1000)
    number = kept.opened()
    kept.received(number, PING)
    kept.flush()
    kept.received(number, encode(append(1, bytes(2000))))
    with pytest.raises(RecordingRefused, match=r"'small' is not complete: it ended at its limit of 1,000 bytes"):
        recordings.stop("small")
    kept.received(number, PING)
    assert [each.kind for each in read(recordings, "small")] == [RecordKind.OPEN, RecordKind.FRAME]
    assert found.stopped_ms is not None


def test_all_together_hold_no_more_than_the_limit(kept: Traffic) -> None:
    recordings = Recordings(kept, 10_000)
    recordings.start("one", 6_000)
    with pytest.raises(RecordingRefused, match="max_bytes: 4,000 bytes are left"):
        recordings.start("two", 6_000)
    recordings.stop("one")  # it keeps what it holds, not its limit
    recordings.start("two", 6_000)
    recordings.delete("two")
    recordings.start("three", 6_000)
    assert [recording.name for recording in recordings] == ["one", "three"]


def test_names_are_made_up_and_unknown_and_taken_ones_are_refused(kept: Traffic) -> None:
    recordings = Recordings(kept)
    recordings.start("recording 2", 1000)
    assert [recordings.start("", 1000).name for _ in range(2)] == ["recording 1", "recording 3"]
    with pytest.raises(RecordingRefused, match="there is a recording 'recording 3'"):
        recordings.start("recording 3", 1000)
    for call in (recordings.get, recordings.stop, recordings.delete):
        with pytest.raises(NoSuchRecording, match="no recording has the name 'none'"):
            call("none")


def test_a_deleted_recording_counts_until_it_is_not_read_any_more(kept: Traffic) -> None:
    recordings = Recordings(kept, max_bytes=10_000)
    number = kept.opened()
    recordings.start("first", 5_000)
    kept.received(number, encode(append(1, bytes(4_000))))
    recordings.stop("first")
    reading = recordings.get("first").trace()
    next(reading)
    recordings.delete("first")
    with pytest.raises(RecordingRefused, match="bytes are left"):
        recordings.start("second", 9_000)
    assert sum(map(len, reading)) > 4_000
    del reading
    recordings.start("second", 9_000)
