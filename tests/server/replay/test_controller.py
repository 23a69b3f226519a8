"""The controller beside a trace: what names tell it, and what it makes of the rest."""

from uuid import UUID

from segstore.server.replay import read_script, replay_controller
from segstore.wire import Command, MergeSegmentsBatch, SegmentsBatchMerged, encode
from segstore.wire.names import transaction_name
from segstore.wire.trace import Direction, Record, RecordKind
from tests.server.support import create

FIRST, SECOND = (UUID(int=part << 64 | number) for number, part in ((3, 0xABCD), (4, 0x1234)))


def trace(*commands: Command) -> list[Record]:
    return [
        Record(at, 1, Direction(type(each).is_reply), RecordKind.FRAME, encode(each))
        for at, each in enumerate(commands)
    ]


def named(*names: str) -> list[Record]:
    return trace(*(create(name) for name in names))


def test_streams_are_those_that_are_named_with_the_segments_of_their_first_epoch() -> None:
    names = ["a/s/1.#epoch.0", "a/s/0.#epoch.0", "a/s/2.#epoch.1", "b/t/0.#epoch.0#index", "plain", "a/_RGg/0.#epoch.0"]
    controller = replay_controller(read_script(named(*names, "a/g_kvtable/0.#epoch.0")), "127.0.0.1", 7)
    found = {stream.full_name: len(stream.current.segments) for stream in controller.state.streams()}
    assert found == {"a/s": 2, "b/t": 1}


def test_a_number_that_no_stream_can_have_makes_none() -> None:
    controller = replay_controller(read_script(named("a/s/2000000000.#epoch.0")), "127.0.0.1", 7)
    assert list(controller.state.streams()) == []


async def test_transactions_get_the_ids_of_the_trace_in_order() -> None:
    segment = "a/s/0.#epoch.0"
    names = [segment, *(transaction_name(segment, each) for each in (FIRST, SECOND))]
    controller = replay_controller(read_script(named(*names)), "127.0.0.1", 7)
    for wanted in (FIRST, SECOND):
        identifier, _ = await controller.transactions.open("a", "s", 10_000)
        assert identifier == wanted
    other, _ = await controller.transactions.open("a", "s", 10_000)
    assert other.int & 0xFFFF == 5


async def test_a_stream_that_is_sealed_is_as_long_as_it_was_in_the_trace() -> None:
    segment = "a/s/0.#epoch.0"
    merge = MergeSegmentsBatch(1, segment, (transaction_name(segment, FIRST),), "")
    records = trace(create(segment), merge, SegmentsBatchMerged(1, segment, merge.source_segment_ids, (40,)))
    controller = replay_controller(read_script(records), "127.0.0.1", 7)
    await controller.streams.seal("a", "s")
    assert controller.state.stream("a", "s").sizes == {0: 40}
