"""Replies that wait for the disk or the peer."""

from segstore.server.connection.sending import SMALL_BYTES, HeldReplies
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
