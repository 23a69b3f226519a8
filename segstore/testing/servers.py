"""Mock stores for synchronous or async tests: servers in a thread or a process of their own.

    with ServerThread() as servers:
        server = servers.serve(stores=2)
        client = connect(server.host, server.port)
        server.wait_for("type = APPEND_BLOCK_END", count=3)
        assert server.events("scope/stream") == [b"a", b"b", b"c"]

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
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from segstore.server.cluster import MockCluster, MockClusterOptions
from segstore.server.config import unknown_name
from segstore.server.faults import Decision, Faults, Function, RuleOptions, Seen, StageName, check_wait, fault_decorator
from segstore.server.replay import Problem, TraceOptions
from segstore.server.toxics import Toxics
from segstore.testing import on_the_loop
from segstore.testing.hosts import PATIENCE_S, Host, ProcessHost, ThreadHost
from segstore.testing.on_the_loop import Served, ServedTrace
from segstore.wire.trace import Record

if TYPE_CHECKING:
    from segstore.tap import TapOptions

__tracebackhide__ = True  # pytest shows the caller's line and the failure, not the frames between

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Function)


class ServerOptions(MockClusterOptions, total=False):
    """The keyword arguments of `Servers.serve`: for `MockCluster`, users, and a recording."""

    stores: int
    users: Iterable[str] | None
    record: Path | str | None
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


class Servers(Host):
    """A host of servers: `ServerThread` or `ServerProcess`."""

    def serve(self, **settings: Unpack[ServerOptions]) -> RunningServer:
        """Starts one or more stores on free ports.

        controller: the settings of the controller. users: lines of a password file for it. faults: a fault file or its
        content. record: a new file for the stores' traffic, with `record_values` in its header; record_tokens: whether
        it contains delegation tokens. Other settings are as in `MockCluster`. With `auth_key` the controller issues
        tokens that the stores accept. Raises ValueError for an invalid or unknown setting, FaultFileError, OSError.
        """
        key = self.create(on_the_loop.start_cluster, **settings)
        return RunningServer(self, key, watched=settings.get("watched", True))

    def replay(
        self,
        trace: Path | str | Iterable[Record],
        *,
        announce: tuple[int, str] | None = None,
        **options: Unpack[TraceOptions],
    ) -> RunningTrace:
        """Starts a server that answers from a trace, a file or records; options are as for `TraceServer`.

        announce: a file descriptor to which the first problem is written when it happens, and a title for it; a process
        needs it in `shared`.
        Raises OSError, TraceError, ValueError, also for an option that does not exist.
        """
        if unknown := [name for name in options if name not in TraceOptions.__annotations__]:
            raise ValueError(f"{unknown[0]}: {unknown_name('option', unknown[0], TraceOptions.__annotations__)}")
        opened = Path(trace) if isinstance(trace, str | Path) else list(trace)
        key = self.create(on_the_loop.start_trace, trace=opened, announce=announce, **options)
        return RunningTrace(self, key)

    def tap(self, controller: str | None = None, store: str | None = None, **options: Unpack[TapOptions]) -> RunningTap:
        """Starts a tap before a controller, a store or a cluster; options are as for `segstore.tap.Tap`.

        Raises ValueError for invalid options, FaultFileError, OSError.
        """
        key = self.create(on_the_loop.start_tap, controller=controller, store=store, **options)
        return RunningTap(self, key, watched=options.get("watched", True))


class ServerThread(ThreadHost, Servers):
    """Servers in a thread of this process."""


class ServerProcess(ProcessHost, Servers):
    """Servers in a process of their own, started with the first server."""


class _Hosted(ABC):
    """A server in a thread or a process of its own."""

    _stop = methodcaller("stop")

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

    def _check_runs(self) -> None:
        """Raises RuntimeError if the server was stopped."""
        if self._stopped:
            raise RuntimeError("this server was stopped")

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]: ...

    @property
    def host(self) -> str:
        return self.address[0]

    @property
    def port(self) -> int:
        return self.address[1]

    @abstractmethod
    def report(self) -> str:
        """The last requests, the decisions of fault rules and the open connections, as text."""

    def stop(self) -> None:
        """Closes all connections and stops listening. May be called twice.

        The recording and the data of a single store stay readable; calls that need a running server raise RuntimeError.
        Raises FaultFunctionError if a function of a fault rule has failed.
        """
        try:
            self._do(self._stop)
        finally:
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

    def fault(self, match: str = "", **rest: Unpack[RuleOptions]) -> Callable[[F], F]:
        """As `WithFaults.fault`: decorates a function to decide about the requests that match.

        The function runs on the servers' thread; in a process of their own, it must be in a module.
        """
        return fault_decorator(self.faults.add, match, rest)

    @property
    @abstractmethod
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each store."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first store. Raises LookupError for a tap whose controller names no store."""
        addresses = self.addresses
        if not addresses:
            raise LookupError("the tap knows of no store: its controller names none without credentials")
        return addresses[0]

    def cut(self) -> int:
        """Breaks all connections at once, as a failing network does; returns their number."""
        number: int = self._do(methodcaller("cut"))
        return number

    # --- requests ---------------------------------------------------------------------------------------------------

    def requests(self, match: str = "", stage: StageName = "received") -> list[Seen]:
        """The requests that match a filter and have reached a stage, oldest first. Raises FilterError."""
        return self._do(on_the_loop.requests, match, stage)

    def mark(self) -> int:
        """The number of the last request: `wait_for(since=…)` counts later ones."""
        number: int = self._do(methodcaller("mark"))
        return number

    def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """Waits until `count` matching requests have reached a stage; returns the last of them.

        Raises NotSeen, FilterError; WouldBlock in a coroutine; RuntimeError if the server was stopped.
        """
        self._check_runs()
        WouldBlock.check("wait_for", "server.aio.wait_for(…)")
        check_wait(count, timeout_s, since)
        given = match, count, stage, timeout_s, since
        return self._do(on_the_loop.wait_for, *given, timeout_s=timeout_s + PATIENCE_S)


def _there(
    method: Callable[Concatenate[MockCluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RunningServer, P], T]:
    """The synchronous form of a method of the cluster, which runs where the server does."""
    name = method.__name__

    @wraps(method)
    def call(self: RunningServer, /, *given: P.args, **named: P.kwargs) -> T:
        self._check_runs()
        result: T = self._do(Served.contents, name, given, named)
        return result

    return call


def _call(cluster: MockCluster, function: Callable[[MockCluster], T]) -> T:
    return function(cluster)


class RunningServer(Running):
    """One or more mock stores with a controller. Made by `Servers.serve`.

    Attributes: as of `Running`, and aio: waits for coroutines.
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
    def rest_url(self) -> str:
        """http://host:port of the controller's REST API, if the setting `rest_port` is given, such as 0."""
        return self._do(Served.uri, "rest_url")

    @property
    def http_url(self) -> str:
        """http://host:port of the control API, if the setting `http_port` is given, such as 0."""
        return self._do(Served.uri, "http_url")

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, which the first access starts. Raises RuntimeError if it comes after `stop`."""
        return self._do(Served.uri, "controller_uri")

    def report(self) -> str:
        return self._do(Served.report)

    snapshot = _there(MockCluster.snapshot)
    restore = _there(MockCluster.restore)
    reset = _there(MockCluster.reset)

    # --- what it holds ----------------------------------------------------------------------------------------------

    def call(self, function: Callable[[MockCluster], T]) -> T:
        """Runs a function where the server is; returns its result. Raises InAnotherProcess if it cannot be sent.

        length = server.call(lambda cluster: cluster.stores[0].store.segment_info(name).length)
        """
        result: T = self._do(_call, function)
        return result

    def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]], timeout_s: float = PATIENCE_S) -> T:
        """Runs a coroutine function where the server is; returns its result. Raises TimeoutError."""
        WouldBlock.check("run", "server.aio.run(…)")
        result: T = self._do(_call, function, timeout_s=timeout_s)
        return result

    def segments(self, *, with_indexes: bool = False) -> list[str]:
        """The names of all segments, sorted. with_indexes: include index segments."""
        return self._do(Served.segments, with_indexes)

    def read(self, segment: str) -> bytes:
        """All that a segment holds, from its start offset. Raises NoSuchSegment."""
        return self._do(Served.read, segment)

    def events(self, name: str) -> list[bytes]:
        """The events of a stream, SCOPE/STREAM, or of a segment; events of one routing key are in order.

        Raises ControllerError for an unknown stream, NoSuchSegment; ValueError, with the offset, for other bytes.
        """
        return self._do(Served.events, name)

    scopes = _there(MockCluster.scopes)
    streams = _there(MockCluster.streams)
    stream = _there(MockCluster.stream)
    stream_segments = _there(MockCluster.stream_segments)
    create_stream = _there(MockCluster.create_stream)
    seal_stream = _there(MockCluster.seal_stream)
    scale_stream = _there(MockCluster.scale_stream)
    truncate_stream = _there(MockCluster.truncate_stream)
    delete_stream = _there(MockCluster.delete_stream)
    write_events = _there(MockCluster.write_events)
    transactions = _there(MockCluster.transactions)
    transaction = _there(MockCluster.transaction)
    begin_transaction = _there(MockCluster.begin_transaction)
    commit_transaction = _there(MockCluster.commit_transaction)
    abort_transaction = _there(MockCluster.abort_transaction)
    groups = _there(MockCluster.groups)
    group = _there(MockCluster.group)
    tables = _there(MockCluster.tables)
    table = _there(MockCluster.table)
    create_table = _there(MockCluster.create_table)
    delete_table = _there(MockCluster.delete_table)
    entries = _there(MockCluster.entries)
    write_entries = _there(MockCluster.write_entries)
    remove_entry = _there(MockCluster.remove_entry)


class RunningTap(Running):
    """A tap before a Pravega. Made by `Servers.tap`. Attributes: as of `Running`, and aio: waits for coroutines."""

    _stop = methodcaller("stop", drain_s=1.0)

    def __init__(self, host: Servers, key: int, *, watched: bool = True) -> None:
        super().__init__(host, key, watched=watched)
        self.aio = Waits(self)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of the tap's port for each store that it knows of."""
        return self._do(on_the_loop.addresses_of_tap)

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, through the tap."""
        uri: str = self._do(attrgetter("controller_uri"))
        return uri

    @property
    def http_url(self) -> str:
        """http://host:port of the control API, if the option `http_port` is given, such as 0."""
        url: str = self._do(attrgetter("http_url"))
        return url

    def report(self) -> str:
        return self._do(on_the_loop.report_of_tap)


class Waits:
    """The waits of a server, as awaitables of the caller's loop."""

    def __init__(self, server: Running) -> None:
        self._server = server

    async def wait_for(
        self, match: str = "", *, count: int = 1, stage: StageName = "applied", timeout_s: float = 5.0, since: int = 0
    ) -> Seen:
        """As `Running.wait_for`."""
        self._server._check_runs()
        return await self._await(on_the_loop.wait_for, match, count, stage, timeout_s, since)

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """As `RunningFaults.wait_held`."""
        self._server._check_runs()
        await self._await(on_the_loop.faults, "wait_held", (name, count, timeout_s), {})

    async def _await(self, function: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
        result: T = await asyncio.wrap_future(self._server._host.submit(function, self._server._key, *given))
        return result


class AsyncView(Waits):
    """The waits of a `RunningServer`."""

    async def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]]) -> T:
        """As `RunningServer.run`."""
        result: T = await self._await(_call, function)
        return result


def _of_faults(
    method: Callable[Concatenate[Any, P], T], *, of: str = "", when_stopped: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """A method of `Faults`, or of its attribute `of`, which runs where the server does.

    when_stopped: whether it may be called when the server was stopped.
    """
    name = f"{of}{method.__name__}"

    @wraps(method)
    def call(self: RunningFaults | RunningToxics, /, *given: P.args, **named: P.kwargs) -> T:
        if not when_stopped:
            self._server._check_runs()
        result: T = self._server._do(on_the_loop.faults, name, given, named)
        return result

    return call


class RunningFaults:
    """The `Faults` of a running server: the same calls, executed where it runs. toxics: its toxics."""

    __slots__ = ("_server", "toxics")  # so that a misspelt attribute is not set here without effect

    def __init__(self, server: Running) -> None:
        self._server = server
        self.toxics = RunningToxics(server)

    add = _of_faults(Faults.add)
    load = _of_faults(Faults.load)
    clear = _of_faults(Faults.clear, when_stopped=True)
    release = _of_faults(Faults.release, when_stopped=True)
    disable = _of_faults(Faults.disable)
    enable = _of_faults(Faults.enable)
    held = _of_faults(Faults.held, when_stopped=True)
    unmatched = _of_faults(Faults.unmatched, when_stopped=True)
    unmatched_report = _of_faults(Faults.unmatched_report, when_stopped=True)

    def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds `count` items. Raises TimeoutError; WouldBlock in a coroutine."""
        self._server._check_runs()
        WouldBlock.check("wait_held", "server.aio.wait_held(…)")
        check_wait(count, timeout_s)
        given = name, count, timeout_s
        self._server._do(on_the_loop.faults, "wait_held", given, {}, timeout_s=timeout_s + PATIENCE_S)

    @property
    def rules(self) -> list[str]:
        """The names of the rules."""
        return self._server._do(on_the_loop.listed, "faults.rules")

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of the rules, in order."""
        return self._server._do(on_the_loop.listed, "faults.decisions")

    @property
    def round_trip_ms(self) -> float | Mapping[int, float]:
        """The minimum delay of every reply: one number, or one for each store by its number."""
        round_trip_ms: float | Mapping[int, float] = self._server._do(attrgetter("faults.round_trip_ms"))
        return round_trip_ms

    @round_trip_ms.setter
    def round_trip_ms(self, round_trip_ms: float | Mapping[int, float]) -> None:
        self._server._check_runs()
        self._server._do(on_the_loop.set_round_trip_ms, round_trip_ms)

    @property
    def seed(self) -> int:
        """The seed of all random choices. Setting it raises ValueError for a value that is invalid in a fault file."""
        seed: int = self._server._do(attrgetter("faults.seed"))
        return seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._server._check_runs()
        self._server._do(on_the_loop.set_seed, seed)


class RunningToxics:
    """The `Toxics` of a running server: the same calls, executed where it runs."""

    __slots__ = ("_server",)

    def __init__(self, server: Running) -> None:
        self._server = server

    add = _of_faults(Toxics.add, of="toxics.")
    clear = _of_faults(Toxics.clear, of="toxics.", when_stopped=True)
    tallies = _of_faults(Toxics.tallies, of="toxics.", when_stopped=True)


class RunningTrace(_Hosted):
    """A trace that answers clients. Made by `Servers.replay`."""

    def __init__(self, host: Servers, key: int) -> None:
        super().__init__(host, key)
        self._address: tuple[str, int] = self._do(attrgetter("host", "port"))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def controller_uri(self) -> str:
        """host:port of a controller that answers the calls of the trace; the first access starts it.

        If the trace has no calls, it knows the streams that the trace names.
        """
        return self._do(ServedTrace.controller_uri)

    @property
    def problems(self) -> list[Problem]:
        """The requests that the trace did not answer, oldest first."""
        return self._do(on_the_loop.listed, "problems")

    def unused(self) -> Counter[str]:
        """The requests and calls of the trace that no client has made so far, counted by command and method."""
        return self._do(ServedTrace.unused)

    def report(self) -> str:
        return self._do(on_the_loop.report_of_trace)

    @property
    def failure(self) -> str:
        """Why the server has failed (`TraceServer`); "" if it has not."""
        failure: str = self._do(attrgetter("failure"))
        return failure

    def when_failed(self, tell: Callable[[str], object]) -> None:
        """Calls a function, in a thread of the host, with the reason when the server has failed (`TraceServer`)."""

        def done(waited: concurrent.futures.Future[str]) -> None:
            if not waited.cancelled() and waited.exception() is None and waited.result():
                tell(waited.result())

        self._host.submit(ServedTrace.wait_failed, self._key).add_done_callback(done)

    def missed(self, most: int = 10) -> list[str]:
        """The first of these requests, one per line: place in the trace, command and fields."""
        return self._do(ServedTrace.missed, most)
