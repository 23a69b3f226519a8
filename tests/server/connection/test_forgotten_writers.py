"""Writers whose segments were deleted: a connection forgets them eventually, and answers their appends until then."""

from collections.abc import Iterator
from uuid import UUID

from segstore.server import LimitSettings, MockSegmentStore
from segstore.server.connection import WriterCounts
from segstore.wire import (
    AppendSetup,
    Command,
    DataAppended,
    DeleteSegment,
    KeepAlive,
    MergeSegments,
    NoSuchSegment,
    SealSegment,
    SegmentIsSealed,
)
from tests.looped import looped
from tests.server.connection.test_session import KEY, token
from tests.server.support import HELLO, SEGMENT, WRITER, Desk, FakeClock, Peer, append, create, make_service, set_up

LIMITS = LimitSettings(connection_writer_bytes=512 * 1024)
"""Room for about 900 writers."""


def writer_of(number: int) -> UUID:
    return UUID(int=1 << 100 | number)


def source(number: int) -> str:
    return f"scope/stream/0.#epoch.0#transaction.{number:032x}"


def cycle(number: int, gone: Command) -> tuple[Command, ...]:
    """A segment, its writer, an append, and the request that removes the segment."""
    name, writer = source(number), writer_of(number)
    return create(name), set_up(name, writer), append(1, b"event", writer), gone


def batch(gone: str, start: int, many: int) -> Iterator[Command]:
    for number in range(start, start + many):
        merged = MergeSegments(4, SEGMENT, source(number), "")
        yield from cycle(number, merged if gone == "merged" else DeleteSegment(4, source(number), ""))


@looped(("gone", "watched"), [("merged", True), ("deleted", False)])
async def test_a_connection_outlives_any_number_of_writers_whose_segments_went(gone: str, watched: bool) -> None:
    async with (
        MockSegmentStore(limits=LIMITS, watched=watched, http_port=0) as store,
        await Peer.connect(store) as peer,
    ):
        await peer.ask(HELLO, create(), set_up())
        (connection,) = store.server.hub.connections
        used: list[int] = []
        for start in range(1, 1201, 150):
            peer.send(*batch(gone, start, 150))
            assert len(await peer.receive(600)) == 600
            assert connection.session.writer_count <= 3 * 256
            store.store.truncate_segment(SEGMENT, store.segments[SEGMENT].length)
            used.append(store.store.pool.memory.used)
        assert [type(each) for each in await peer.ask(append(1))] == [DataAppended]
        retired = len(source(1)) + 49 + 100
        assert used[-1] - used[-3] <= 300 * retired + 64 * 1024
    assert store.server.hub.connections == set()


def test_an_append_to_a_segment_that_went_is_answered_once_then_ends_the_connection() -> None:
    for looks in range(2):
        desk = Desk(make_service())
        desk.ask(HELLO, *cycle(1, DeleteSegment(4, source(1), "")))
        for _ in range(looks):  # the first check keeps the writer, because an append may be in flight
            refill(desk)
        assert desk.ask(append(2, b"event", writer_of(1))) == [NoSuchSegment(3, source(1), "", -1)]
        assert not desk.session.ended
        assert desk.ask(append(3, b"event", writer_of(1))) == []
        assert desk.session.ended


def refill(desk: Desk) -> None:
    """Enough set-ups to trigger a check of the writers."""
    desk.ask(create())
    desk.ask(*(set_up(SEGMENT, WRITER) for _ in range(1024)))


def test_a_writer_whose_segment_came_back_is_kept() -> None:
    desk = Desk(make_service(reuse_names=True))
    desk.ask(HELLO, *cycle(1, DeleteSegment(4, source(1), "")))
    refill(desk)
    desk.ask(create(source(1)))
    refill(desk)
    refill(desk)
    assert desk.session.writer_count == 2


def test_writers_that_are_alive_are_kept_however_many_set_ups_there_are() -> None:
    desk = Desk(make_service())
    desk.ask(create())
    writers = [UUID(int=100 + each) for each in range(300)]
    desk.ask(*(set_up(SEGMENT, writer) for writer in writers))
    for number in range(4):
        refill(desk)
        replies = desk.ask(*(append(number, b"event", each) for each in writers))
        assert [type(reply) for reply in replies] == [DataAppended] * len(writers)


def test_set_ups_that_came_together_are_not_forgotten_before_they_are_made() -> None:
    desk = Desk(make_service())
    desk.ask(create())
    writers = [UUID(int=100 + each) for each in range(1000)]
    replies = desk.ask(
        *(set_up(SEGMENT, writer) for writer in writers), *(append(1, b"event", each) for each in writers)
    )
    assert [type(reply) for reply in replies] == [AppendSetup] * 1000 + [DataAppended] * 1000


async def test_writers_whose_appends_were_refused_take_no_room() -> None:
    async with MockSegmentStore(limits=LIMITS, watched=False) as store, await Peer.connect(store) as peer:
        await peer.ask(HELLO)
        for start in range(1, 1501, 500):
            for number in range(start, start + 500):
                name, writer = source(number), writer_of(number)
                peer.send(create(name), set_up(name, writer), SealSegment(4, name, ""), append(1, b"event", writer))
            replies = await peer.receive(2000)
            assert {type(reply) for reply in replies[3::4]} == {SegmentIsSealed}  # of segments that stay
        assert await peer.ask(KeepAlive()) == [KeepAlive()]
        assert len(store.segments) == 1500


def test_the_timer_of_a_token_goes_with_its_writer() -> None:
    clock = FakeClock(1_000.0)
    desk = Desk(make_service(clock, auth_key=KEY))
    good = token(**{"*": "READ_UPDATE", "exp": 9_000.0})
    for number in range(1, 1001):
        name = source(number)
        desk.service.store.create_segment(name, now_ms=1)
        desk.ask(set_up(name, writer_of(number), good))
        desk.service.store.delete_segment(name)
    assert len(clock.pending) <= 3 * 256
    assert not desk.session.ended


def test_counts_of_segments_that_are_gone_are_dropped_before_they_have_doubled() -> None:
    alive = {f"scope/stream/{number}.#epoch.0" for number in range(100)}
    counts = WriterCounts(alive.__contains__)
    for name in alive:
        assert counts.set_up(name, WRITER)
    for number in range(100, 20_000):
        assert counts.set_up(f"scope/stream/{number}.#epoch.0", WRITER)
        assert number % 100 or sum(1 for _ in counts.all()) <= 1024
    assert all(counts.of(name) for name in alive)
