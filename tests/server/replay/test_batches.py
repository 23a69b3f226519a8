"""Appends of a trace, taken in other batches than those that it has."""

from itertools import pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.replay.matching import Replay, TraceAnswer
from segstore.wire import AppendSetup, ConditionalCheckFailed, DataAppended, SegmentIsSealed, decode, encode
from segstore.wire.blocks import Append
from segstore.wire.protocol import frames_of
from segstore.wire.trace import Direction, Record, RecordKind
from tests.server.support import SEGMENT, set_up

TRACED, LIVE = UUID(int=1), UUID(int=2)
EVENTS = [b"event %d" % number * (number % 3 + 1) for number in range(1, 9)]


def a_batch(first: int, last: int, writer_id: UUID, request_id: int) -> Append:
    """Events first + 1 to last as one append."""
    return Append(SEGMENT, writer_id, last, last - first, b"".join(EVENTS[first:last]), None, request_id)


def traced(ends: list[int], *, refused: int | None = None, acknowledged_together: bool = False) -> list[Record]:
    """A trace in which the events are appended in batches that end there, and acknowledged."""
    found: list[Record] = []

    def add(direction: Direction, frame: bytes) -> None:
        found.append(Record(len(found), 1, direction, RecordKind.FRAME, frame))

    add(Direction.REQUEST, encode(set_up(writer_id=TRACED)))
    add(Direction.REPLY, encode(AppendSetup(2, SEGMENT, TRACED, 0)))
    for first, last in pairwise([0, *ends]):
        frame = frames_of(a_batch(first, last, TRACED, 3))
        while frame:
            size = 8 + int.from_bytes(frame[4:8], "big")
            add(Direction.REQUEST, frame[:size])
            frame = frame[size:]
        offset = sum(map(len, EVENTS[:last]))
        if last == refused:
            add(Direction.REPLY, encode(SegmentIsSealed(3, SEGMENT, "", offset)))
        elif not acknowledged_together or last == ends[-1]:
            add(Direction.REPLY, encode(DataAppended(3, TRACED, last, first, offset)))
    return found


def asked(replay: Replay, ends: list[int], start: int = 0) -> list[TraceAnswer | None]:
    expected = replay.connection()
    replay.answer(set_up(writer_id=LIVE), expected)
    return [replay.answer(a_batch(first, last, LIVE, 71), expected) for first, last in pairwise([start, *ends])]


def said(answers: list[TraceAnswer | None]) -> list[tuple[int, int, int]]:
    found = []
    for answer in answers:
        for reply in answer.replies:
            ack = decode(reply.frame)
            assert isinstance(ack, DataAppended)
            assert (ack.writer_id, ack.request_id) == (LIVE, 71)
            found.append((ack.previous_event_number, ack.event_number, ack.current_segment_write_offset))
    return found


ends_of_batches = st.sets(st.integers(1, len(EVENTS) - 1)).map(lambda found: [*sorted(found), len(EVENTS)])


@given(ends_of_batches, ends_of_batches)
def test_events_are_acknowledged_however_they_are_batched(recorded: list[int], live: list[int]) -> None:
    replay = Replay(traced(recorded), "match")
    assert said(asked(replay, live)) == [
        (first, last, sum(map(len, EVENTS[:last]))) for first, last in pairwise([0, *live])
    ]
    assert not replay.unused()


def test_the_connection_is_closed_behind_the_batch_with_the_last_append_of_the_trace() -> None:
    closed = Record(0, 1, Direction.REPLY, RecordKind.CLOSE, b"{}")
    answers = asked(Replay([*traced([3, 8]), closed], "match"), [2, 5, 8])
    assert [answer is not None and answer.closes for answer in answers] == [False, False, True]


@given(ends_of_batches, ends_of_batches)
def test_one_acknowledgement_stands_for_all_before_it(recorded: list[int], live: list[int]) -> None:
    replay = Replay(traced(recorded, acknowledged_together=True), "match")
    assert said(asked(replay, live))[-1][1:] == (len(EVENTS), sum(map(len, EVENTS)))
    assert not replay.unused()


def test_other_bytes_other_numbers_and_what_is_over_are_not_in_the_trace() -> None:
    replay = Replay(traced([3, 8]), "match")
    assert asked(replay, [], 0) == []
    wrong = a_batch(0, 4, LIVE, 71)
    other_bytes = Append(SEGMENT, LIVE, 4, 4, bytes(len(wrong.data)), None, 71)
    other_numbers = Append(SEGMENT, LIVE, 5, 4, wrong.data, None, 71)
    ends_within_an_event = Append(SEGMENT, LIVE, 4, 4, wrong.data[:-1], None, 71)
    conditional = Append(SEGMENT, LIVE, 4, 4, wrong.data, 0, 71)
    more_than_there_is = Append(SEGMENT, LIVE, 9, 9, b"".join(EVENTS) + b"more", None, 71)
    another_segment = Append("scope/stream/7.#epoch.0", LIVE, 4, 4, wrong.data, None, 71)
    for each in (other_bytes, other_numbers, conditional, more_than_there_is, another_segment):
        assert replay.answer(each, replay.connection()) is None
    assert replay.answer(ends_within_an_event, replay.connection()) is not None  # a writer of bytes may do that
    assert replay.unused() == {"APPEND_BLOCK_END": 1}
    assert replay.answer(wrong, replay.connection()) is None, "what was taken is not taken again"


def test_what_was_refused_is_answered_as_it_is_and_not_in_another_batch() -> None:
    assert asked(Replay(traced([2, 5, 8], refused=5), "match"), [1, 2, 8])[-1] is None
    replay = Replay(traced([2, 5, 8], refused=5), "match")
    one, two, refused = asked(replay, [1, 2, 5])
    assert said([one, two]) == [(0, 1, len(EVENTS[0])), (1, 2, len(b"".join(EVENTS[:2])))]
    assert not isinstance(decode(refused.replies[0].frame), ConditionalCheckFailed | DataAppended)


def test_an_append_that_is_in_the_trace_as_it_is_may_come_between() -> None:
    replay = Replay(traced([2, 5, 8]), "match")
    assert [each is not None for each in asked(replay, [1, 2, 5, 8])] == [True] * 4
    replay = Replay(traced([2, 5, 8]), "match")
    # The client sends the whole batch again, of which it had sent a part.
    assert [each is not None for each in (*asked(replay, [1]), *asked(replay, [2, 5, 8]))] == [True] * 4
    assert not replay.unused()["APPEND_BLOCK_END"]


def cut_twice() -> list[Record]:
    """A trace in which the ack of event 3 is lost with events 4 and 5, then event 4 again."""
    found: list[Record] = []
    for connection, known, batches, acked in (
        (1, 0, ((0, 2), (2, 3), (3, 5)), 2),
        (2, 3, ((3, 4),), 3),
        (3, 3, ((3, 6), (6, 8)), 8),
    ):
        frames = [
            (Direction.REQUEST, encode(set_up(writer_id=TRACED))),
            (Direction.REPLY, encode(AppendSetup(2, SEGMENT, TRACED, known))),
        ]
        for first, last in batches:
            block = frames_of(a_batch(first, last, TRACED, 3))
            size = 8 + int.from_bytes(block[4:8], "big")
            frames += [(Direction.REQUEST, block[:size]), (Direction.REQUEST, block[size:])]
            if last <= acked:
                ack = DataAppended(3, TRACED, last, first, sum(map(len, EVENTS[:last])))
                frames.append((Direction.REPLY, encode(ack)))
        found += (Record(0, connection, way, RecordKind.FRAME, frame) for way, frame in frames)
        by = Direction.REPLY if connection < 3 else Direction.REQUEST
        found.append(Record(0, connection, by, RecordKind.CLOSE, b"{}"))
    return found


@given(st.lists(st.tuples(st.integers(1, len(EVENTS)), st.booleans())))
def test_a_client_that_connects_again_at_any_moment_gets_each_event_acknowledged_once(
    moves: list[tuple[int, bool]],
) -> None:
    replay, made = Replay(cut_twice(), "match"), 0

    def known() -> int:
        answer = replay.answer(set_up(writer_id=LIVE), replay.connection())
        (reply,) = (decode(each.frame) for each in answer.replies)
        assert isinstance(reply, AppendSetup)
        assert (reply.writer_id, answer.closes) == (LIVE, False)
        return reply.last_event_number

    acked, cuts = known(), 0
    for size, again in (*moves, *((1, False),) * (len(EVENTS) + 2)):
        if again:
            assert known() == made, "a set-up tells what was made, however often and whenever it comes"
        last = min(made + size, len(EVENTS))
        if last == made:
            continue
        answer = replay.answer(a_batch(made, last, LIVE, 71), replay.connection())
        if answer.closes:
            assert not answer.replies
            cuts, made = cuts + 1, known()
        else:
            (ack,) = (decode(each.frame) for each in answer.replies)
            assert isinstance(ack, DataAppended)
            assert (ack.writer_id, ack.previous_event_number, ack.event_number) == (LIVE, made, last)
            assert ack.current_segment_write_offset == sum(map(len, EVENTS[:last]))
            acked = made = last
    assert (acked, made) == (len(EVENTS), len(EVENTS))
    assert 1 <= cuts <= 2
    assert set(replay.unused()) <= {"SETUP_APPEND"}
