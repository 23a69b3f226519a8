"""A connection that is driven by hand: its loop, clocks, socket, peer and disk do only what a test says.

    line.send(HELLO)  # the fixtures `room` and `line`; `new_room` makes a room with limits, rules or a disk
    assert line.answers() == [HELLO]
    room.run()  # what was scheduled for later iterations of the loop

Everything but the ends is the product's: hub, service, store, lane.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from segstore.server import LimitSettings
from segstore.server.connection import Connection, ConnectionHub, executing
from segstore.server.durable import Gate
from segstore.server.faults import Faults, Observer
from segstore.wire import Buffer, Command, FrameDecoder, GetStreamSegmentInfo, KeepAlive, encode
from segstore.wire.trace import Direction
from tests.server.support import HELLO, SEGMENT, FakeClock, FakeTimer, append, create, make_service, set_up
from tests.server.test_recording import Notes

PONG = KeepAlive()
INFO = GetStreamSegmentInfo(1, SEGMENT, "")
PART = encode(PONG)[:5]
WAITING_READ_BYTES = 1024
PEER, STORE = ("10.0.0.1", 5000), ("10.0.0.2", 12345)


class Loop:
    """The running loop as connections and the hub see it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._soon: list[Callable[[], Any]] = []
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., Any], *given: Any) -> FakeTimer:
        self._soon.append(lambda: callback(*given))
        return FakeTimer(self.now_s, callback)

    def call_later(self, delay_s: float, callback: Callable[[], Any]) -> FakeTimer:
        timer = FakeTimer(self.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    @property
    def is_idle(self) -> bool:
        """Whether nothing is scheduled for the next iteration."""
        return not self._soon

    @property
    def has_timers(self) -> bool:
        return any(not timer.cancelled for timer in self._timers)

    def iterate(self) -> None:
        """Runs what is scheduled now, not what that schedules."""
        soon, self._soon = self._soon, []
        for each in soon:
            each()

    def run(self) -> None:
        """Runs until nothing is scheduled for the next iteration."""
        for _ in range(10_000):
            if not self._soon:
                return
            self.iterate()
        raise AssertionError("it does not come to rest")

    def fire(self) -> None:
        """Fires the timers that are due, such as the sweep of the hub."""
        due = [each for each in self._timers if each.at_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer not in due]
        for each in due:
            if not each.cancelled:
                each.callback()
        self.run()

    def sweep(self, seconds: float = 1.0) -> None:
        """Time passes, and the hub looks at its connections."""
        self.now_s += seconds
        self.fire()


class Log(Notes):
    """A recorder that also keeps its calls in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, str]] = []

    def _add(self, connection: int, way: str, data: bytes) -> None:
        super()._add(connection, way, data)
        self.calls.append((connection, way))

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        super().closed(connection, by, **facts)
        self.calls.append((connection, "closed"))


class Disk(Gate):
    """Changes are durable when a test says so.

    Attributes:
        is_ahead: whether they are, and the loop was not notified.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.is_full = self.is_ahead = False

    @property
    def full(self) -> bool:
        return self.is_full

    def behind(self) -> None:
        """Replies made from now on wait for a commit."""
        self.mark += 1

    def catch_up(self) -> None:
        if self.is_ahead:
            self.commit()

    def commit(self, up_to: int | None = None) -> None:
        """Replies up to a mark may leave; None for all."""
        self.committed = self.mark if up_to is None else up_to
        self._release()

    def has_room(self) -> None:
        """Senders that wait for room go on."""
        self.is_full = False
        self._resume()

    def fail(self, why: str) -> None:
        self.failure = why
        self._drop(why, *self.stalled)


class Linger:
    """A socket of which only its options matter."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.options.append((level, option))


class Socket(asyncio.Transport):
    """A transport whose peer reads all at once, or nothing while it is stuck.

    Attributes:
        written: the buffers that were written, in order.
        unread: size of what the peer has not read.
        calls: what else was asked of it, in order.
        closes_late: whether it is not closing yet when it was told to close, like uvloop's under TLS.
    """

    def __init__(self, loop: Loop, **extra: Any) -> None:
        self.socket = Linger()
        super().__init__({"peername": PEER, "sockname": STORE, "socket": self.socket, **extra})
        self.protocol: Connection
        self.written: list[bytes] = []
        self.unread = 0
        self.high = 0
        self.is_stuck = self.is_full = self.closes_late = False
        self.reads = True
        self.calls: list[str] = []
        self._loop = loop

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return "abort" in self.calls or ("close" in self.calls and not self.closes_late)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True
        self.calls.append("resume")

    def write(self, data: Buffer) -> None:  # type: ignore[override]  # all that it gets
        self.writelines([data])

    def writelines(self, parts: Sequence[Buffer]) -> None:  # type: ignore[override]  # all that it gets
        assert not self.is_closing(), "it is closed"
        self.written += [bytes(part) for part in parts]
        if self.is_stuck:
            self.unread += sum(map(len, parts))
            if self.unread > self.high and not self.is_full:
                self.is_full = True
                self.protocol.pause_writing()

    def peer_reads(self, size: int | None = None) -> None:
        """The peer reads some of what is unread, by default all, and is not stuck any more if it was all."""
        self.unread -= self.unread if size is None else size
        self.is_stuck = self.unread > 0
        if self.is_full and self.unread <= self.high // 4:
            self.is_full = False
            self.protocol.resume_writing()
        if "close" in self.calls and not self.unread:
            self.lose()

    def close(self) -> None:
        self.calls.append("close")
        if not self.unread:
            self.lose()

    def abort(self) -> None:
        self.calls.append("abort")
        self.lose()

    def lose(self, error: Exception | None = None) -> None:
        """The connection is lost, of which the protocol is told in the next iteration."""
        self._loop.call_soon(self.protocol.connection_lost, error)


class Line:
    """One connection and its socket."""

    def __init__(self, connection: Connection, socket: Socket) -> None:
        self.connection = connection
        self.socket = socket
        self.session = connection.session
        self.waits = connection.waits
        self._decoder = FrameDecoder()
        self._answered = 0

    def send(self, *commands: Command | bytes) -> int:
        """One read brings these; returns their size."""
        data = b"".join(command if isinstance(command, bytes) else encode(command) for command in commands)
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))
        return len(data)

    def queue(self, *commands: Command | bytes) -> int:
        """As `send`, but nothing is executed before the next step."""
        with patch.object(executing, "_STEP", 0):
            return self.send(*commands)

    def answers(self) -> list[Command]:
        """The replies that were written since the last call."""
        data, self._answered = self.written[self._answered :], len(self.written)
        return self._decoder.feed(data)

    @property
    def written(self) -> bytes:
        return b"".join(self.socket.written)


class Room:
    """A store, its hub and its connections.

    Attributes:
        disk, faults: only in a room that was made with them.
        log: what was recorded, if anything is.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        disk: bool = False,
        rules: bool = False,
        record: bool = False,
        number: int = 0,
        **limits: Any,
    ) -> None:
        """disk: changes have to be durable. rules: there are fault rules. record: the traffic is recorded.
        number: of the store in its cluster. limits: fields of `LimitSettings`.
        """
        self.loop = Loop()
        monkeypatch.setattr("asyncio.get_running_loop", lambda: self.loop)
        self.clock = FakeClock()
        self.service = make_service(self.clock, limits=LimitSettings(**limits))
        self._monkeypatch = monkeypatch
        self._disk = Disk() if disk else None
        self._faults = Faults(self.clock, observer=Observer()) if rules else None
        self.hub = ConnectionHub(self.service, self._disk, faults=self._faults, number=number)
        self.log = Log()
        if record:
            self.hub.recorder = self.log
        self.counters = self.service.counters

    @property
    def disk(self) -> Disk:
        assert self._disk is not None
        return self._disk

    @property
    def faults(self) -> Faults:
        assert self._faults is not None
        return self._faults

    def connect(self, *, admin: bool = False, **extra: Any) -> Line:
        """A peer has connected. extra: facts of its socket."""
        socket = Socket(self.loop, **extra)
        connection = socket.protocol = Connection(self.hub, admin=True) if admin else Connection(self.hub)
        connection.connection_made(socket)
        return Line(connection, socket)

    def run(self) -> None:
        """Later iterations of the loop, until it rests."""
        self.loop.run()

    def step(self, size: int) -> None:
        """From now on a step has this number of requests."""
        self._monkeypatch.setattr(executing, "_STEP", size)


NewRoom = Callable[..., Room]


def idle(room: Room, **facts: Any) -> Line:
    """A connection that the hub does not watch, because it waits for nothing."""
    line = room.connect(**facts)
    line.send(HELLO)
    assert line.answers() == [HELLO]
    room.loop.sweep()
    assert not room.loop.has_timers
    return line


def exists(room: Room) -> bool:
    """Whether `create` was executed."""
    return room.service.has_segment(SEGMENT)


def filled(room: Room, size: int) -> Line:
    """A segment with `size` bytes, and the connection that has written them."""
    line = room.connect()
    line.send(create(), set_up(), append(1, bytes(size)))
    if room.hub.gate is not None:
        room.disk.commit()
    assert len(line.answers()) == 3
    return line


def account(room: Room, line: Line) -> int:
    """What is held for the only peer that anything is held for."""
    assert line.connection.held_bytes == room.hub.outstanding_bytes
    return room.hub.outstanding_bytes
