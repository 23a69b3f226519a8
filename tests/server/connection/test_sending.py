"""Replies that wait for the disk or the peer."""

from __future__ import annotations

from typing import Any

from segstore.server.connection.sending import SMALL_BYTES, HeldReplies, Output
from segstore.server.durable import Gate
from segstore.wire import Buffer


class HeldGate(Gate):
    """Changes are durable when a test says so."""

    full = False

    def __init__(self) -> None:
        super().__init__(0)

    def commit(self, up_to: int) -> None:
        self.committed = up_to
        self._release()


class Owner:
    """Keeps what it may send; `then` is called before."""

    def __init__(self) -> None:
        self.sent: list[list[Buffer]] = []
        self.failures: list[str] = []
        self.then = lambda: None

    def release(self, out: list[Buffer]) -> None:
        self.then()
        self.sent.append(out)

    def go_on(self) -> None:
        raise AssertionError

    def failed(self, why: str) -> None:
        self.failures.append(why)


class Transport:
    """Writes into a list, `unread` bytes of which the peer has not read."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.unread = 0
        self.high = 0

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.written.append([bytes(each) for each in parts])

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, *, high: int) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return False


def output(transport: Transport, held: HeldReplies | None = None) -> Output:
    return Output(transport, held, None, 1_000)  # type: ignore[arg-type]  # all that it uses


def test_replies_wait_for_what_was_executed_before_them() -> None:
    gate, owner = HeldGate(), Owner()
    held = HeldReplies(gate, 100)
    assert not held.hold(owner, [b"durable"], 7), "nothing was executed that is not durable"
    gate.mark = 1
    assert held.hold(owner, [b"a"], 1)
    gate.committed = 1
    assert held.hold(owner, [b"b"], 1), "it would overtake the first"
    gate.mark = 3
    assert held.hold(owner, [b"cd"], 2)
    assert held.bytes == 4
    gate.commit(2)
    assert owner.sent == [[b"a"], [b"b"]]
    gate.commit(3)
    assert owner.sent[2:] == [[b"cd"]]


def test_what_is_held_while_others_leave_leaves_with_them_if_it_may() -> None:
    gate, one, other = HeldGate(), Owner(), Owner()
    ones, others = HeldReplies(gate, 100), HeldReplies(gate, 100)
    gate.mark = 1
    ones.hold(one, [b"a"], 1)
    others.hold(other, [b"b"], 1)

    def answers() -> None:
        one.then = lambda: None
        assert others.hold(other, [b"c"], 1), "it would overtake the first"

    one.then = answers
    gate.commit(1)
    assert (one.sent, other.sent) == ([[b"a"]], [[b"b"], [b"c"]])


def test_of_replies_that_will_never_leave_each_owner_is_notified_once() -> None:
    gate, one, other = HeldGate(), Owner(), Owner()
    gate.mark = 1
    for owner in (one, other, one):
        HeldReplies(gate, 100).hold(owner, [b"a"], 1)
    gate._drop("the disk is full", other)
    gate.commit(1)
    assert (one.failures, other.failures, one.sent) == (["the disk is full"], ["the disk is full"], [])


def test_a_sender_that_fails_loses_its_own_replies_alone() -> None:
    gate, one, other = HeldGate(), Owner(), Owner()
    gate.mark = 1
    for owner in (one, other, one):
        HeldReplies(gate, 100).hold(owner, [b"a"], 1)

    def fails() -> None:
        raise ZeroDivisionError

    one.then = fails
    gate.commit(1)
    assert (one.sent, one.failures) == ([], ["its replies could not be sent"])
    assert (other.sent, other.failures) == ([[b"a"]], [])


def test_large_replies_of_a_peer_that_is_gone_are_freed_while_the_disk_is_behind() -> None:
    gate, gone, other = HeldGate(), Owner(), Owner()
    gate.mark = 1
    of_gone = HeldReplies(gate, 1 << 20)
    for size in (SMALL_BYTES, 1):
        of_gone.hold(gone, [bytes(size)], size)
        HeldReplies(gate, 100).hold(other, [b"other"], 5)
    of_gone.drop(gone)
    assert [sum(map(len, out)) for _, _, out in gate.held] == [0, 5, 0, 5]
    gate.commit(1)
    assert other.sent == [[b"other"], [b"other"]]


def test_the_disk_is_behind_if_it_is_full_or_too_much_is_held_for_the_peer() -> None:
    gate, owner = HeldGate(), Owner()
    held = HeldReplies(gate, 100)
    gate.mark = 1
    held.hold(owner, [b"x" * 100], 100)
    assert not held.is_overfull
    held.hold(owner, [b"x"], 1)
    assert held.is_overfull
    held.stall(owner)
    assert list(gate.stalled) == [owner]
    held.drop(owner)
    assert (held.is_overfull, held.is_stalled, gate.stalled) == (False, False, {})
    gate.full = True  # type: ignore[misc]  # of this one alone
    assert held.is_overfull


def test_small_replies_are_joined_and_large_ones_are_not_copied() -> None:
    transport = Transport()
    large = b"l" * 16_384
    output(transport).write([b"a", b"b", large, b"c"], large=True)
    output(transport).write([b"a", b"b"], large=False)
    assert transport.written == [[b"ab", large, b"c"], b"ab"]


def test_a_peer_progresses_when_less_is_unread_than_before() -> None:
    transport = Transport()
    out = output(transport)
    transport.unread = 500
    out.filled()
    assert not out.has_progressed()
    transport.unread = 499
    assert out.has_progressed()
    assert not out.has_progressed()
    transport.unread = 600
    assert not out.has_progressed(), "replies were added"
    out.drained()
    assert (transport.high, out.is_full) == (1_000, False)
