"""Mock stores for synchronous or async tests: servers in a thread or a process of their own.

    with ServerThread() as servers:
        server = servers.serve(stores=2)
        client = connect(server.host, server.port)
        server.wait_for("type = APPEND_BLOCK_END", count=3)
        assert server.events("scope/stream/0.#epoch.0") == [b"a", b"b", b"c"]

The fixtures of `segstore.pytest_plugin` use these classes. `ServerProcess` is for a client that holds the interpreter
lock while it waits for the store, as Pravega's official Python client does; the test's own functions must then be
picklable.

Calls that inspect or change a server run on its loop, between two steps of the server, so they see consistent state;
results belong to the caller. A blocking wait from a coroutine is refused with `WouldBlock`, which names the awaitable
to use instead under `server.aio`.

Invariants: each call ends by a deadline; when the thread or process has stopped, its servers and sockets are gone, and
gRPC's too unless other code uses it. A controller, and gRPC with it, is started when its address is first read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from segstore.server import StoreOptions
from segstore.server.clock import Clock
from segstore.server.cluster import MockCluster
from segstore.server.controller import Authority, ControllerConfig
from segstore.server.coordination import Coordinator, OwnershipSettings
from segstore.server.faults import Action, Decision, FaultSettings, Rule, RuleOptions, Seen, StageName
from segstore.server.replay import Problem, TraceOptions
from segstore.testing.hosts import PATIENCE_S, Host, ProcessHost, ThreadHost
from segstore.testing.on_the_loop import Served, ServedTap, ServedTrace, Watched, break_connections, end
from segstore.wire.trace import Record

if TYPE_CHECKING:
    from segstore.tap import TapOptions

__tracebackhide__ = True  # pytest shows the caller's line and the failure, not the frames between

T = TypeVar("T")


class ServerOptions(StoreOptions, total=False):
    """The keyword arguments of `Servers.serve`: those of `MockCluster`, users, and a recording."""

    stores: int
    controller: ControllerConfig | Mapping[str, Any] | None
    published_host: str | None
    authority: Authority | None
    users: Iterable[str] | None
    faults: FaultSettings | Path | str | None
    clock: Clock | None
    watched: bool
    http_port: int | None
    http_token_file: Path | None
    data: Path | None
    memory_bytes: int | None
    ownership: OwnershipSettings | None
    coordinator: Coordinator | None
    configuration: Coordinator | None
    record: Path | None
    record_tokens: bool
    record_values: Mapping[str, str] | None


class WouldBlock(RuntimeError):
    """A blocking wait from a coroutine, which would block its loop and the client on it. Attributes: call, instead."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} would block the running event loop; use: await {instead}")
        self.call = call
        self.instead = instead

    @classmethod
    def check(cls, call: str, instead: str) -> None:
        """Raises `WouldBlock` in a coroutine."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise cls(call, instead)


async def in_a_thread(function: Callable[..., T], *given: Any) -> T:
    """Runs a blocking function in a daemon thread, which does not keep the process alive."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(function(*given))
            except BaseException as error:  # noqa: BLE001 — raised to the waiter
                done.set_exception(error)

    threading.Thread(target=run, name="segstore client", daemon=True).start()
    return await asyncio.wrap_future(done)


class Servers(Host):
    """A host of servers: `ServerThread` or `ServerProcess`."""

    def serve(self, **settings: Unpack[ServerOptions]) -> RunningServer:
        """Starts a store, or several, on free ports.

        controller: the settings of the controller. users: lines of a password file for it. faults: a fault file or its
        content. record: a new file for the stores' traffic, with `record_values` in its header; record_tokens: whether
        it contains delegation tokens. The others are as in `MockCluster`. With `auth_key` the controller issues tokens
        that the stores accept. Raises ValueError for an invalid setting,
        FaultFileError, OSError.
        """
        return RunningServer(self, self.create(Served.start, **settings), watched=settings.get("watched", True))

    def replay(self, trace: Path | Iterable[Record], **options: Unpack[TraceOptions]) -> RunningTrace:
        """Starts a server that answers from a trace, a file or records; options are those of `TraceServer`.

        Raises OSError, TraceError, ValueError.
        """
        trace = trace if isinstance(trace, Path) else list(trace)
        return RunningTrace(self, self.create(ServedTrace.start, trace=trace, **options))

    def tap(self, controller: str | None = None, store: str | None = None, **options: Unpack[TapOptions]) -> RunningTap:
        """Starts a tap before a controller, a store or both; options are those of `segstore.tap.Tap`.

        Raises ValueError for invalid options, FaultFileError, OSError.
        """
        key = self.create(ServedTap.start, controller=controller, store=store, **options)
        return RunningTap(self, key, watched=options.get("watched", True))


class ServerThread(ThreadHost, Servers):
    """Servers in a thread of this process."""


class ServerProcess(ProcessHost, Servers):
    """Servers in a process of their own, started with the first server."""


class _Hosted(ABC):
    """A server in a thread or a process of its own."""

    def __init__(self, host: Servers, key: int) -> None:
        self._host = host
        self._key = key
        self._stopped = False

    @overload
    def _do(self, function: Callable[..., Coroutine[Any, Any, T]], *given: Any, timeout_s: float = PATIENCE_S) -> T: ...

    @overload
    def _do(self, function: Callable[..., T], *given: Any, timeout_s: float = PATIENCE_S) -> T: ...

    def _do(self, function: Callable[..., Any], *given: Any, timeout_s: float = PATIENCE_S) -> Any:
        return self._host.run(function, self._key, *given, timeout_s=timeout_s)

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]: ...

    @property
    def host(self) -> str:
        return self.address[0]

    @property
    def port(self) -> int:
        return self.address[1]

    def stop(self) -> None:
        """Closes all connections and stops listening; what was recorded stays readable. May be called twice."""
        self._do(end)
        if not self._stopped:
            self._stopped = True
            weakref.finalize(self, self._host.forget, self._key).atexit = False


class Running(_Hosted):
    """A server that records requests and injects faults, in a thread or a process of its own.

    Attributes:
        watched: whether requests are recorded and faults may be added; False with the setting watched=False.
        faults: the fault rules.
    """

    def __init__(self, host: Servers, key: int, *, watched: bool = True) -> None:
        super().__init__(host, key)
        self.watched = watched
        self.faults = RunningFaults(self)

    @property
    @abstractmethod
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each store."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first store. Raises LookupError for a tap that knows of no store yet."""
        addresses = self.addresses
        if not addresses:
            raise LookupError("the tap knows of no store yet: it learns of stores from the controller's replies")
        return addresses[0]

    def cut(self) -> int:
        """Breaks all connections at once, as a failing network does; how many there were."""
        return self._do(break_connections)

    # --- requests ---------------------------------------------------------------------------------------------------

    def requests(self, match: str = "", stage: StageName = "received") -> list[Seen]:
        """The requests that match a filter and have reached a stage, oldest first. Raises FilterError."""
        return self._do(Watched.requests, match, stage)

    def mark(self) -> int:
        """The number of the last request: `wait_for(since=…)` counts later ones."""
        return self._do(Watched.mark)

    def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """Waits until `count` matching requests have reached a stage; returns the last of them.

        Raises NotSeen, FilterError; WouldBlock in a coroutine.
        """
        WouldBlock.check("wait_for", "server.aio.wait_for(…)")
        given = match, count, stage, timeout_s, since
        return self._do(Watched.wait_for, *given, timeout_s=timeout_s + PATIENCE_S)


class RunningServer(Running):
    """A mock store or several, with a controller. Made by `Servers.serve`.

    Attributes: those of `Running`, and aio: waits for coroutines.
    """

    def __init__(self, host: Servers, key: int, *, watched: bool = True) -> None:
        super().__init__(host, key, watched=watched)
        self._addresses = self._do(Served.addresses)
        self.aio = AsyncView(self)

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each store."""
        return list(self._addresses)

    @property
    def admin_port(self) -> int:
        """The port for admin commands of the first store, if the setting `admin_port` is given, such as 0."""
        return self._do(Served.admin_port)

    @property
    def http_url(self) -> str:
        """http://host:port of the control API, if the setting `http_port` is given, such as 0."""
        return self._do(Served.http_url)

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, which the first access starts."""
        return self._do(Served.controller_uri)

    def create_stream(self, scope: str, stream: str, segments: int = 1) -> None:
        """Creates a stream, and its scope if needed, through the controller. Raises ControllerError."""
        self._do(Served.create_stream, scope, stream, segments)

    # --- what it holds ----------------------------------------------------------------------------------------------

    def call(self, function: Callable[[MockCluster], T]) -> T:
        """Runs a function where the server is; returns its result. Raises InAnotherProcess if it cannot be sent.

        length = server.call(lambda cluster: cluster.stores[0].store.segment_info(name).length)
        """
        found: T = self._do(Served.call, function)
        return found

    def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]], timeout_s: float = PATIENCE_S) -> T:
        """Runs a coroutine function where the server is; returns its result. Raises TimeoutError."""
        WouldBlock.check("run", "server.aio.run(…)")
        found: T = self._do(Served.run, function, timeout_s=timeout_s)
        return found

    def segments(self, *, with_indexes: bool = False) -> list[str]:
        """The names of all segments, sorted. with_indexes: include index segments."""
        return self._do(Served.segments, with_indexes)

    def read(self, segment: str) -> bytes:
        """All that a segment holds, from its start offset. Raises NoSuchSegment."""
        return self._do(Served.read, segment)

    def events(self, segment: str) -> list[bytes]:
        """The events of a segment, in order. Raises NoSuchSegment; ValueError, with the offset, for other bytes."""
        return self._do(Served.events, segment)


class RunningTap(Running):
    """A tap before a Pravega. Made by `Servers.tap`. Attributes: those of `Running`, and aio: waits for coroutines."""

    def __init__(self, host: Servers, key: int, *, watched: bool = True) -> None:
        super().__init__(host, key, watched=watched)
        self.aio = Waits(self)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of the tap's port for each store that it knows of."""
        return self._do(ServedTap.addresses)

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, through the tap."""
        return self._do(ServedTap.controller_uri)


class Waits:
    """The waits of a server, as awaitables of the caller's loop."""

    def __init__(self, server: Running) -> None:
        self._server = server

    async def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """As `Running.wait_for`."""
        return await self._await(Watched.wait_for, match, count, stage, timeout_s, since)

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """As `RunningFaults.wait_held`."""
        await self._await(Watched.faults, "wait_held", name, count, timeout_s)

    async def _await(self, function: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
        found: T = await asyncio.wrap_future(self._server._host.submit(function, self._server._key, *given))
        return found


class AsyncView(Waits):
    """The waits of a `RunningServer`."""

    async def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]]) -> T:
        """As `RunningServer.run`."""
        found: T = await self._await(Served.run, function)
        return found


class RunningFaults:
    """The `Faults` of a running server: the same calls, executed where it runs."""

    def __init__(self, server: Running) -> None:
        self._server = server

    def _do(self, name: str, *given: Any) -> Any:
        return self._server._do(Watched.faults, name, *given)

    def add(
        self,
        match: str | Rule = "",
        do: str | Action | Mapping[str, Any] | Sequence[Any] = (),
        **rest: Unpack[RuleOptions],
    ) -> str:
        """As `Faults.add`: appends a rule and returns its name."""
        name: str = self._server._do(Watched.add_fault, match, do, rest)
        return name

    def load(self, source: Path | str | FaultSettings) -> None:
        """As `Faults.load`: loads the rules of a file. Raises FaultFileError."""
        self._do("load", source)

    def clear(self, name: str | None = None) -> None:
        """As `Faults.clear`: removes a rule, or all, and releases what it holds. Raises NoSuchRule."""
        self._do("clear", name)

    def release(self, name: str) -> int:
        """As `Faults.release`: releases what a rule holds; returns how many items. Raises NoSuchRule."""
        count: int = self._do("release", name)
        return count

    def disable(self, name: str) -> None:
        """As `Faults.disable`: disables a rule; its counts stay. Raises NoSuchRule."""
        self._do("disable", name)

    def enable(self, name: str) -> None:
        """As `Faults.enable`: enables a disabled rule. Raises NoSuchRule."""
        self._do("enable", name)

    def held(self, name: str) -> int:
        """The number of items that a rule holds now."""
        count: int = self._do("held", name)
        return count

    def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds `count` items. Raises TimeoutError; WouldBlock in a coroutine."""
        WouldBlock.check("wait_held", "server.aio.wait_held(…)")
        given = "wait_held", name, count, timeout_s
        self._server._do(Watched.faults, *given, timeout_s=timeout_s + PATIENCE_S)

    @property
    def rules(self) -> list[str]:
        """The names of the rules."""
        names: list[str] = self._do("rules")
        return names

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of the rules, in order."""
        found: list[Decision] = self._do("decisions")
        return found

    @property
    def round_trip_ms(self) -> float | Mapping[int, float]:
        """The minimum delay of every reply: one number, or one for each store by its number."""
        found: float | Mapping[int, float] = self._do("round_trip_ms")
        return found

    @round_trip_ms.setter
    def round_trip_ms(self, given: float | Mapping[int, float]) -> None:
        self._server._do(Watched.set_round_trip_ms, given)

    def unmatched(self) -> list[str]:
        """One line for each rule that has never matched, or has matched and not fired."""
        lines: list[str] = self._do("unmatched")
        return lines


class RunningTrace(_Hosted):
    """A trace that answers clients. Made by `Servers.replay`."""

    def __init__(self, host: Servers, key: int) -> None:
        super().__init__(host, key)
        self._address = self._do(ServedTrace.address)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self._address

    @property
    def controller_uri(self) -> str:
        """host:port of a controller that knows the streams of the trace; the first access starts it."""
        return self._do(ServedTrace.controller_uri)

    @property
    def problems(self) -> list[Problem]:
        """The requests that the trace did not answer, oldest first."""
        return self._do(ServedTrace.problems)

    def unused(self) -> Counter[str]:
        """The requests of the trace that no client has made so far, counted by command."""
        return self._do(ServedTrace.unused)
