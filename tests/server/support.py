"""What the server's tests share: a clock that is set by hand, sessions without sockets, peers with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from segstore.server import MockSegmentStore, StoreSettings
from segstore.server.connection import Session, StoreService
from segstore.server.store import Buffer, Container, SegmentStore
from segstore.wire import AppendBlockEnd, Command, CreateSegment, FrameDecoder, Hello, ReadSegment, SetupAppend, encode
from segstore.wire.blocks import AppendBlockDecoder

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = UUID(int=7)
PATIENCE_S = 60.0
"""After this a test has hung."""


class FakeTimer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that passes when a test says so."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self._now_s = now_s
        self._timers: list[FakeTimer] = []

    def now_s(self) -> float:
        return self._now_s

    wall_s = now_s

    def now_ms(self) -> int:
        return int(self._now_s * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self._now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    @property
    def pending(self) -> list[FakeTimer]:
        """Timers that are neither cancelled nor over."""
        return [timer for timer in self._timers if not timer.cancelled]

    def advance(self, seconds: float) -> None:
        """Lets time pass, timers in order."""
        until = self._now_s + seconds
        while due := [each for each in self.pending if each.at_s <= until]:
            timer = min(due, key=lambda each: each.at_s)
            self._now_s = max(self._now_s, timer.at_s)
            self._timers.remove(timer)
            timer.callback()
        self._now_s = until


def replies(frames: Iterable[Any]) -> list[Command]:
    """The commands in frames, with payloads of their own."""
    return FrameDecoder().feed(b"".join(bytes(frame) for frame in frames))


class Desk:
    """A session without a socket: commands in, replies out."""

    def __init__(self, service: StoreService, *, admin: bool = False) -> None:
        self.service = service
        self.called = 0
        self._blocks = AppendBlockDecoder()
        self.session = Session(service, "peer:1", admin=admin, on_reply=self._on_reply, blocks=self._blocks)

    def _on_reply(self) -> None:
        self.called += 1

    def ask(self, *commands: Command) -> list[Command]:
        """Sends commands as one read brings them; what they are answered at once."""
        items = self._blocks.feed_all(commands)
        while items and not self.session.ended:
            items = items[self.session.receive_all(items) :]
        self.service.answer_waiting()
        return self.take()

    def take(self) -> list[Command]:
        return replies(self.session.take_out())


def make_service(clock: FakeClock | None = None, **settings: Any) -> StoreService:
    made = StoreSettings(**settings)
    store = SegmentStore(made.containers, made.own, reuse_names=made.reuse_names)
    counter = iter(range(1 << 30))
    return StoreService(made, store, clock or FakeClock(), lambda: f"{next(counter):032x}")


def create(segment: str = SEGMENT, request_id: int = 1) -> CreateSegment:
    return CreateSegment(request_id, segment, 0, 0, "", 0)


def set_up(segment: str = SEGMENT, writer_id: UUID = WRITER, token: str = "") -> SetupAppend:
    return SetupAppend(2, writer_id, segment, token)


def append_to(
    holder: Container | SegmentStore,
    name: str,
    writer: UUID,
    number: int,
    events: int,
    data: Buffer,
    *,
    last_event_number: int,
    now_ms: int,
    expected_offset: int = -1,
) -> int:
    """One append to a segment without a connection; the length after it."""
    container = holder if isinstance(holder, Container) else holder.container_for(name)
    row = number, events, data, 0
    return container.append(name, writer.bytes, (row,), last_event_number, now_ms, expected_offset) + len(data)


def append(number: int, data: bytes = b"data", writer_id: UUID = WRITER, request_id: int = 3) -> AppendBlockEnd:
    return AppendBlockEnd(writer_id, len(data), data, 1, number, request_id)


def event(data: bytes) -> bytes:
    """An event as a segment holds it: behind a header with its length."""
    return bytes(4) + len(data).to_bytes(4) + data


def read(offset: int = 0, length: int = 2 * 1024 * 1024, request_id: int = 4, token: str = "") -> ReadSegment:
    return ReadSegment(SEGMENT, offset, length, token, request_id)


HELLO = Hello(17, 5)


class Peer:
    """One side of a raw connection that reads only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._ready: list[Command] = []

    @classmethod
    async def connect(cls, store: MockSegmentStore, *, admin: bool = False, **extra: Any) -> Peer:
        port = store.admin_port if admin else store.port
        return cls(*await asyncio.open_connection(store.host, port, limit=4096, **extra))

    def send(self, *commands: Command) -> None:
        self.send_bytes(b"".join(encode(command) for command in commands))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self, count: int = 1) -> list[Command]:
        """The next replies; fewer only if the store closes before."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._ready) < count:
                data = await self.reader.read(1 << 20)
                if not data:
                    break
                # The list keeps views of the decoder's memory only until the next feed.
                self._ready += FrameDecoder().feed(b"".join(encode(each) for each in self._decoder.feed(data)))
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    async def ask(self, *commands: Command) -> list[Command]:
        """As many replies as commands."""
        self.send(*commands)
        return await self.receive(len(commands))

    async def closed(self) -> bytes:
        """What comes until the store closes."""
        rest = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            try:
                while data := await self.reader.read(1 << 20):
                    rest += data
            except ConnectionError:
                pass  # a cut connection is a closed one
        return bytes(rest)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # it is closed either way

    def abort(self) -> None:
        self.writer.transport.abort()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def until(condition: Callable[[], Any]) -> None:
    """Waits for something to become true, as it must."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 — what is waited for is state of the store, which has no events
            await asyncio.sleep(0.005)
