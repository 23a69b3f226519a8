"""The order in which replies leave."""

from __future__ import annotations

import pytest

from segstore.server.faults import Faults
from segstore.server.faults.decisions import Wait
from segstore.server.faults.outgoing import OutgoingReplies
from segstore.server.faults.waits import FaultWaits
from tests.server.support import FakeClock


class Replies:
    """A queue, its clock, and what has left."""

    def __init__(self, round_trip_ms: float = 0.0) -> None:
        self.clock = FakeClock()
        faults = Faults(self.clock)
        faults.round_trip_ms = round_trip_ms
        self.left: list[bytes] = []
        self.waits = FaultWaits(faults)
        self.queue = OutgoingReplies(faults, 0, self.waits, self.take)

    def take(self) -> None:
        if data := self.queue.take()[0]:
            self.left.append(data)

    def add(self, data: bytes, wait: Wait) -> None:
        self.queue.add([data], (), wait)
        self.take()


@pytest.fixture
def replies() -> Replies:
    return Replies()


def test_replies_that_wait_for_nothing_leave_at_once(replies: Replies) -> None:
    replies.add(b"a", Wait())
    assert replies.left == [b"a"]
    assert replies.queue.is_empty


def test_a_reply_that_waits_holds_those_behind_it(replies: Replies) -> None:
    replies.add(b"a", Wait(1.0))
    replies.add(b"b", Wait())
    replies.queue.put(b"c")
    assert replies.left == []
    assert replies.queue.held_bytes > 3
    replies.clock.advance(1.0)
    assert replies.left == [b"abc"]
    assert replies.queue.held_bytes == 0


def test_a_reply_that_may_be_overtaken_leaves_behind_those_that_are_queued(replies: Replies) -> None:
    replies.add(b"late", Wait(1.0, overtake=True))
    assert not replies.queue.is_empty
    replies.add(b"a", Wait())
    replies.add(b"b", Wait(2.0))
    replies.clock.advance(1.0)
    assert replies.left == [b"a"]
    replies.clock.advance(1.0)
    assert replies.left == [b"a", b"blate"]


def test_every_reply_takes_a_round_trip_and_they_do_not_add_up() -> None:
    replies = Replies(round_trip_ms=500)
    replies.add(b"a", Wait())
    replies.add(b"b", Wait())
    replies.clock.advance(0.5)
    assert b"".join(replies.left) == b"ab"


def test_nothing_leaves_after_clear(replies: Replies) -> None:
    replies.add(b"a", Wait(1.0))
    replies.queue.clear()
    assert replies.queue.is_empty
    assert replies.queue.held_bytes == 0
    assert replies.queue.take() == (b"", [])
