"""Writers of a connection and the counts of their appends."""

from uuid import UUID

from segstore.server.connection.writers import Writer, WriterCounts
from segstore.server.store import SegmentStore
from tests.server.support import WRITER, Desk, append, create, make_service, set_up

SEGMENT = "scope/stream/0.#epoch.0"


def test_a_writer_takes_appends_once_its_store_knows_it() -> None:
    writer = Writer(SEGMENT, UUID(int=7))
    assert (writer.is_set_up, writer.id_bytes, writer.last_event_number) == (False, UUID(int=7).bytes, 0)
    writer.set_up(SegmentStore().containers[0], 5, None)
    assert (writer.is_set_up, writer.last_stored) == (True, 5)


def test_a_writer_is_one_record_for_the_decoder_and_the_session() -> None:
    desk = Desk(make_service())
    for count in (1, 2):
        desk.ask(create(), set_up(), append(count))
        decoded = desk._blocks.writers[WRITER.bytes]
        assert desk.session._writers[SEGMENT, WRITER.bytes] is decoded
        assert isinstance(decoded, Writer)
        assert decoded.last_stored == count


def test_counts_are_bounded_and_those_of_deleted_segments_go_first() -> None:
    there = {f"scope/stream/{at}.#epoch.0" for at in range(2)}
    counts = WriterCounts(there.__contains__, max_counts=2)
    for segment in sorted(there):
        assert counts.set_up(segment, UUID(int=1)) is counts.set_up(segment, UUID(int=1))
    assert counts.set_up(SEGMENT.replace("0.#", "9.#"), UUID(int=1)) is None
    assert counts.uncounted == 1
    there.pop()
    assert counts.set_up(SEGMENT.replace("0.#", "9.#"), UUID(int=1)) is not None
    assert sum(each.set_ups for each in counts.all()) == 3


def test_writers_of_segments_that_are_merged_later_are_not_counted() -> None:
    assert WriterCounts(lambda _: True).set_up(f"{SEGMENT}#transaction.{'0' * 32}", UUID(int=1)) is None
