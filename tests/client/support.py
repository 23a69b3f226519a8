"""What the client's tests share: a store that does what a test says, handlers that remember, a clock set by hand."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from segstore.client import Client, connect
from segstore.client.config import ClientSettings
from segstore.client.connection import Endpoint
from segstore.client.errors import ClientError
from segstore.client.retry import Backoff
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.net import stop_accepting
from segstore.wire import Command, CreateSegment, FrameDecoder, Hello, encode
from tests.server.support import FakeClock, until

__all__ = [
    "FAST",
    "AddedUp",
    "FakeTimers",
    "Listener",
    "Recorder",
    "Script",
    "ScriptedPeer",
    "ScriptedStore",
    "all_events",
    "client",
    "create",
    "endpoint",
    "make_stream",
    "settings",
    "until",
]

OURS = Hello(17, 5)
FAST = Backoff(initial_ms=1, max_ms=5, jitter=0)


def settings(**more: Any) -> ClientSettings:
    """Settings whose waits are short."""
    given: dict[str, Any] = {"reconnect_backoff": FAST, "request_timeout_ms": 15_000, "close_timeout_ms": 5_000}
    return ClientSettings.model_validate(given | more)


def client(mock: MockCluster, **more: Any) -> Client:
    """A client whose waits are short."""
    return connect(f"tcp://{mock.controller_uri}", settings(**more))


async def make_stream(pravega: Client, segments: int = 1, name: str = "s") -> None:
    """Creates a stream in scope "a", and the scope."""
    await pravega.controller.create_scope("a")
    assert await pravega.controller.create_stream("a", name, segments=segments)


async def all_events(pravega: Client, name: str = "s") -> list[bytes]:
    """Seals a stream of scope "a" and reads it to its end."""
    await pravega.controller.seal_stream("a", name)
    async with pravega.event_reader("a", name) as events, asyncio.timeout(60):
        return [event.data async for event in events]


def endpoint(store: MockSegmentStore) -> Endpoint:
    return Endpoint(store.host, store.port)


class Recorder:
    """A user of a flow that remembers what it was told; `answer` is called with each reply."""

    def __init__(self, answer: Callable[[Command], None] | None = None) -> None:
        self.replies: list[Command] = []
        self.lost: list[ClientError] = []
        self._answer = answer

    def on_reply(self, reply: Command) -> None:
        self.replies.append(reply)
        if self._answer is not None:
            self._answer(reply)

    def on_lost(self, error: ClientError) -> None:
        self.lost.append(error)


class ScriptedPeer:
    """One connection of a `ScriptedStore`."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.got: list[Command] = []

    def send(self, *commands: Command) -> None:
        self.writer.write(b"".join(encode(command) for command in commands))

    def close(self) -> None:
        self.writer.close()


Script = Callable[[ScriptedPeer, Command], None]


def _say_nothing(peer: ScriptedPeer, command: Command) -> None:
    """Lets whatever comes be."""


class Listener(ABC):
    """Listens at `endpoint`; each connection is served by a task, and none is left at the end."""

    def __init__(self) -> None:
        self.endpoint = Endpoint("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection, which is cut when this returns."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self.start(self.serve(reader, writer))
        task.add_done_callback(lambda _: writer.transport.abort())  # also if it ends before it has begun

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends with the listener."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = Endpoint(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_accepting(self._server)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


class ScriptedStore(Listener):
    """Answers Hello as the test configures it, and hands each command to a script. Payloads are the command's own."""

    def __init__(self, script: Script = _say_nothing, *, hello: Hello | None = OURS) -> None:
        super().__init__()
        self.peers: list[ScriptedPeer] = []
        self.script = script
        self.hello = hello

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = ScriptedPeer(writer)
        self.peers.append(peer)
        with suppress(ConnectionError):  # the client may cut
            while data := await reader.read(1 << 20):
                for command in FrameDecoder().feed(await self._whole(reader, data)):
                    peer.got.append(command)
                    if isinstance(command, Hello):
                        if self.hello is not None:
                            peer.send(self.hello)
                    else:
                        self.script(peer, command)

    @staticmethod
    async def _whole(reader: asyncio.StreamReader, data: bytes) -> bytes:
        """Reads on until the bytes end with a frame."""
        at = 0
        while True:
            while len(data) - at >= 8 and at + 8 + int.from_bytes(data[at + 4 : at + 8]) <= len(data):
                at += 8 + int.from_bytes(data[at + 4 : at + 8])
            if at == len(data):
                return data
            more = await reader.read(1 << 20)
            if not more:
                return data[:at]
            data += more

    @property
    def open_peers(self) -> int:
        return len(self._tasks)


class FakeTimers(FakeClock):
    """A clock and timers as a loop has them; time passes when a test says so."""

    time = FakeClock.now_s


class AddedUp:
    """Rules of a state that is what was added to it, one after another."""

    def create(self, initial: bytes) -> bytes:
        return initial

    def apply(self, state: bytes, update: bytes) -> bytes:
        return state + update

    def compact(self, state: bytes) -> bytes:
        return state


class Sum:
    """Rules of a state that is a number, to which updates are added."""

    def create(self, initial: bytes) -> int:
        return int(initial)

    def apply(self, state: int, update: bytes) -> int:
        return state + int(update)

    def compact(self, state: int) -> bytes:
        return b"%d" % state


def create(segment: str, request_id: int = 1) -> CreateSegment:
    return CreateSegment(request_id, segment, 0, 0, "", 0)
