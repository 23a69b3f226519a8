"""The lane without a host: requests and replies in, effects out."""

from typing import Any
from uuid import UUID

import pytest

from segstore.server.faults import Effect, End, Execute, Faults, Finish, Forget, Lane, Observer, Send
from segstore.server.recording import RecordedConnection
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    KeepAlive,
    ReadSegment,
    SegmentIsSealed,
    SegmentRead,
    SetupAppend,
    WrongHost,
    encode,
)
from segstore.wire.blocks import Append
from tests.server.faults.traffic import APPENDS
from tests.server.support import SEGMENT, WRITER, FakeClock
from tests.server.test_recording import Notes

PING = KeepAlive()
READ = ReadSegment(SEGMENT, 0, 100, "", 7)
ANSWER = encode(SegmentRead(SEGMENT, 0, True, False, b"abc", 7))


class Playbook:
    """A lane, its clock, and the effects of waits that have ended."""

    def __init__(self, *, remote: bool = False) -> None:
        self.clock = FakeClock()
        self.faults = Faults(self.clock, observer=Observer())
        self.later: list[Effect] = []
        self.lane = Lane(self.faults, store=0, encode=encode, on_effects=self.later.extend, remote=remote)

    def execute(self, item: Command | Append) -> Execute:
        """A request that is executed."""
        (effect,) = self.lane.request(item)
        assert isinstance(effect, Execute)
        assert effect.item == item
        return effect

    def forward(self, *items: Command | Append) -> None:
        """Requests that are executed elsewhere: their replies come later."""
        for item in items:
            assert self.lane.await_reply(self.execute(item))

    def take_later(self) -> list[Effect]:
        later, self.later[:] = list(self.later), []
        return later


@pytest.fixture
def play() -> Playbook:
    return Playbook()


def append(number: int, writer: UUID = WRITER) -> Append:
    return Append(SEGMENT, writer, number, 1, memoryview(b"data"), None, 3)


def acknowledgement(number: int, previous: int) -> bytes:
    return encode(DataAppended(3, WRITER, number, previous, 4 * number))


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def sent(effects: list[Effect]) -> bytes:
    """What the host writes."""
    return b"".join(effect.data for effect in effects if isinstance(effect, Send))


def test_without_rules_a_request_is_executed_and_its_reply_is_sent(play: Playbook) -> None:
    asked = play.execute(PING)
    effects = play.lane.reply([encode(PING)], asked)
    assert sent(effects) == encode(PING)
    assert play.lane.is_drained
    assert play.faults.observer.requests(stage="replied") == [], "the host has not written it"  # type: ignore[union-attr]  # there is one
    for effect in effects:
        play.lane.sent(effect.seen)  # type: ignore[union-attr]  # it is sent
    assert [request.type_name for request in play.faults.observer.requests(stage="replied")] == ["KEEP_ALIVE"]  # type: ignore[union-attr]  # there is one


def test_a_request_that_waits_blocks_those_behind_it_until_its_time(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"delay_ms": 50})
    assert play.lane.request(PING) == []
    assert play.lane.is_blocked
    assert play.lane.requests_bytes > 0
    play.clock.advance(0.05)
    assert kinds(play.take_later()) == ["Execute"]
    assert not play.lane.is_blocked
    assert play.lane.requests_bytes == 0


def test_a_reply_that_waits_holds_the_ones_behind_it(play: Playbook) -> None:
    play.faults.add("type = READ_SEGMENT", do="hold after", name="held")
    assert play.lane.reply([ANSWER], play.execute(READ)) == []
    assert play.lane.reply([encode(PING)], play.execute(PING)) == []
    assert play.lane.replies_bytes > len(ANSWER)
    play.faults.release("held")
    assert sent(play.take_later()) == ANSWER + encode(PING)
    assert play.lane.replies_bytes == 0


def test_a_reply_finds_its_request_if_the_host_does_not_know_it(play: Playbook) -> None:
    play.faults.add("type = READ_SEGMENT", do={"truncate": 10})
    play.forward(READ, PING)
    assert sent(play.lane.reply([encode(PING)])) == encode(PING)
    assert sent(play.lane.reply([ANSWER])) == ANSWER[:10]


def test_a_refusal_leaves_behind_the_replies_to_the_requests_before(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do="SegmentIsSealed")
    play.forward(append(1))
    (forget,) = play.lane.request(append(2))
    assert forget == Forget(SEGMENT, WRITER)
    acknowledged, refused = acknowledgement(1, 0), encode(SegmentIsSealed(3, SEGMENT, "", 2))
    assert sent(play.lane.reply([acknowledged])) == acknowledged + refused


def test_one_acknowledgement_of_several_appends_ends_before_the_one_that_a_rule_refuses(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do={"error": "SegmentIsSealed", "at": "after"})
    play.forward(append(1), append(2), append(3))
    effects = play.lane.reply([acknowledgement(3, 0)])
    refused = [encode(SegmentIsSealed(3, SEGMENT, "", number)) for number in (2, 3)]
    first = encode(DataAppended(3, WRITER, 1, 0, 12))
    assert sent(effects) == first + b"".join(refused)
    assert kinds(effects) == ["Forget", "Forget", "Send"]


def test_one_acknowledgement_of_several_appends_continues_behind_a_failed_condition(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do={"error": "ConditionalCheckFailed", "at": "after"})
    play.forward(append(1), append(2), append(3))
    replies = DataAppended(3, WRITER, 1, 0, 12), ConditionalCheckFailed(WRITER, 2, 3), DataAppended(3, WRITER, 3, 2, 12)
    assert sent(play.lane.reply([acknowledgement(3, 0)])) == b"".join(map(encode, replies))


def test_one_acknowledgement_of_several_appends_ends_with_a_wrong_event_number(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do={"error": "InvalidEventNumber", "at": "after"})
    play.forward(append(1), append(2), append(3))
    effects = play.lane.reply([acknowledgement(3, 0)])
    replies = DataAppended(3, WRITER, 1, 0, 12), InvalidEventNumber(WRITER, 3, "", 2)
    assert sent(effects) == b"".join(map(encode, replies))
    assert "Finish" in kinds(effects)


def test_a_writer_that_was_refused_is_served_again_after_its_set_up(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
    assert kinds(play.lane.request(append(1))) == ["Forget", "Send"]
    assert kinds(play.lane.request(append(2))) == ["Forget", "Send"]
    asked = play.execute(SetupAppend(4, WRITER, SEGMENT, ""))
    play.lane.reply([encode(AppendSetup(4, SEGMENT, WRITER, 2))], asked)
    asked = play.execute(append(3))
    assert sent(play.lane.reply([acknowledgement(3, 2)], asked)) == acknowledgement(3, 2)


def test_a_refusal_ends_once_the_store_has_nothing_in_flight(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
    play.lane.request(append(1))
    play.lane.nothing_in_flight()
    play.execute(append(2))


def test_an_append_behind_a_refused_set_up_is_for_a_local_store_to_judge_and_ends_a_remote_connection() -> None:
    for remote in (False, True):
        play = Playbook(remote=remote)
        play.faults.add("type = SETUP_APPEND", do="NoSuchSegment")
        assert kinds(play.lane.request(SetupAppend(4, WRITER, SEGMENT, ""))) == ["Forget", "Send"]
        (effect,) = play.lane.request(append(1))
        assert isinstance(effect, Finish if remote else Execute)
        assert not isinstance(effect, Finish) or str(WRITER) in effect.why


def test_a_set_up_reply_that_matches_another_request_is_of_its_own_writer(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do={"error": "SegmentIsSealed", "at": "after"})
    play.forward(append(1), READ, SetupAppend(7, WRITER, SEGMENT, ""))
    play.lane.reply([acknowledgement(1, 0)])
    set_up = encode(AppendSetup(7, SEGMENT, WRITER, 1))
    assert sent(play.lane.reply([set_up])) == set_up


def test_an_error_takes_the_place_of_all_frames_of_a_reply(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"error": "WrongHost", "at": "after"})
    effects = play.lane.reply([encode(PING), encode(PING)], play.execute(PING))
    assert sent(effects) == encode(WrongHost(0, "", "", ""))


@pytest.mark.parametrize(
    ("do", "expected"),
    [
        ("close", [Finish]),
        ({"close": "before", "reset": True}, [End]),
        ("close after", [Execute, End]),
        ({"close": "after", "reply_bytes": 3}, [Execute, Send, End]),
        ("drop", []),
        ("drop reply", [Execute]),
        ("duplicate", [Execute, Send, Execute, Send]),
        ("duplicate reply", [Execute, Send]),
    ],
    ids=str,
)
def test_each_action_has_its_effects(play: Playbook, do: Any, expected: list[type]) -> None:
    play.faults.add("type = KEEP_ALIVE", do=do)
    effects: list[Effect] = []
    for each in play.lane.request(PING):
        effects.append(each)
        if isinstance(each, Execute):
            effects += play.lane.reply([encode(PING)], each)
    assert [type(effect) for effect in effects] == expected


def test_after_the_end_nothing_is_executed_and_nothing_sent(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", nth=1, do="close after")
    play.forward(PING, READ)
    (end,) = play.lane.reply([encode(PING)])
    assert end == End("fault 'rule 1': close after", False)
    assert play.lane.is_deaf
    assert play.lane.request(READ) == []
    assert play.lane.reply([ANSWER]) == []
    assert play.lane.end("again") == []


def test_what_waits_is_dropped_with_the_peer(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do="hold", name="held")
    play.lane.request(PING)
    play.lane.drop_waiting()
    assert play.faults.release("held") == 0
    assert play.take_later() == []
    assert not play.lane.is_blocked
    assert not play.lane.requests_bytes


def refusal_of(number: int) -> bytes:
    return encode(SegmentIsSealed(3, SEGMENT, "", number))


def test_the_rules_on_replies_are_asked_about_the_refusals_that_follow_from_a_rules_but_not_about_its_own(
    play: Playbook,
) -> None:
    play.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
    play.faults.add("type = SEGMENT_IS_SEALED", on="reply", do="duplicate")
    assert sent(play.lane.request(append(1))) == refusal_of(1)
    assert sent(play.lane.request(append(2))) == refusal_of(2) * 2


def test_replies_in_place_of_a_store_that_sends_no_more_wait_for_nothing(play: Playbook) -> None:
    play.faults.add("type = READ_SEGMENT", do="SegmentIsSealed")
    play.forward(append(1), append(2))
    for number in (8, 9):
        assert play.lane.request(ReadSegment(SEGMENT, 10 * number, 100, "", number)) == []
    refused = b"".join(encode(SegmentIsSealed(number, SEGMENT, "", 10 * number)) for number in (8, 9))
    assert sent(play.lane.replies_ended()) == refused
    assert sent(play.lane.replies_ended()) == b""
    play.lane.end("the store has gone")
    assert play.lane.replies_ended() == []


def test_one_acknowledgement_of_several_appends_waits_for_all_that_their_rules_say(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do={"delay_ms": 20, "at": "after"})
    play.faults.add(APPENDS, nth=2, do={"delay_ms": 50, "at": "after"})
    play.faults.add(APPENDS, nth=2, do="hold after", name="held")
    play.forward(append(1), append(2), append(3))
    assert play.lane.reply([acknowledgement(3, 0)]) == []
    play.clock.advance(0.049)
    assert play.faults.held("held") == 0
    play.clock.advance(0.001)
    assert (play.faults.held("held"), play.take_later()) == (1, [])
    play.faults.release("held")
    assert sent(play.take_later()) == acknowledgement(3, 0)


def test_one_acknowledgement_of_several_appends_is_dropped_if_a_rule_drops_one_of_them(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do="drop reply")
    play.forward(append(1), append(2), append(3))
    assert play.lane.reply([acknowledgement(3, 0)]) == []


def test_a_reply_waits_as_the_rule_on_its_request_says_and_then_as_the_rule_on_it_says(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"delay_ms": 50, "at": "after"})
    play.faults.add("type = KEEP_ALIVE", on="reply", do={"delay_ms": 20})
    assert play.lane.reply([encode(PING)], play.execute(PING)) == []
    play.clock.advance(0.069)
    assert play.take_later() == []
    play.clock.advance(0.002)
    assert sent(play.take_later()) == encode(PING)


def test_the_holds_of_several_rules_follow_each_other(play: Playbook) -> None:
    for name in ("first", "second"):
        play.faults.add("type = KEEP_ALIVE", do="hold", name=name)
    play.lane.request(PING)
    assert [play.faults.held(rule) for rule in play.faults.rules] == [1, 0]
    play.faults.release("second")
    play.faults.release("first")
    assert ([play.faults.held(each) for each in play.faults.rules], play.take_later()) == ([0, 1], [])
    play.faults.clear("second")
    assert kinds(play.take_later()) == ["Execute"]


def test_an_acknowledgement_may_be_overtaken_if_one_of_its_appends_may(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do={"delay_ms": 50, "at": "after", "overtake": True})
    play.forward(append(1), append(2))
    assert play.lane.reply([acknowledgement(2, 0)]) == []
    assert sent(play.lane.reply([encode(PING)], play.execute(PING))) == encode(PING)
    assert not play.lane.is_drained
    play.faults.add("type = READ_SEGMENT", do="hold after", name="held")
    assert play.lane.reply([ANSWER], play.execute(READ)) == []
    play.clock.advance(0.05)
    assert play.take_later() == [], "it leaves behind the replies that are queued"
    play.faults.release("held")
    assert sent(play.take_later()) == ANSWER + acknowledgement(2, 0)
    assert play.lane.is_drained


def test_a_request_that_others_may_overtake_blocks_none_and_counts_while_it_waits(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"delay_ms": 50, "overtake": True})
    assert play.lane.request(PING, b"raw bytes") == []
    held = play.lane.requests_bytes
    assert play.lane.request(PING, b"raw bytes, longer") == []
    assert play.lane.requests_bytes == 2 * held + len(", longer")
    assert (play.lane.is_blocked, play.lane.requests_bytes > 0) == (False, True)
    play.execute(READ)
    play.clock.advance(0.05)
    assert [each.raw for each in play.take_later() if isinstance(each, Execute)] == [b"raw bytes", b"raw bytes, longer"]
    assert play.lane.requests_bytes == 0


def test_a_request_whose_wait_ends_after_the_connection_is_not_executed(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"delay_ms": 50, "overtake": True})
    play.lane.request(PING)
    play.lane.end("it was asked to")
    play.clock.advance(0.05)
    assert play.take_later() == []


def test_appends_that_pass_are_numbered_and_a_rule_that_is_added_later_finds_each(play: Playbook) -> None:
    play.lane.pass_appends(SEGMENT, WRITER, [(1, 3), (2, 3), (3, 3)])
    play.lane.pass_undecoded()
    play.lane.appends_passed(2)
    assert play.execute(PING).seen.number == 7
    play.lane.pass_acknowledgement(WRITER.bytes, 1)
    play.faults.add(f'segment = "{SEGMENT}"', on="reply", do="drop")
    for number in (2, 3):
        assert play.lane.reply([acknowledgement(number, number - 1)]) == []
    assert [decision.request for decision in play.faults.decisions] == [2, 3]


async def test_the_reply_to_a_request_that_a_function_lets_pass_waits_as_another_rule_says(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"delay_ms": 50, "at": "after"})
    play.faults.add("type = KEEP_ALIVE", do=lambda request: request.proceed())
    assert play.lane.reply([encode(PING)], play.execute(PING)) == []
    play.clock.advance(0.05)
    assert sent(play.take_later()) == encode(PING)


def test_unknown_bytes_from_the_store_are_sent_in_order_until_the_end(play: Playbook) -> None:
    assert sent(play.lane.forward(b"anything")) == b"anything"
    play.faults.add("type = READ_SEGMENT", do="hold after", name="held")
    assert play.lane.reply([ANSWER], play.execute(READ)) == []
    assert play.lane.forward(b"behind it") == []
    play.faults.release("held")
    assert sent(play.take_later()) == ANSWER + b"behind it"
    assert play.lane.replies_bytes == 0
    play.lane.end("it was asked to")
    assert play.lane.forward(b"too late") == []


def test_a_wrong_event_number_is_sent_and_then_ends_the_connection(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=2, do="InvalidEventNumber", name="wrong")
    play.forward(append(1))
    effects = play.lane.request(append(2))
    assert kinds(effects) == ["Forget"]
    assert play.lane.is_deaf
    effects = play.lane.reply([acknowledgement(1, 0)])
    assert [effect for effect in effects if isinstance(effect, Finish)] == [
        Finish("a fault rule refused a writer's event number")
    ]
    assert sent(effects).startswith(acknowledgement(1, 0))
    assert len(sent(effects)) > len(acknowledgement(1, 0))


def test_each_request_and_connection_has_its_number_and_the_store_its_own() -> None:
    play = Playbook()
    other = Lane(play.faults, store=7, encode=encode, on_effects=play.later.extend)
    assert (play.lane.number, other.number) == (1, 2)
    play.execute(PING)
    (execute,) = other.request(READ)
    assert isinstance(execute, Execute)
    seen = execute.seen
    assert (seen.number, seen.store, seen.connection, seen.received_s) == (2, 7, 2, play.clock.now_s())
    play.clock.advance(3)
    other.reply([ANSWER], execute)
    assert (seen.applied_s, seen.reply, seen.replied_s) == (play.clock.now_s(), "SEGMENT_READ", None)
    other.sent([seen])
    assert seen.replied_s == play.clock.now_s()


def test_a_recorder_numbers_the_connection_and_its_requests(play: Playbook) -> None:
    recorder = Notes()
    recorded = RecordedConnection(recorder)
    lane = Lane(play.faults, store=0, encode=encode, on_effects=play.later.extend, recorded=recorded)
    assert (lane.number, recorded.is_numbering) == (1, True)
    recorder.requests = 6
    (execute,) = lane.request(PING)
    assert isinstance(execute, Execute)
    assert (execute.seen.number, play.faults.requests) == (7, 7)


def test_a_rule_on_replies_is_asked_about_each_with_the_facts_of_its_request(play: Playbook) -> None:
    play.faults.add(f'segment = "{SEGMENT}" and type = SEGMENT_READ', on="reply", do="WrongHost", name="moved")
    asked = play.execute(READ)
    effects = play.lane.reply([ANSWER], asked)
    assert sent(effects) == encode(WrongHost(7, SEGMENT, "", ""))
    (decision,) = play.faults.decisions
    assert (decision.rule, decision.request, decision.store, decision.connection) == ("moved", asked.seen.number, 0, 1)
    assert (decision.direction, decision.type_name, decision.request_id) == ("reply", "SEGMENT_READ", 7)
    assert len(asked.seen.faults) == 1
