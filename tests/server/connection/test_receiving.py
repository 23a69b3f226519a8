"""What a peer has sent and its owner has not executed: order, ownership of payloads, lent buffers."""

from itertools import count
from uuid import UUID

from segstore.server.connection.deadlines import Missed, Waits
from segstore.server.connection.receiving import ReceiveBuffers, Received
from segstore.server.connection.service import Counters
from segstore.server.connection.writers import Item
from segstore.wire import AppendBlock, AppendBlockEnd, FrameDecoder, Hello, KeepAlive, SetupAppend, encode
from segstore.wire.blocks import WHOLE_APPENDS, Append, AppendBlockDecoder, one_by_one

WRITER = UUID(int=1)
SET_UP = encode(SetupAppend(1, WRITER, "scope/stream/0.#epoch.0", ""))
MALFORMED = b"\0\0\0\0\0\0\0\0"
STEP = 256


def append(number: int, data: bytes) -> bytes:
    return encode(AppendBlock(WRITER, data)) + encode(AppendBlockEnd(WRITER, len(data), b"", 1, number, number))


class Peer:
    """Received over its own buffers; its clock counts its calls."""

    def __init__(self) -> None:
        self.buffers = ReceiveBuffers()
        self.waits = Waits(0.0)
        self.counters = Counters()
        clock = count(1)
        blocks = AppendBlockDecoder()
        self.received = Received(
            self.buffers,
            FrameDecoder(joined=WHOLE_APPENDS),
            blocks,
            self.waits,
            lambda: float(next(clock)),
            self.counters,
        )

    def read(self, data: bytes) -> None:
        self.buffers.view[: len(data)] = data
        self.received.read(len(data))

    def all_behind_the_set_up(self) -> list[Item]:
        """What it has read, in as many steps as that takes."""
        first, *items = self.received.decode(STEP)
        assert isinstance(first, SetupAppend)
        while self.received.at < self.received.end:
            items += self.received.decode(STEP)
        return items


def test_what_is_put_back_comes_first_and_owns_its_payload() -> None:
    peer = Peer()
    peer.read(SET_UP + append(1, b"a" * 5_000) + append(2, b"b") + encode(KeepAlive()))
    peer.received.put_back(peer.all_behind_the_set_up())
    peer.received.hold()
    assert peer.received.held_bytes > 5_000
    peer.read(encode(Hello(17, 5)))
    peer.buffers.view[:8_000] = b"\xff" * 8_000
    first, second, third = one_by_one(peer.received.take_backlog())
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert (first.data, second.data, third) == (b"a" * 5_000, b"b", KeepAlive())
    assert peer.received.decode(STEP) == [Hello(17, 5)]
    assert not peer.received.is_pending()


def test_bytes_that_wait_are_copied() -> None:
    peer = Peer()
    peer.read(encode(KeepAlive()))
    assert not peer.received.finish()
    peer.received.hold()
    peer.buffers.view[:8] = b"\xff" * 8
    assert peer.received.held_bytes == 8
    assert peer.received.decode(STEP) == [KeepAlive()]
    assert peer.received.finish()
    assert peer.received.held_bytes == 0


def test_what_comes_before_a_malformed_frame_is_decoded_and_nothing_behind_it() -> None:
    peer = Peer()
    peer.read(encode(KeepAlive()) * 300 + MALFORMED)
    assert len(peer.received.decode(STEP)) == STEP
    assert peer.received.problem is None
    peer.received.put_back(peer.received.decode(STEP))
    assert peer.received.problem is not None
    peer.read(encode(KeepAlive()))
    assert len(peer.received.take_backlog()) == 44
    assert peer.received.at == peer.received.end
    assert peer.received.is_pending(), "the problem is"
    assert (peer.counters.malformed_frames, peer.counters.protocol_violations) == (1, 0)


def test_an_append_without_a_set_up_is_a_violation() -> None:
    peer = Peer()
    peer.read(encode(KeepAlive()) + append(1, b"x"))
    assert peer.received.decode(STEP) == [KeepAlive()]
    assert (peer.counters.malformed_frames, peer.counters.protocol_violations) == (0, 1)


def test_incomplete_frames_and_blocks_are_waited_for_from_their_first_bytes() -> None:
    peer = Peer()
    frame = encode(KeepAlive())
    peer.read(SET_UP + frame[:3])
    peer.received.decode(STEP)
    assert peer.received.has_part
    assert (peer.waits.since.get(Missed.FIRST_FRAME), peer.waits.since.get(Missed.FRAME)) == (None, 1.0)
    peer.received.release()
    peer.read(frame[3:] + encode(AppendBlock(WRITER, b"x")))
    steps = 1
    while peer.received.at < peer.received.end:  # two with C, which may make runs
        peer.received.decode(STEP)
        steps += 1
    assert (peer.waits.since.get(Missed.FRAME), peer.waits.since.get(Missed.BLOCK)) == (None, float(steps))
    assert peer.received.held_bytes == 1
