"""The servers of `segstore.testing.servers`, and the operations on them that run on their loop, in either process.

Operations take the server as their first argument, so they can be sent to another process by name; results can be sent
back.
"""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from segstore import __version__
from segstore.server.cluster import MockCluster
from segstore.server.config import names_there, settings_of
from segstore.server.controller.api import Accounts, Authority
from segstore.server.faults import FaultSettings, Seen, StageName, line_of
from segstore.server.node import WithSnapshots
from segstore.server.replay import Problem, TraceServer, of_clients
from segstore.server.store import NoSuchSegment, NotOwner, SegmentStore
from segstore.testing.hosts import ThreadHost
from segstore.traces import Recording, TraceFile
from segstore.wire import WIRE_VERSION
from segstore.wire.blocks import split_events
from segstore.wire.names import container_of, is_index
from segstore.wire.printable import printable
from segstore.wire.trace import Metadata, Record, TraceError

if TYPE_CHECKING:
    from segstore.server.faults import WithFaults
    from segstore.tap import Tap

__tracebackhide__ = True  # pytest shows the caller's line and the failure, not the frames between

_MOST_LINES: Final = 20
"""Maximum number of lines in a part of a report."""
_LONGEST: Final = 300
_LET_GO: Final = "this server was stopped, and its stores released their segments: read them before stop()"


class Served(MockCluster):
    """A cluster of a test, whose controller is started when it is needed, and its recording."""

    def __init__(self, thread: ThreadHost, /, stores: int, **settings: Any) -> None:
        super().__init__(stores, **settings)
        self._thread = thread
        self.recording: Recording | None = None
        """It is closed when the cluster is stopped."""
        self._stopped = False

    async def stop(self, *, drain_s: float = 1.0) -> None:
        """Closes all connections and the recording. Raises OSError if it could not be written. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        try:
            await super().stop(drain_s=drain_s)
        finally:
            if self.recording is not None:
                self.recording.close()

    # --- where it is ------------------------------------------------------------------------------------------------

    def addresses(self) -> list[tuple[str, int]]:
        return [store.address for store in self.stores if store.address is not None]

    def admin_port(self) -> int:
        address = self.stores[0].admin_address
        if address is None:
            raise RuntimeError("no admin port is served: give admin_port=0")
        return address[1]

    async def uri(self, name: str) -> str:
        """The controller's address, or the address of an API that asks it."""
        await self.start_controller()
        uri: str = getattr(self, name)
        return uri

    async def start_controller(self) -> None:
        """Starts the controller, if it does not run. Raises RuntimeError if it never ran and the stores are stopped."""
        if self._stopped and self.controller_address is None:
            raise RuntimeError("this server was stopped, and its controller had not been started")
        if not self._stopped:
            await _hold_grpc(self._thread)
            await super().start_controller()

    async def contents(self, method: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a method of the cluster. Starts the controller, if it does not run; a snapshot needs no controller."""
        if not hasattr(WithSnapshots, method):
            await self.start_controller()
        return await getattr(self, method)(*given, **named)

    # --- what it holds ----------------------------------------------------------------------------------------------

    def segments(self, with_indexes: bool) -> list[str]:
        containers = [container for store in self.stores for container in store.store.containers.values()]
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

    async def events(self, stream: str) -> list[bytes]:
        """The events of a segment, or of a stream if there is no such segment. Raises NoSuchSegment, ValueError."""
        if stream.count("/") == 1 and stream not in self.segments(with_indexes=False):
            await self.start_controller()
            return await super().events(stream)
        data, events = self.read(stream), list[bytes]()
        end = split_events(data, 0, len(data), 0, lambda event, *_: event, None, events)
        if end < len(data):
            raise ValueError(f"{stream} holds no event at byte {end} of the {len(data)} that it has")
        return events

    def cut(self) -> int:
        return sum(store.hub.cut() for store in self.stores)

    def report(self) -> str:
        pairs = ((connection, store.number) for store in self.stores for connection in store.hub.connections)
        lines = []
        for connection, store in sorted(pairs, key=lambda pair: pair[0].number or 0):
            where = f"connection {connection.number or ''} from {connection.session.peer} to store {store}"
            lines.append(f"{where}: {connection.bytes_in} bytes in, {connection.bytes_out} bytes out")
        return _report(self, lines)

    def _owner(self, segment: str) -> SegmentStore:
        container = container_of(segment, self.settings.store.containers)
        for store in self.stores:
            if container in store.store.containers:
                return store.store
        if self._stopped:
            raise RuntimeError(_LET_GO)
        raise NotOwner(segment, container=container)


async def start_cluster(
    host: ThreadHost,
    /,
    *,
    stores: int = 1,
    users: Iterable[str] | None = None,
    record: Path | str | None = None,
    record_tokens: bool = False,
    record_values: Mapping[str, str] | None = None,
    **settings: Any,
) -> Served:
    """As `segstore.testing.servers.Servers.serve`."""
    accounts = None if users is None else Accounts(users, strict=True)
    settings.setdefault("authority", Authority(accounts, settings.get("auth_key"), now_s=time.time))
    cluster = Served(host, stores, **settings)
    if record is not None:
        metadata = Metadata(WIRE_VERSION, f"segstore {__version__} test", dict(record_values or {}))
        cluster.recording = Recording(Path(record), metadata, record_tokens=record_tokens)
        cluster.record(cluster.recording.recorder)
    await cluster.start(with_controller=False)
    return cluster


async def start_tap(host: ThreadHost, /, controller: str | None, store: str | None, **options: Any) -> Tap:
    """As `segstore.testing.servers.Servers.tap`."""
    if controller is not None:
        await _hold_grpc(host)
    from segstore.tap import Tap  # imports the client

    tap = Tap(controller, store, **options)
    await tap.start()
    return tap


async def addresses_of_tap(tap: Tap) -> list[tuple[str, int]]:
    """Asks the controller if the tap knows of no store yet."""
    if not tap.addresses:
        await tap.ask_for_store()
    return [(host, port) for host, port in tap.addresses.values()]


def report_of_tap(tap: Tap) -> str:
    links = sorted(tap.links, key=lambda link: link.number or 0)
    return _report(tap, [f"connection {link.number or ''} from {link.peer}" for link in links])


# --- requests and faults of a cluster or a tap; results belong to the caller ------------------------------------------


def listed(server: object, path: str) -> list[Any]:
    """A copy of a list, or the keys of a mapping, that is an attribute of a server."""
    return list(attrgetter(path)(server))


def requests(server: WithFaults, match: str, stage: StageName) -> list[Seen]:
    return [copy.copy(request) for request in server.requests(match, stage)]


async def wait_for(server: WithFaults, match: str, count: int, stage: StageName, timeout_s: float, since: int) -> Seen:
    return copy.copy(await server.wait_for(match, count=count, stage=stage, timeout_s=timeout_s, since=since))


def faults(server: WithFaults, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Calls a method of the faults, such as `add` or `toxics.clear`."""
    return attrgetter(name)(server.faults)(*given, **named)


def set_round_trip_ms(server: WithFaults, round_trip_ms: float | Mapping[int, float]) -> None:
    server.faults.round_trip_ms = round_trip_ms


def set_seed(server: WithFaults, seed: int) -> None:
    server.faults.seed = settings_of(FaultSettings, {"seed": seed}).seed


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


class ServedTrace(TraceServer):
    """A trace server of a test, whose controller is started when it is needed."""

    def __init__(self, thread: ThreadHost, records: list[Record], /, **options: Any) -> None:
        # A recorded controller's requests are left out; the controller here sends none to the store.
        super().__init__(of_clients(records), **options)
        self._thread = thread
        self._records = records
        self._controller_uri = ""

    async def controller_uri(self) -> str:
        """Starts the controller, if it does not run."""
        if not self._controller_uri:
            await _hold_grpc(self._thread)
            self._controller_uri = str(await self.start_controller(self._records))
        return self._controller_uri


async def start_trace(
    host: ThreadHost, /, *, trace: Path | Iterable[Record], announce: tuple[int, str] | None, **options: Any
) -> ServedTrace:
    """Starts a server that answers from a trace, which is a file or its records.

    announce: a file descriptor to which the first problem is written when it happens, and its title. Raises OSError,
    TraceError, also for a damaged file.
    """
    if announce is not None:
        options["tell"] = _Announcement(*announce, only_refusals=options.get("missing") == "pass")
    if isinstance(trace, Path):
        with TraceFile(trace) as opened:
            records = list(opened.records())
        if opened.damages:
            raise TraceError(f"{trace}: {opened.damages[0]}")
        trace = records
    server = ServedTrace(host, list(trace), **options)
    await server.start()
    return server


# --- reports of failed tests: the state of a server as text -----------------------------------------------------------


def _report(server: WithFaults, connections: Sequence[str]) -> str:
    """The report about stores or a tap. Controller calls are among the requests. connections: one per line."""
    return _text([*_watched(server), _part("open connections", connections)])


def report_of_trace(server: TraceServer) -> str:
    """The report about a trace that answers clients."""
    parts = [_part("requests", list(map(str, server.recent)), server.requests)]
    if left_out := server.left_out_calls:
        parts.append(_part("records of controller calls left out", list(map(str, left_out))))
    problems = list(map(str, server.problems[-_MOST_LINES:]))
    parts.append(_part("problems", problems, len(server.problems)))
    parts.append(_part("open connections", [f"connection {number}" for number in server.open_connections]))
    return _text(parts)


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
