"""Mock stores for tests that have no event loop, or one of their own: servers on a loop in a thread beside.

    with ServerThread() as thread:
        server = thread.serve(stores=2)
        client = connect(server.host, server.port)
        server.wait_for("type = APPEND_BLOCK_END", count=3)
        assert server.events("scope/stream/0.#epoch.0") == [b"a", b"b", b"c"]

The fixtures of `segstore.pytest_plugin` are these. Whatever looks at a server or changes it runs on its thread, between
two of its steps, so it sees no half-done state; what is returned is the caller's own. What waits does not block: a wait
from a coroutine is refused with `WouldBlock`, which names the awaitable that there is for it under `server.aio`.

Invariants: each call ends by a deadline; when a `ServerThread` has stopped, its servers, its thread and its sockets are
gone, and gRPC's with them unless someone else uses it. A controller, and gRPC with it, is started when its address is
asked for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from segstore.server.cluster import MockCluster
from segstore.server.controller.auth import Accounts, Authority
from segstore.server.controller.config import ControllerConfig
from segstore.server.fault_decisions import Decision
from segstore.server.fault_file import read_faults
from segstore.server.fault_rules import Action, FaultSettings, Rule
from segstore.server.observe import Seen, StageName
from segstore.server.recording import Recorder
from segstore.server.replay import Problem, TraceServer
from segstore.server.store.errors import NotOwner
from segstore.server.store.store import SegmentStore
from segstore.wire.names import container_of
from segstore.wire.trace import Record

__all__ = ["AsyncView", "RunningFaults", "RunningServer", "RunningTrace", "ServerThread", "WouldBlock", "in_a_thread"]

T = TypeVar("T")

_PATIENCE_S: Final = 30.0
"""After this a server thread has hung."""
_EVENT_HEADER_BYTES: Final = 8


class WouldBlock(RuntimeError):
    """A wait from a coroutine: its loop, and so the client on it, would stand still. Attributes: call, instead."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} would block the running event loop; use: await {instead}")
        self.call = call
        self.instead = instead


def _refuse_to_block(call: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WouldBlock(call, instead)


async def in_a_thread(function: Callable[..., T], *given: Any) -> T:
    """Runs what blocks in a thread of its own; one that never ends does not keep the process from ending."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(function(*given))
            except BaseException as error:  # noqa: BLE001 — whoever waits gets it
                done.set_exception(error)

    threading.Thread(target=run, name="segstore client", daemon=True).start()
    return await asyncio.wrap_future(done)


class ServerThread:
    """A thread with an event loop, and the servers on it."""

    def __init__(self, name: str = "segstore servers") -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: list[RunningServer | RunningTrace] = []
        self._holds_grpc = False

    # --- servers ----------------------------------------------------------------------------------------------------

    def serve(
        self,
        *,
        stores: int = 1,
        controller: ControllerConfig | Mapping[str, Any] | None = None,
        users: Iterable[str] | None = None,
        faults: FaultSettings | Path | str | None = None,
        recorder: Recorder | None = None,
        **settings: Any,
    ) -> RunningServer:
        """Starts a store, or several, on free ports.

        controller: the settings of the controller. users: lines of a password file for it. faults: a fault file, or
        what is in one. recorder: is told what the stores' connections carry. Others: fields of `StoreSettings`, and
        those that `MockCluster` names. With `auth_key` the controller makes tokens that the stores accept.
        Raises pydantic.ValidationError, FaultFileError, CannotListen, TypeError for a setting that there is not.
        """
        if isinstance(faults, str | Path):
            faults = read_faults(Path(faults))
        if controller is not None and not isinstance(controller, ControllerConfig):
            controller = ControllerConfig(**controller)
        accounts = None if users is None else Accounts(users)
        settings.setdefault("authority", Authority(accounts, settings.get("auth_key"), now_s=time.time))
        cluster = MockCluster(stores, controller=controller, faults=faults, **settings)
        server = RunningServer(self, cluster)
        self.run(server._start(recorder))
        self._running.append(server)
        return server

    def replay(self, records: Iterable[Record], **options: Any) -> RunningTrace:
        """Starts a server that answers from a trace; options are those of `TraceServer`. OSError, ValueError."""
        trace = RunningTrace(self, TraceServer(records, **options))
        self.run(trace._start())
        self._running.append(trace)
        return trace

    # --- the loop ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread; returns when its loop runs."""
        ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name=self._name, daemon=True)
        self._thread.start()
        self._loop = ready.result(_PATIENCE_S)

    @staticmethod
    def _main(ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.call_soon(ready.set_result, loop)
            loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the server thread is not started, or was stopped")
        return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the thread's loop."""
        try:
            loop = self.loop
        except RuntimeError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = _PATIENCE_S) -> T:
        """As `submit`, and waits until it is done. Raises what it raises, and TimeoutError if it takes longer."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this is the servers' own thread, which cannot wait for itself")
        done = self.submit(coroutine)
        try:
            return done.result(timeout_s)
        except BaseException:
            done.cancel()
            raise

    def _forget(self, stopped: RunningServer | RunningTrace) -> None:
        if stopped in self._running:
            self._running.remove(stopped)

    async def hold_grpc(self) -> None:
        """Keeps gRPC's thread and sockets until this thread stops, or each controller would bring and take them."""
        if not self._holds_grpc:
            from grpc import aio

            aio.init_grpc_aio()  # type: ignore[attr-defined]  # the stubs have not heard of it
            self._holds_grpc = True

    def stop(self) -> None:
        """Stops the servers and the thread. May be called twice."""
        if self._loop is None or self._thread is None:
            return
        try:
            while self._running:
                self._running[-1].stop()
            if self._holds_grpc:
                self.run(self._let_go_of_grpc())
        finally:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_PATIENCE_S)

    async def _let_go_of_grpc(self) -> None:
        from grpc import aio

        self._holds_grpc = False
        gc.collect()  # its servers lie in cycles, and each holds it too
        aio.shutdown_grpc_aio()  # type: ignore[attr-defined]  # the stubs have not heard of it

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class RunningServer:
    """A mock store or several, with a controller, on a `ServerThread`.

    Attributes:
        cluster: the `MockCluster`; it belongs to the server's thread, `call` gets there.
        faults: what is to go wrong.
        aio: what waits, for coroutines.
    """

    def __init__(self, thread: ServerThread, cluster: MockCluster) -> None:
        self._thread = thread
        self.cluster = cluster
        self.faults = RunningFaults(self)
        self.aio = AsyncView(self)
        self._stopped = False

    async def _start(self, recorder: Recorder | None) -> None:
        for each in self.cluster.stores:
            each.hub.recorder = recorder
        await self.cluster.start(with_controller=False)

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store; of several, of the first."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of each store."""
        return [each.address for each in self.cluster.stores if each.address is not None]

    @property
    def host(self) -> str:
        return self.address[0]

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def admin_port(self) -> int:
        """Where the first store serves admin commands, if the setting `admin_port` is given, as 0."""
        address = self.cluster.stores[0].admin_address
        if address is None:
            raise RuntimeError("no admin port is served: give admin_port=0")
        return address[1]

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, which is started when this is asked for first."""
        if self.cluster.controller is None:
            self._thread.run(self._start_controller())
        return self.cluster.controller_uri

    async def _start_controller(self) -> None:
        await self._thread.hold_grpc()
        await self.cluster.start_controller()

    # --- what it holds ----------------------------------------------------------------------------------------------

    def call(self, function: Callable[[MockCluster], T]) -> T:
        """What the function returns, which is run on the server's thread.

        length = server.call(lambda cluster: cluster.stores[0].store.segment_info(name).length)
        """
        return self._thread.run(self._call(function))

    async def _call(self, function: Callable[[MockCluster], T]) -> T:
        return function(self.cluster)

    def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]], timeout_s: float = _PATIENCE_S) -> T:
        """What the coroutine returns that the function makes; both are run on the server's thread. TimeoutError."""
        _refuse_to_block("run", "server.aio.run(…)")
        return self._thread.run(self._run(function), timeout_s)

    async def _run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]]) -> T:
        return await function(self.cluster)

    def segments(self) -> list[str]:
        """The names of all segments, index segments included, sorted."""
        return self.call(
            lambda cluster: sorted(
                name
                for each in cluster.stores
                for container in each.store.containers.values()
                for name in container.segments
            )
        )

    def read(self, segment: str) -> bytes:
        """All that a segment holds, from its start offset. Raises NoSuchSegment."""

        def read(cluster: MockCluster) -> bytes:
            store = _owner(cluster, segment)
            info = store.segment_info(segment)
            data = bytearray()
            while info.start_offset + len(data) < info.length:
                offset = info.start_offset + len(data)
                result = store.read(segment, offset, info.length - offset)
                if result is None or not result.length:
                    break
                for piece in result.data:
                    data += piece
            return bytes(data)

        return self.call(read)

    def events(self, segment: str) -> list[bytes]:
        """The events of a segment, in order. Raises NoSuchSegment; ValueError, with the offset, for what is none."""
        data, events, at = self.read(segment), [], 0
        while at < len(data):
            kind = int.from_bytes(data[at : at + 4], "big", signed=True)
            end = at + _EVENT_HEADER_BYTES + int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
            if kind or not at + _EVENT_HEADER_BYTES <= end <= len(data):
                raise ValueError(f"{segment} holds no event at byte {at} of the {len(data)} that it has")
            events.append(data[at + _EVENT_HEADER_BYTES : end])
            at = end
        return events

    def cut(self) -> int:
        """Breaks all connections at once, as a failing network does; how many there were."""

        def cut(cluster: MockCluster) -> int:
            connections = [connection for each in cluster.stores for connection in each.hub.connections]
            for each in connections:
                each.abort()
            return len(connections)

        return self.call(cut)

    # --- what it was asked ------------------------------------------------------------------------------------------

    def requests(self, match: str = "", stage: StageName = "received") -> list[Seen]:
        """The requests that fit a filter and have reached a stage, oldest first, as they are now. FilterError."""
        return self.call(lambda cluster: [copy.copy(each) for each in cluster.requests(match, stage)])

    def mark(self) -> int:
        """The number of the last request: `wait_for(since=…)` counts those behind it."""
        return self.call(lambda cluster: cluster.mark())

    def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """Waits until `count` requests that fit have reached a stage; the one that made them so many.

        Raises NotSeen, FilterError; WouldBlock in a coroutine.
        """
        _refuse_to_block("wait_for", "server.aio.wait_for(…)")
        return self._thread.run(self._wait_for(match, count, stage, timeout_s, since), timeout_s + _PATIENCE_S)

    async def _wait_for(self, match: str, count: int, stage: StageName, timeout_s: float, since: int) -> Seen:
        found = await self.cluster.wait_for(match, count=count, stage=stage, timeout_s=timeout_s, since=since)
        return copy.copy(found)

    # --- the end ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends all connections and stops listening. May be called twice."""
        if not self._stopped:
            self._stopped = True
            self._thread.run(self.cluster.stop())
            self._thread._forget(self)


def _owner(cluster: MockCluster, segment: str) -> SegmentStore:
    container = container_of(segment, cluster.settings.store.containers)
    for each in cluster.stores:
        if container in each.store.containers:
            return each.store
    raise NotOwner(segment, container=container)


class AsyncView:
    """What waits for a `RunningServer`, as awaitables of the caller's own loop; the server stays on its thread."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    async def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]]) -> T:
        """As `RunningServer.run`."""
        return await self._await(self._server._run(function))

    async def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """As `RunningServer.wait_for`."""
        return await self._await(self._server._wait_for(match, count, stage, timeout_s, since))

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """As `RunningFaults.wait_held`."""
        await self._await(self._server.cluster.faults.wait_held(name, count, timeout_s))

    async def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._server._thread.submit(coroutine))


class RunningFaults:
    """The `Faults` of a server on its thread: the same calls, made there."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def add(
        self, match: str | Rule = "", do: str | Action | Mapping[str, Any] | Sequence[Any] = (), **rest: Any
    ) -> str:
        """As `Faults.add`: a rule behind the others; its name."""
        return self._server.call(lambda cluster: cluster.faults.add(match, do, **rest))

    def load(self, source: Path | str | FaultSettings) -> None:
        """As `Faults.load`: the rules of a file. Raises FaultFileError."""
        self._server.call(lambda cluster: cluster.faults.load(source))

    def clear(self, name: str | None = None) -> None:
        """As `Faults.clear`: takes a rule out, or all, and releases what it holds."""
        self._server.call(lambda cluster: cluster.faults.clear(name))

    def release(self, name: str) -> int:
        """As `Faults.release`: lets go on what a rule holds; how much that was."""
        return self._server.call(lambda cluster: cluster.faults.release(name))

    def held(self, name: str) -> int:
        """How much a rule holds now."""
        return self._server.call(lambda cluster: cluster.faults.held(name))

    def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds so much. Raises TimeoutError; WouldBlock in a coroutine."""
        _refuse_to_block("wait_held", "server.aio.wait_held(…)")
        thread, faults = self._server._thread, self._server.cluster.faults
        thread.run(faults.wait_held(name, count, timeout_s), timeout_s + _PATIENCE_S)

    @property
    def rules(self) -> list[str]:
        """The names of the rules."""
        return self._server.call(lambda cluster: list(cluster.faults.rules))

    @property
    def decisions(self) -> list[Decision]:
        """What rules did, in order."""
        return self._server.call(lambda cluster: cluster.faults.decisions)

    @property
    def round_trip_ms(self) -> float | Mapping[int, float]:
        """How long every reply takes at least; a number, or one for each store by its number."""
        return self._server.cluster.faults.round_trip_ms

    @round_trip_ms.setter
    def round_trip_ms(self, given: float | Mapping[int, float]) -> None:
        self._server.call(lambda cluster: setattr(cluster.faults, "round_trip_ms", given))

    def unmatched(self) -> list[str]:
        """One line for each rule that nothing has fitted, or that was fitted and has not fired."""
        return self._server.call(lambda cluster: cluster.faults.unmatched())


class RunningTrace:
    """A trace that answers clients, on a `ServerThread`."""

    def __init__(self, thread: ServerThread, server: TraceServer) -> None:
        self._thread = thread
        self._server = server
        self._address: tuple[str, int] | None = None
        self._stopped = False

    async def _start(self) -> None:
        await self._server.start()
        self._address = self._server.host, self._server.port

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, or has listened."""
        assert self._address is not None, "made by ServerThread.replay, which starts it"
        return self._address

    @property
    def host(self) -> str:
        return self.address[0]

    @property
    def port(self) -> int:
        return self.address[1]

    @property
    def problems(self) -> list[Problem]:
        """What was asked and is not in the trace, or not there; oldest first."""
        return list(self._server.problems)

    def unused(self) -> Counter[str]:
        """The requests of the trace that nobody has made so far, by command."""
        return self._thread.run(self._unused())

    async def _unused(self) -> Counter[str]:
        return self._server.unused()

    def stop(self) -> None:
        """Ends all connections and stops listening. May be called twice."""
        if not self._stopped:
            self._stopped = True
            self._thread.run(self._server.stop())
            self._thread._forget(self)
