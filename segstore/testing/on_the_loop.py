"""The operations of `segstore.testing.servers` that run on the server's loop, in either process.

Each takes the server as its first argument, so it can be sent to another process by name; results can be sent back.
"""

from __future__ import annotations

import copy
import gc
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from segstore import __version__
from segstore.server.cluster import MockCluster
from segstore.server.config import names_there, settings_of
from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import Accounts, Authority
from segstore.server.faults import Decision, FaultSettings, Seen, StageName, line_of
from segstore.server.node import WithSnapshots
from segstore.server.recording import together
from segstore.server.replay import Problem, TraceServer, of_clients
from segstore.server.store import NoSuchSegment, NotOwner, SegmentStore
from segstore.testing.hosts import ThreadHost
from segstore.traces import STANDARD_OUTPUT, Recording, TraceFile, check_suffix
from segstore.wire import WIRE_VERSION
from segstore.wire.blocks import split_events
from segstore.wire.names import container_of, is_index
from segstore.wire.printable import printable
from segstore.wire.trace import Metadata, Record, TraceError

if TYPE_CHECKING:
    from segstore.server.faults import WithFaults
    from segstore.tap import Tap

__tracebackhide__ = True  # pytest shows the caller's line and the failure, not the frames between

T = TypeVar("T")

_MOST_LINES: Final = 20
"""Maximum number of lines in a part of a report."""
_LONGEST: Final = 300
_LET_GO: Final = "this server was stopped, and its stores released their segments: read them before stop()"


class Watched(ABC):
    """A server that records requests and has faults: a cluster or a tap."""

    observed: MockCluster | Tap

    @abstractmethod
    def cut(self) -> int: ...

    @abstractmethod
    def connections(self) -> Iterable[str]:
        """The open connections, one per line, in the order in which they were opened."""

    def report(self) -> str:
        return report_of(self.observed, self.connections())

    def requests(self, match: str, stage: StageName) -> list[Seen]:
        return [copy.copy(request) for request in self.observed.requests(match, stage)]

    def mark(self) -> int:
        return self.observed.mark()

    async def wait_for(self, match: str, count: int, stage: StageName, timeout_s: float, since: int) -> Seen:
        seen = await self.observed.wait_for(match, count=count, stage=stage, timeout_s=timeout_s, since=since)
        return copy.copy(seen)

    def faults(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a method of the faults, such as `add` or `toxics.clear`."""
        return attrgetter(name)(self.observed.faults)(*given, **named)

    def rules(self) -> list[str]:
        return list(self.observed.faults.rules)

    def decisions(self) -> list[Decision]:
        return list(self.observed.faults.decisions)

    def round_trip_ms(self) -> float | Mapping[int, float]:
        return self.observed.faults.round_trip_ms

    def set_round_trip_ms(self, round_trip_ms: float | Mapping[int, float]) -> None:
        self.observed.faults.round_trip_ms = round_trip_ms

    def seed(self) -> int:
        return self.observed.faults.seed

    def set_seed(self, seed: int) -> None:
        self.observed.faults.seed = settings_of(FaultSettings, {"seed": seed}).seed


class Served(Watched):
    """A cluster served for a test, and its recorder. Made by `start`."""

    def __init__(self, host: ThreadHost, cluster: MockCluster, recording: Recording | None) -> None:
        self.observed = self.cluster = cluster
        self._host = host
        self._recording = recording
        self._stopped = False

    @classmethod
    async def start(
        cls,
        host: ThreadHost,
        /,
        *,
        stores: int = 1,
        controller: ControllerConfig | Mapping[str, Any] | None = None,
        users: Iterable[str] | None = None,
        faults: FaultSettings | Path | str | None = None,
        record: Path | str | None = None,
        record_tokens: bool = False,
        record_values: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Served:
        """As `segstore.testing.servers.ServerThread.serve`."""
        accounts = None if users is None else Accounts(users, strict=True)
        settings.setdefault("authority", Authority(accounts, settings.get("auth_key"), now_s=time.time))
        if isinstance(controller, Mapping):
            controller = settings_of(ControllerConfig, controller)
        cluster = MockCluster(stores, controller=controller, faults=faults, **settings)
        recording = None
        if record is not None:
            recording = Recording(
                STANDARD_OUTPUT if str(record) == "-" else check_suffix(record),
                Metadata(WIRE_VERSION, f"segstore {__version__} test", dict(record_values or {})),
                record_tokens=record_tokens,
            )
            both = together(cluster.stores[0].hub.recorder, recording.recorder)
            for store in cluster.stores:
                store.hub.recorder = both
        try:
            await cluster.start(with_controller=False)
        except BaseException:
            if recording is not None:
                recording.close()
            raise
        return cls(host, cluster, recording)

    async def stop(self) -> None:
        """Closes all connections and the recording. Raises OSError if it could not be written. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        try:
            await self.cluster.stop()
        finally:
            if self._recording is not None:
                self._recording.close()

    # --- where it is ------------------------------------------------------------------------------------------------

    def addresses(self) -> list[tuple[str, int]]:
        return [store.address for store in self.cluster.stores if store.address is not None]

    def admin_port(self) -> int:
        address = self.cluster.stores[0].admin_address
        if address is None:
            raise RuntimeError("no admin port is served: give admin_port=0")
        return address[1]

    async def http_url(self) -> str:
        """Starts the controller, if it does not run: the control API creates and lists streams."""
        if not self._stopped:
            await self.controller_uri()
        return self.cluster.http_url

    async def rest_url(self) -> str:
        """Starts the controller, if it does not run."""
        await self.controller_uri()
        return self.cluster.rest_url

    async def controller_uri(self) -> str:
        """Starts the controller, if it does not run. Raises RuntimeError if it never ran and the stores are stopped."""
        if self._stopped and self.cluster.controller_address is None:
            raise RuntimeError("this server was stopped, and its controller had not been started")
        if not self._stopped:
            await _hold_grpc(self._host)
            await self.cluster.start_controller()
        return self.cluster.controller_uri

    async def contents(self, method: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a method of the cluster. Starts the controller, if it does not run; a snapshot needs none."""
        if not hasattr(WithSnapshots, method):
            await self.controller_uri()
        return await getattr(self.cluster, method)(*given, **named)

    # --- what it holds ----------------------------------------------------------------------------------------------

    def call(self, function: Callable[[MockCluster], T]) -> T:
        return function(self.cluster)

    async def run(self, function: Callable[[MockCluster], Coroutine[Any, Any, T]]) -> T:
        return await function(self.cluster)

    def segments(self, with_indexes: bool) -> list[str]:
        containers = [container for store in self.cluster.stores for container in store.store.containers.values()]
        if self._stopped and not containers:
            raise RuntimeError(_LET_GO)
        names = (name for container in containers for name in container.segments)
        return sorted(name for name in names if with_indexes or not is_index(name))

    def read(self, segment: str) -> bytes:
        """All bytes from the start offset. Raises NoSuchSegment, which names segments that exist."""
        store = self._owner(segment)
        try:
            info = store.segment_info(segment)
        except NoSuchSegment as error:
            error.args = (f"{error}; {names_there(self.segments(with_indexes=False), 'segments')}",)
            raise
        return store.segment(segment).read_bytes(info.start_offset, info.length - info.start_offset)

    async def events(self, name: str) -> list[bytes]:
        """The events of a segment, or of a stream if there is no such segment. Raises NoSuchSegment, ValueError."""
        if name.count("/") == 1 and name not in self.segments(with_indexes=False):
            events: list[bytes] = await self.contents("events", (name,), {})
            return events
        return self._events(name)

    def _events(self, segment: str) -> list[bytes]:
        data = self.read(segment)
        events: list[bytes] = []
        end = split_events(data, 0, len(data), 0, lambda event, *_: event, None, events)
        if end < len(data):
            raise ValueError(f"{segment} holds no event at byte {end} of the {len(data)} that it has")
        return events

    def cut(self) -> int:
        connections = [connection for store in self.cluster.stores for connection in store.hub.connections]
        for connection in connections:
            connection.abort()
        return len(connections)

    def connections(self) -> Iterable[str]:
        found = ((connection, store.number) for store in self.cluster.stores for connection in store.hub.connections)
        for each, store in sorted(found, key=lambda one: one[0].number or 0):
            where = f"connection {each.number or ''} from {each.session.peer} to store {store}"
            yield f"{where}: {each.bytes_in} bytes in, {each.bytes_out} bytes out"

    def _owner(self, segment: str) -> SegmentStore:
        container = container_of(segment, self.cluster.settings.store.containers)
        for store in self.cluster.stores:
            if container in store.store.containers:
                return store.store
        if self._stopped:
            raise RuntimeError(_LET_GO)
        raise NotOwner(segment, container=container)


class ServedTap(Watched):
    """A tap for a test. Made by `start`."""

    def __init__(self, tap: Tap) -> None:
        self.observed = self.tap = tap

    @classmethod
    async def start(cls, host: ThreadHost, /, controller: str | None, store: str | None, **options: Any) -> ServedTap:
        """As `segstore.testing.servers.ServerThread.tap`."""
        if controller is not None:
            await _hold_grpc(host)
        from segstore.tap import Tap  # imports the client

        tap = Tap(controller, store, **options)
        await tap.start()
        return cls(tap)

    async def stop(self) -> None:
        """Stops the tap. Raises OSError if the recording could not be written. May be called twice."""
        await self.tap.stop(drain_s=1.0)

    async def addresses(self) -> list[tuple[str, int]]:
        """Asks the controller if the tap knows of no store yet."""
        if not self.tap.addresses:
            await self.tap.ask_for_store()
        return [(host, port) for host, port in self.tap.addresses.values()]

    def controller_uri(self) -> str:
        return self.tap.controller_uri

    def http_url(self) -> str:
        return self.tap.http_url

    def cut(self) -> int:
        return self.tap.cut()

    def connections(self) -> Iterable[str]:
        links = sorted(self.tap.links, key=lambda link: link.number or 0)
        return [f"connection {link.number or ''} from {link.peer}" for link in links]


async def _hold_grpc(host: ThreadHost) -> None:
    """Keeps gRPC's thread and sockets until the host stops; otherwise each controller would recreate them."""
    from grpc import aio

    async def let_go() -> None:
        gc.collect()  # gRPC servers are in reference cycles, and each holds the runtime
        aio.shutdown_grpc_aio()  # type: ignore[attr-defined]  # the stubs have not heard of it

    if "grpc" not in host.at_end:
        aio.init_grpc_aio()  # type: ignore[attr-defined]  # the stubs have not heard of it
        host.at_end["grpc"] = let_go


class _Announcement:
    """Writes the first problem to a file descriptor at once: the test's process may be blocked in native code."""

    def __init__(self, descriptor: int, title: str, *, only_refusals: bool) -> None:
        self._descriptor = descriptor
        self._title = title
        self._only_refusals = only_refusals
        self._done = False

    def __call__(self, problem: Problem) -> None:
        if not self._done and (problem.refusal or not self._only_refusals):
            self._done = True
            with suppress(OSError):  # the terminal is gone
                os.write(self._descriptor, f"\n{self._title}: {problem}\n".encode(errors="replace"))


class ServedTrace:
    """A trace server of a test. Made by `start`."""

    def __init__(self, host: ThreadHost, server: TraceServer, records: list[Record]) -> None:
        self.server = server
        self._host = host
        self._records = records
        self._controller = ""

    @classmethod
    async def start(
        cls, host: ThreadHost, /, *, trace: Path | Iterable[Record], announce: tuple[int, str] | None, **options: Any
    ) -> ServedTrace:
        """trace: a file, or its records. announce: a file descriptor to which the first problem is written when it
        happens, and its title. Raises OSError, TraceError, also for a damaged file.
        """
        if announce is not None:
            options["tell"] = _Announcement(*announce, only_refusals=options.get("missing") == "pass")
        if isinstance(trace, Path):
            with TraceFile(trace) as opened:
                records = list(opened.records())
            if opened.damages:
                raise TraceError(f"{trace}: {opened.damages[0]}")
            trace = records
        records = list(trace)
        # A recorded controller's requests are left out; the controller here sends none to the store.
        self = cls(host, TraceServer(of_clients(records), **options), records)
        await self.server.start()
        return self

    async def stop(self) -> None:
        await self.server.stop()

    async def controller_uri(self) -> str:
        """Starts the controller, if it does not run."""
        if not self._controller:
            await _hold_grpc(self._host)
            self._controller = str(await self.server.start_controller(self._records))
        return self._controller

    def address(self) -> tuple[str, int]:
        return self.server.host, self.server.port

    def report(self) -> str:
        return report_of_trace(self.server)

    def failure(self) -> str:
        return self.server.failure

    async def wait_failed(self) -> str:
        return await self.server.wait_failed()

    def problems(self) -> list[Problem]:
        return list(self.server.problems)

    def unused(self) -> Counter[str]:
        return self.server.unused()

    def missed(self, most: int) -> list[str]:
        return self.server.missed(most)


# --- reports of failed tests: the state of a server as text -----------------------------------------------------------


def report_of(server: WithFaults, connections: Iterable[str]) -> str:
    """The report about stores or a tap. Controller calls are among the requests. connections: one per line."""
    return _text([*_watched(server), _part("open connections", list(connections))])


def report_of_trace(server: TraceServer) -> str:
    """The report about a trace that answers clients."""
    requests = [str(request) for request in server.recent]
    problems = list(map(str, server.problems[-_MOST_LINES:]))
    left_out = list(map(str, server.left_out_calls[-_MOST_LINES:]))
    return _text(
        [
            _part("requests", requests, server.requests),
            *(
                [_part("records of controller calls left out", left_out, len(server.left_out_calls))]
                if left_out
                else ()
            ),
            _part("problems", problems, len(server.problems)),
            _part("open connections", [f"connection {number}" for number in server.open_connections]),
        ]
    )


def _watched(server: WithFaults) -> Iterator[tuple[str, Sequence[str]]]:
    observer, faults = server.observer, server.rules
    if observer is not None:
        requests = [line_of(line) for line in islice(observer.newest_first(), _MOST_LINES)]
        yield _part("requests", requests[::-1], observer.mark())
    if faults is not None and (tallies := faults.tallies()):
        counts = [f"{tally.name}: matched {tally.matched}, fired {tally.fired}" for tally in tallies[-_MOST_LINES:]]
        yield _part("fault rules", counts, len(tallies))
        yield _part("decisions", [str(decision) for decision in faults.decisions[-_MOST_LINES:]], len(faults.decisions))


def _part(title: str, lines: Sequence[str], total: int | None = None) -> tuple[str, Sequence[str]]:
    total = len(lines) if total is None else total
    shown = lines[-_MOST_LINES:]
    return f"{title} ({f'last {len(shown)} of ' if len(shown) < total else ''}{total})", shown


def _text(parts: Iterable[tuple[str, Sequence[str]]]) -> str:
    lines_of_all: list[str] = []
    for title, lines in parts:
        lines_of_all.append(title + (":" if lines else ""))
        lines_of_all += [f"  {printable(line, _LONGEST)}" for text in lines for line in text.splitlines()]
    return "\n".join(lines_of_all)
