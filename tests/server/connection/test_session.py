"""One connection's state, without a socket."""

from uuid import UUID

import jwt
import pytest

from segstore.server import LimitSettings
from segstore.server.connection.session import SessionEnding
from segstore.server.connection.writers import WriterCounts
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    Event,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    NoSuchSegment,
    SealSegment,
    SegmentCreated,
    SegmentIsSealed,
    SetupAppend,
    WrongHost,
)
from segstore.wire.names import container_of
from tests.looped import looped
from tests.server.support import SEGMENT, WRITER, Desk, FakeClock, append, create, make_service, read, set_up

KEY = "0123456789abcdef" * 4
NEVER_WROTE = -(1 << 63)
OTHER = "scope/stream/1.#epoch.0"


def token(**claims: object) -> str:
    return jwt.encode(claims, KEY.encode(), algorithm="HS512")


def writing(desk: Desk | None = None) -> Desk:
    """A desk whose writer is set up."""
    desk = desk or Desk(make_service())
    assert [type(each) for each in desk.ask(create(), set_up())] == [SegmentCreated, AppendSetup]
    return desk


@looped(("high", "low", "ends"), [(17, 5, False), (99, 17, False), (18, 18, True), (4, 1, True)])
def test_hello_is_answered_with_ours_and_ends_where_no_version_is_common(high: int, low: int, ends: bool) -> None:
    desk = Desk(make_service())
    assert desk.ask(Hello(high, low)) == [Hello(17, 5)]
    assert desk.session.ended is ends
    assert desk.session.ending is (SessionEnding.FLUSHED if ends else SessionEnding.NOT_YET)


@pytest.mark.seed("36.22")
def test_appends_are_acknowledged_in_order_each_with_the_one_before() -> None:
    desk = writing()
    assert desk.ask(append(0, b"ab"), append(4, b"cde")) == [
        DataAppended(3, WRITER, 0, NEVER_WROTE, 2),
        DataAppended(3, WRITER, 4, 0, 5),
    ]
    assert desk.service.counters.appends == 2


def test_the_same_number_again_is_stored_and_not_answered() -> None:
    desk = writing()
    assert len(desk.ask(append(5), append(5))) == 1
    assert desk.service.store.segment_info(SEGMENT).length == 8
    assert not desk.session.ended


def test_setting_up_again_takes_up_where_the_writer_was() -> None:
    desk = writing()
    desk.ask(append(5))
    assert desk.ask(set_up()) == [AppendSetup(2, SEGMENT, WRITER, 5)]
    desk.ask(append(4))
    assert desk.session.ending is SessionEnding.DROPPED
    assert desk.session.why == f"writer {WRITER} of {SEGMENT!r} sends event 4 after 5"


def test_a_stale_writer_is_told_so_and_loses_its_connection() -> None:
    service = make_service()
    first, second = writing(Desk(service)), Desk(service)
    second.ask(set_up())
    second.ask(append(7))
    assert first.ask(append(8)) == [InvalidEventNumber(WRITER, 3, "", 8)]
    assert first.session.ending is SessionEnding.FLUSHED
    assert first.session.why.startswith(f"appending data on {SEGMENT!r} failed: ")
    assert not second.session.ended


@pytest.mark.seed("36.24")
def test_a_failed_append_drops_the_writer_whose_next_append_closes() -> None:
    desk = writing()
    desk.ask(SealSegment(9, SEGMENT, ""))
    assert desk.ask(append(3)) == [SegmentIsSealed(3, SEGMENT, "", 3)]
    assert not desk.session.ended
    assert desk.ask(append(4)) == []
    assert desk.session.ending is SessionEnding.DROPPED


@pytest.mark.seed("36.24")
def test_appends_that_came_with_a_failed_one_fail_as_it_did_until_the_writer_is_set_up_again() -> None:
    desk = writing()
    other = UUID(int=77)
    desk.ask(SetupAppend(4, other, SEGMENT, ""), SealSegment(9, SEGMENT, ""))
    refused = desk.ask(append(3), append(4), KeepAlive(), AppendBlockEnd(other, 1, b"x", 1, 1, 8), append(9))
    assert refused == [
        SegmentIsSealed(3, SEGMENT, "", 3),
        SegmentIsSealed(3, SEGMENT, "", 4),
        KeepAlive(),
        SegmentIsSealed(8, SEGMENT, "", 1),
        SegmentIsSealed(3, SEGMENT, "", 9),
    ]
    assert not desk.session.ended
    assert desk.ask(set_up(), append(10)) == [
        AppendSetup(2, SEGMENT, WRITER, NEVER_WROTE),
        SegmentIsSealed(3, SEGMENT, "", 10),
    ]
    assert desk.ask(append(11)) == []
    assert desk.session.ending is SessionEnding.DROPPED


@pytest.mark.seed("36.24")
def test_a_run_behind_refused_runs_of_another_writer_is_stored() -> None:
    desk, other = writing(), UUID(int=77)
    desk.ask(create(OTHER), SetupAppend(4, other, OTHER, ""), SealSegment(9, SEGMENT, ""))
    sealed, stored = (desk._blocks.writers[each.bytes] for each in (WRITER, other))
    runs = [(sealed, [(1, 1, b"data", 3)]), (sealed, [(2, 1, b"data", 3)]), (stored, [(1, 1, b"data", 8)])]
    desk.session.receive_all([runs])
    assert desk.take() == [
        SegmentIsSealed(3, SEGMENT, "", 1),
        SegmentIsSealed(3, SEGMENT, "", 2),
        DataAppended(8, other, 1, NEVER_WROTE, 4),
    ]


@pytest.mark.seed("36.24")
def test_a_conditional_append_at_the_wrong_offset_leaves_the_writer_as_it_was() -> None:
    desk = writing()
    desk.ask(append(1, b"12345678"))
    conditional = ConditionalAppend(WRITER, 2, 7, Event(b"x"), 5)
    assert desk.ask(conditional) == [ConditionalCheckFailed(WRITER, 2, 5)]
    assert desk.ask(append(3, b"z")) == [DataAppended(3, WRITER, 3, 1, 9)]


def test_a_writer_set_up_for_another_segment_writes_there() -> None:
    desk = writing()
    desk.ask(create(OTHER), set_up(OTHER))
    assert desk.ask(append(0)) == [DataAppended(3, WRITER, 0, NEVER_WROTE, 4)]
    assert desk.service.store.segment_info(SEGMENT).length == 0
    assert desk.service.store.segment_info(OTHER).length == 4


def test_a_writer_set_up_for_two_segments_in_one_read_writes_to_each() -> None:
    desk = writing()
    desk.ask(create(OTHER))
    answers = desk.ask(set_up(OTHER), append(1, b"other"), set_up(), append(1))
    assert [type(each) for each in answers] == [AppendSetup, DataAppended] * 2
    assert [desk.service.store.segment_info(name).length for name in (OTHER, SEGMENT)] == [5, 4]


def test_a_set_up_that_was_refused_leaves_no_writer() -> None:
    desk = writing()
    assert desk.ask(set_up("scope/none/0.#epoch.0")) == [NoSuchSegment(2, "scope/none/0.#epoch.0", "", -1)]
    assert desk.ask(append(0)) == []
    assert desk.session.ended
    assert desk.service.store.segment_info(SEGMENT).length == 0


def test_a_set_up_that_is_refused_for_the_same_segment_leaves_the_writer_as_it_was() -> None:
    desk = writing(Desk(make_service()))
    assert desk.ask(append(1), DeleteSegment(8, SEGMENT, ""))[0] == DataAppended(3, WRITER, 1, NEVER_WROTE, 4)
    assert desk.ask(set_up()) == [NoSuchSegment(2, SEGMENT, "", -1)]
    assert desk.ask(append(2)) == [NoSuchSegment(3, SEGMENT, "", -1)]
    assert not desk.session.ended
    assert desk.ask(append(3)) == []
    assert desk.session.ending is SessionEnding.DROPPED


def test_a_set_up_that_fails_for_the_index_names_the_index() -> None:
    plain = next(
        name
        for name in map("scope/stream/{}".format, range(100))
        if container_of(name, 2) == 0 and container_of(name + "#index", 2) == 1
    )
    desk = Desk(make_service(containers=2, own=frozenset({0})))
    assert desk.ask(create(plain), set_up(plain)) == [
        WrongHost(1, plain, "", ""),
        WrongHost(2, plain + "#index", "", ""),
    ]


def test_a_container_that_left_the_store_takes_no_append_of_a_writer_set_up_before() -> None:
    desk = writing(Desk(make_service(containers=1)))
    container = desk.service.store.release(0)
    assert desk.ask(append(0)) == [WrongHost(3, SEGMENT, "", "")]
    assert container.segments[SEGMENT].length == 0


def test_nothing_behind_the_end_is_carried_out() -> None:
    desk = writing()
    desk.ask(append(5), Hello(99, 99), append(6))
    assert desk.service.store.segment_info(SEGMENT).length == 4


def authorised(clock: FakeClock, *expiries: float | None) -> Desk:
    """A writer that was set up with tokens that end at these times."""
    desk = Desk(make_service(clock, auth_key=KEY))
    desk.service.store.create_segment(SEGMENT, now_ms=0)
    for expiry in expiries:
        claims: dict[str, object] = {"*": "READ_UPDATE"}
        if expiry is not None:
            claims["exp"] = expiry
        assert [type(each) for each in desk.ask(set_up(token=token(**claims)))] == [AppendSetup]
    return desk


def test_the_connection_ends_when_a_writers_token_does() -> None:
    clock = FakeClock(1_000.0)
    desk = authorised(clock, 1_030.0)
    clock.advance(29.9)
    assert not desk.session.ended
    desk.called = 0
    clock.advance(0.2)
    assert desk.session.ending is SessionEnding.FLUSHED
    assert "expired" in desk.session.why
    assert desk.called == 1


def test_a_token_without_an_end_ends_nothing() -> None:
    clock = FakeClock()
    desk = authorised(clock, None)
    clock.advance(1e9)
    assert not desk.session.ended


def test_a_newer_token_does_not_prolong_the_first() -> None:
    clock = FakeClock(1_000.0)
    desk = authorised(clock, 1_030.0, 1_090.0)
    clock.advance(31)
    assert desk.session.ended


def test_a_writer_that_was_dropped_does_not_end_the_connection() -> None:
    clock = FakeClock(1_000.0)
    desk = authorised(clock, 1_030.0)
    desk.service.store.container_for(SEGMENT).seal_segment(SEGMENT, now_ms=0)
    assert desk.ask(append(0)) == [SegmentIsSealed(3, SEGMENT, "", 0)]
    clock.advance(60)
    assert not desk.session.ended


def test_setting_up_again_and_again_leaves_one_timer() -> None:
    clock = FakeClock(1_000.0)
    desk = authorised(clock, *(1_100.0 - each for each in range(40)))
    assert len(clock.pending) == 1
    desk.session.close()
    assert clock.pending == []


def test_an_expired_token_is_refused_as_such_and_ends_the_connection() -> None:
    desk = Desk(make_service(FakeClock(1_000.0), auth_key=KEY))
    desk.service.store.create_segment(SEGMENT, now_ms=0)
    expired = token(**{"*": "READ_UPDATE", "exp": 999})
    assert desk.ask(set_up(token=expired)) == [AuthTokenCheckFailed(2, "", AuthTokenErrorCode.TOKEN_EXPIRED)]
    assert desk.session.ending is SessionEnding.FLUSHED
    assert desk.session.why.startswith(f"setting up append on {SEGMENT!r} failed: ")


def test_an_error_of_a_writer_that_has_no_reply_ends_the_connection_with_its_reason() -> None:
    desk = Desk(make_service())
    desk.service.store.container_for("table").create_table_segment("table", key_length=4, now_ms=0)
    assert desk.ask(set_up("table")) == []
    assert desk.session.ending is SessionEnding.FLUSHED
    assert desk.session.why == "setting up append on 'table' failed: the attributes of 'table' are its keys"


def test_a_token_that_only_reads_sets_up_no_writer_and_leaves_the_connection() -> None:
    desk = Desk(make_service(auth_key=KEY))
    refused = AuthTokenCheckFailed(2, "", AuthTokenErrorCode.TOKEN_CHECK_FAILED)
    assert desk.ask(set_up(token=token(**{"*": "READ"}))) == [refused]
    assert not desk.session.ended


def transient(request_id: int = 5, token: str = "") -> CreateTransientSegment:
    return CreateTransientSegment(request_id, WRITER, SEGMENT, token)


def names(desk: Desk) -> set[str]:
    return {
        name
        for container in desk.service.store.containers.values()
        for name in container.segments
        if "#transient" in name
    }


def test_transient_segments_go_with_their_connection_and_not_before() -> None:
    service = make_service()
    first, second = Desk(service), Desk(service)
    first.ask(transient(), transient())
    second.ask(transient())
    assert len(names(first)) == 3
    first.session.close()
    first.session.close()
    assert len(names(second)) == 1


def test_one_transient_segment_too_many_ends_the_connection() -> None:
    desk = Desk(make_service(limits=LimitSettings(connection_transient_segments=3)))
    assert len(desk.ask(*[transient() for _ in range(3)])) == 3
    assert desk.ask(transient()) == []
    assert desk.session.ending is SessionEnding.DROPPED
    assert "3 transient segments" in desk.session.why


def test_transient_segments_that_are_gone_do_not_count() -> None:
    desk = Desk(make_service(limits=LimitSettings(connection_transient_segments=3)))
    for round_ in range(20):
        (created,) = desk.ask(transient(round_))
        assert isinstance(created, SegmentCreated)
        desk.ask(DeleteSegment(1, created.segment, ""))
    assert not desk.session.ended


def test_a_transient_segment_needs_a_token_only_with_strict_auth() -> None:
    lenient, strict = Desk(make_service(auth_key=KEY)), Desk(make_service(auth_key=KEY, strict_auth=True))
    assert isinstance(lenient.ask(transient())[0], SegmentCreated)
    assert strict.ask(transient()) == [AuthTokenCheckFailed(5, "", AuthTokenErrorCode.TOKEN_CHECK_FAILED)]
    assert not strict.session.ended
    assert isinstance(strict.ask(transient(token=token(scope="READ_UPDATE")))[0], SegmentCreated)


def test_after_close_nothing_refers_to_the_session() -> None:
    clock = FakeClock()
    desk = writing(Desk(make_service(clock)))
    desk.ask(read(), transient(), AppendBlock(WRITER, b"open"))
    assert len(desk.service.store.waiters) == 1
    desk.session.close()
    assert len(desk.service.store.waiters) == 0
    assert clock.pending == []
    assert names(desk) == set()
    assert desk.session.reads == set()
    assert desk.session.out == []
    desk.called = 0
    desk.session.reply(KeepAlive())
    assert desk.called == 0


def test_setting_up_many_writers_ends_with_the_memory_that_they_may_take() -> None:
    desk = Desk(make_service(limits=LimitSettings(connection_writer_bytes=10 * 400)))
    for number in range(11):
        segment = f"scope/many/{number}.#epoch.0"
        desk.ask(create(segment), set_up(segment, UUID(int=number % 5)))
        assert desk.session.ended == (number == 10)
    assert "10 writers" in desk.session.why


@looped(
    ("commands", "why"),
    [
        ([Hello(18, 18)], "it speaks wire versions 18 to 18, this store 5 to 17"),
        ([set_up(), create(), append(1)], f"writer {WRITER} appends to {SEGMENT!r} without having been set up"),
    ],
)
def test_a_session_says_why_it_has_ended(commands: list[Command], why: str) -> None:
    desk = Desk(make_service())
    for command in commands:
        assert not desk.session.ended
        desk.ask(command)
    assert (desk.session.why, desk.session.ended) == (why, True)


@looped("command", [set_up(), transient()])
def test_the_admin_port_names_what_it_does_not_serve(command: Command) -> None:
    desk = Desk(make_service(), admin=True)
    assert desk.ask(command) == []
    assert desk.session.why == f"{type(command).__name__} is not served on the admin port"


def test_what_a_session_stores_and_queues_is_counted() -> None:
    desk = writing()
    assert (desk.session.writer_count, desk.session.out_bytes, desk.session.waiting_bytes) == (1, 0, 0)
    desk.session.receive_all(desk._blocks.feed_all([append(number) for number in (1, 2, 3)]))
    assert desk.service.counters.appends == 3
    assert desk.session.out_bytes == sum(map(len, desk.session.out)) > 0
    assert len(desk.take()) == 3
    assert desk.session.out_bytes == 0
    for number, held in ((1, True), (2, True)):
        assert desk.ask(read(12, request_id=number)) == []
        assert (desk.session.waiting_bytes > 0) == held
    waiting = desk.session.waiting_bytes
    desk.session.close()
    assert (waiting, desk.session.waiting_bytes, desk.session.writer_count) == (waiting, 0, 0)
    assert len(desk.service.store.waiters) == 0


def test_what_a_writer_stores_is_counted_if_there_are_counts() -> None:
    service = make_service()
    service.writer_counts = WriterCounts(lambda _: True)
    desk = writing(Desk(service))
    desk.ask(append(1), append(2))
    (count,) = service.writer_counts.all()
    assert (count.events, count.bytes, count.connected, count.set_ups) == (2, 8, 1, 1)
    desk.session.close()
    assert count.connected == 0


def test_a_reply_that_goes_into_an_empty_queue_is_announced_and_the_next_is_not() -> None:
    desk = writing()
    desk.ask(append(1))
    desk.called = 0
    for number, command in enumerate((KeepAlive(), read(), KeepAlive()), 1):
        desk.session.receive_all((command,), whole=False)
        desk.session.receive_all((command,), whole=False)
        assert desk.called == number
        assert len(desk.take()) == 2
    desk.session.end("enough")
    desk.session.end("again")
    assert (desk.called, desk.session.why, desk.session.ending) == (4, "enough", SessionEnding.DROPPED)


def test_a_writer_takes_memory_as_long_as_it_is_set_up_and_more_with_a_longer_name() -> None:
    taken = []
    for name in ("scope/stream/0.#epoch.0", "scope/" + "stream" * 40 + "/0.#epoch.0"):
        desk = Desk(make_service())
        memory = desk.service.store.pool.memory
        desk.ask(create(name), set_up(name))
        other = Desk(desk.service)
        before = memory.used
        other.ask(set_up(name))
        other.ask(set_up(name))
        taken.append(memory.used - before)
        other.session.close()
        assert memory.used == before
    assert taken[1] - taken[0] == 6 * 39


def test_a_transient_segment_that_is_refused_is_named_by_its_own_name() -> None:
    desk = Desk(make_service(containers=2, own={0}))
    parent = next(name for number in range(100) if container_of(name := f"scope/{number}/0.#epoch.0", 2) == 1)
    (refused,) = desk.ask(CreateTransientSegment(5, WRITER, parent, ""))
    assert isinstance(refused, WrongHost)
    assert refused.request_id == 5
    assert refused.segment.startswith(f"{parent}#transient")
    assert not desk.session.ended
