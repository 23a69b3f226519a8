"""The lane without a host: requests and replies in, effects out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from segstore.server.faults import Effect, End, Execute, Faults, Finish, Forget, Lane, Observer, Send
from segstore.wire import (
    AppendSetup,
    Command,
    DataAppended,
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
        for each in items:
            assert self.lane.await_reply(each, self.execute(each).asked)

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
    return [type(each).__name__ for each in effects]


def sent(effects: list[Effect]) -> bytes:
    """What the host writes."""
    return b"".join(each.data for each in effects if isinstance(each, Send))


def test_without_rules_a_request_is_executed_and_its_reply_is_sent(play: Playbook) -> None:
    asked = play.execute(PING).asked
    effects = play.lane.reply([encode(PING)], asked)
    assert sent(effects) == encode(PING)
    assert play.lane.is_drained
    assert play.faults.observer.requests(stage="replied") == [], "the host has not written it"  # type: ignore[union-attr]  # there is one
    for each in effects:
        play.lane.sent(each.seen)  # type: ignore[union-attr]  # it is sent
    assert [each.type_name for each in play.faults.observer.requests(stage="replied")] == ["KEEP_ALIVE"]  # type: ignore[union-attr]  # there is one


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
    assert play.lane.reply([ANSWER], play.execute(READ).asked) == []
    assert play.lane.reply([encode(PING)], play.execute(PING).asked) == []
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


def test_a_writer_that_was_refused_is_served_again_after_its_set_up(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
    assert kinds(play.lane.request(append(1))) == ["Forget", "Send"]
    assert kinds(play.lane.request(append(2))) == ["Forget", "Send"]
    asked = play.execute(SetupAppend(4, WRITER, SEGMENT, "")).asked
    play.lane.reply([encode(AppendSetup(4, SEGMENT, WRITER, 2))], asked)
    asked = play.execute(append(3)).asked
    assert sent(play.lane.reply([acknowledgement(3, 2)], asked)) == acknowledgement(3, 2)


def test_a_store_says_when_nothing_is_in_flight_and_the_refusal_ends(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
    play.lane.request(append(1))
    play.lane.nothing_in_flight()
    play.execute(append(2))


def test_an_append_of_a_writer_whose_set_up_was_refused_ends_the_connection_to_a_remote_store() -> None:
    play = Playbook(remote=True)
    play.faults.add("type = SETUP_APPEND", do="NoSuchSegment")
    play.lane.request(SetupAppend(4, WRITER, SEGMENT, ""))
    (finish,) = play.lane.request(append(1))
    assert isinstance(finish, Finish)
    assert str(WRITER) in finish.why


def test_an_append_of_a_writer_whose_set_up_was_refused_is_for_a_local_store_to_judge(play: Playbook) -> None:
    play.faults.add("type = SETUP_APPEND", do="NoSuchSegment")
    effects = play.lane.request(SetupAppend(4, WRITER, SEGMENT, ""))
    assert kinds(effects) == ["Forget", "Send"]
    play.execute(append(1))


def test_a_set_up_reply_that_matches_another_request_is_of_its_own_writer(play: Playbook) -> None:
    play.faults.add(APPENDS, nth=1, do={"error": "SegmentIsSealed", "at": "after"})
    play.forward(append(1), READ, SetupAppend(7, WRITER, SEGMENT, ""))
    play.lane.reply([acknowledgement(1, 0)])
    set_up = encode(AppendSetup(7, SEGMENT, WRITER, 1))
    assert sent(play.lane.reply([set_up])) == set_up


def test_an_error_takes_the_place_of_all_frames_of_a_reply(play: Playbook) -> None:
    play.faults.add("type = KEEP_ALIVE", do={"error": "WrongHost", "at": "after"})
    effects = play.lane.reply([encode(PING), encode(PING)], play.execute(PING).asked)
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
            effects += play.lane.reply([encode(PING)], each.asked)
    assert [type(each) for each in effects] == expected


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
    assert not play.lane.has_waiting_requests
