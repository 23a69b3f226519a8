"""A controller over a fake store, on a clock that stands still, with a journal that is held against its state."""

from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import grpc
import msgspec
import pytest

from segstore.server.controller import Controller, ControllerConfig, ControllerServer, ScalingPolicy, StreamConfig
from segstore.server.controller.state import Core, State
from segstore.server.controller.state import operations as op
from segstore.server.controller.state.operations import decode
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import Client, stream_config
from tests.server.controller.fake_store import Clock, FakeStore

__all__ = ["World"]


class World:
    """What a test needs at hand."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.clock = Clock()
        self.journal: list[bytes] = []
        self.controller = self.make()

    def make(self, state: State | None = None, **settings: Any) -> Controller:
        """Start the controller, with other settings or from a state."""
        config = ControllerConfig(**settings)
        core = Core(self.store, config, now_ms=self.clock, random=Random(7), journal=self._write, state=state)
        self.controller = Controller(core)
        return self.controller

    def _write(self, operation: op.Operation) -> None:
        self.journal.append(op.encode(operation))

    def replayed(self) -> State:
        """The state that the journal alone gives."""
        state = State()
        for line in self.journal:
            decode(line).apply(state)
        return state

    async def stream(self, segments: int = 1, name: str = "s", **config: Any) -> None:
        """Make scope `a`, if it is not there, and a stream in it."""
        if not self.controller.scopes.exists("a"):
            self.controller.scopes.create("a")
        config.setdefault("scaling", ScalingPolicy(min_segments=segments))
        await self.controller.create_stream("a", name, StreamConfig(**config))

    async def pass_time(self, ms: int) -> None:
        """Let time pass and what is due by then be done, each thing at its time."""
        end_ms = self.clock.now_ms + ms
        while (due_ms := self.controller.core.next_due_ms()) is not None and due_ms <= end_ms:
            self.clock.now_ms = max(due_ms, self.clock.now_ms)
            await self.controller.run_due()
        self.clock.now_ms = end_ms


@pytest.fixture
def world() -> Iterator[World]:
    """A world; at the end its journal must tell how its state came to be."""
    world = World()
    yield world
    assert msgspec.to_builtins(world.replayed()) == msgspec.to_builtins(world.controller.state)


@pytest.fixture
async def server(world: World) -> AsyncIterator[ControllerServer]:
    async with await ControllerServer(world.controller).start() as server:
        yield server


@pytest.fixture
async def call(server: ControllerServer) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Client(channel)


@pytest.fixture
async def stream(call: Client) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    await call("createStream", stream_config("s", 2))
