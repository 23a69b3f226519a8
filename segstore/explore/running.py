"""One run of a client against a fresh cluster, with failures injected, recorded in memory.

Invariants: each run has a cluster of its own, on free ports; a client that hangs is cancelled, and its run counts; what
the run adds to the client's own time is the start and the stop of a cluster.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from segstore.explore.commands import CommandError
from segstore.explore.failures import Failure
from segstore.explore.options import Client, ExplorerSetting
from segstore.explore.points import Point, kind_of, points_of
from segstore.explore.world import TOKEN_LIFE_S, CannotChange, Change
from segstore.server.clock import LoopClock
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Authority
from segstore.server.faults import FaultFunctionError, NoSuchRule, line_of
from segstore.server.recording import TraceRecorder
from segstore.server.store import Segment
from segstore.server.toxics import NoSuchToxic
from segstore.wire.blocks import split_events
from segstore.wire.names import is_index, parent_of
from segstore.wire.trace import Metadata, Record, TraceWriter, make_mark, read_records

if TYPE_CHECKING:
    from segstore.server.faults import Seen

_A_DAY_S: Final = 86_400.0
_LOOK_S: Final = 0.002
_CLOSING_S: Final = 1.0
_OWNED_S: Final = 10.0
_MOST_WAITING: Final = 5
_PREPARED: Final = "prepared"
_TASK: Final = "segstore explore"
_BLOCK_BYTES: Final = 64 * 1024
"""Larger blocks take milliseconds to allocate, in each run."""


class _Time(LoopClock):
    """The time of a cluster, of which the part that tokens depend on can advance."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def wall_s(self) -> float:
        return time.time() + self.ahead_s


class ExploredCluster(MockCluster):
    """The cluster of a run: `host` and `port` are the address of its first store.

    stderr: The output of its client's command. back_s: store → the time when it was back after its last outage;
    infinite meanwhile. time: of its tokens.
    """

    def __init__(self, stores: int = 1, *, http_port: int | None = None, tokens: bool = False) -> None:
        self.time = _Time()
        self.stderr = ""
        self.back_s: dict[int, float] = {}
        key = str(uuid4()) if tokens else None
        authority = Authority(key=key, ttl_s=TOKEN_LIFE_S, now_s=self.time.wall_s) if tokens else None
        super().__init__(stores, http_port=http_port, authority=authority, clock=self.time, auth_key=key)

    @property
    def host(self) -> str:
        return self.stores[0].address.host if self.stores[0].address else ""

    @property
    def port(self) -> int:
        return self.stores[0].address.port if self.stores[0].address else 0

    @property
    def segments(self) -> dict[str, Segment]:
        """All segments of all stores by name, index segments included."""
        containers = (part for server in self.stores for part in server.store.containers.values())
        return {name: segment for container in containers for name, segment in container.segments.items()}

    def heal(self, toxic: str, store: int) -> None:
        """Ends an outage of a store: removes the toxic, if it is still there."""
        self.back_s[store] = self.time.now_s()
        with suppress(NoSuchToxic):
            self.faults.toxics.clear(toxic)

    def is_cut_off(self, requests: Sequence[Seen]) -> bool:
        """Whether the client has made no request to a store since its outage."""
        last_s = {seen.store: seen.received_s for seen in requests if seen.call is None}
        return any(last_s.get(store, 0.0) < back_s for store, back_s in self.back_s.items())


class NotPrepared(RuntimeError):
    """The preparation failed."""


class Injection(NamedTuple):
    """A failure at a point."""

    point: Point
    failure: Failure

    def __str__(self) -> str:
        return f"{self.failure.name} at {self.point}"

    @property
    def rule(self) -> dict[str, Any]:
        """The rule of a fault file that injects it, without a name; a change of the world holds the request."""
        nth = {"skip": self.point.nth - 1} if self.failure.is_lasting else {"nth": self.point.nth}
        return {"match": self.point.match, **nth, "do": "hold" if self.failure.change else self.failure.action}

    def add_to(self, mock: ExploredCluster) -> None:
        """Adds its rule to a cluster, and a rule for what happens to the request after a change."""
        mock.faults.add(**self.rule, name=str(self))
        if self.failure.change is not None and self.failure.action is not None:
            mock.faults.add(**self.rule | {"do": self.failure.action})

    async def change(self, mock: ExploredCluster, change: Change, impossible: dict[str, str]) -> None:
        """Changes the world once its request is held, and releases the request. impossible: injection → why not."""
        name = str(self)
        with suppress(NoSuchRule):
            await mock.faults.wait_held(name, timeout_s=_A_DAY_S)
            try:
                # The request of this run: names of transactions differ from run to run.
                request = mock.requests(self.point.match)[self.point.nth - 1]
                segment = next(iter(request.segments), "")
                if change.needs and kind_of(segment) not in change.needs:
                    raise CannotChange(f"in this run, the request is about another kind of segment: {kind_of(segment)}")
                rest = await change.make(mock, segment, request.store)
                mock.faults.release(name)
                if rest is not None:
                    await rest
            except asyncio.CancelledError:
                impossible[name] = "the client ended before the change was complete"
                raise
            except Exception as error:  # noqa: BLE001 — whatever it is, the failure did not happen
                impossible[name] = str(error) or type(error).__name__
            finally:  # also if the client ends first: a held request keeps its connection open
                mock.faults.release(name)


def by_rules(injections: Sequence[Injection]) -> list[Injection]:
    """Returns injections in the order of their rules: later points first.

    A request that one rule takes is not counted by the rules after it, which have fired by then.
    """
    return sorted(injections, key=lambda injection: -injection.point.nth)


@dataclass(slots=True)
class Run:
    """The outcome of a run.

    Args:
        segments: The events of each segment; tables, indexes and open transactions excepted.
        starts: The offset of the first event of each segment; above 0 if it was truncated.
        unframed: The segments whose contents are no events, such as those of byte streams.
        output: What the client has printed or returned as bytes; None for other clients.
        stderr: The standard error of a command.
        error: What the client has raised.
        is_hung: Whether it was cancelled.
        points: Its requests and calls; `chosen` are those at which failures may be injected.
        is_made: Whether all its failures happened.
        impossible: Injections that could not be made, and why.
        faulty: The connections at which an injection fired.
        is_cut_off: Whether the client has made no request to a store since its outage.
        waiting: The requests without a reply, for a client that hung.
        leaked: The number of connections that were open when the client was done.
        violation: What the user's check has found.
    """

    injections: tuple[Injection, ...]
    segments: dict[str, list[bytes]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    unframed: set[str] = field(default_factory=set)
    output: bytes | None = None
    stderr: str = ""
    error: BaseException | None = None
    is_hung: bool = False
    duration_s: float = 0.0
    records: Sequence[Record] = ()
    points: Sequence[Point] = ()
    chosen: Sequence[Point] = ()
    is_made: bool = False
    impossible: dict[str, str] = field(default_factory=dict)
    faulty: frozenset[int] = frozenset()
    is_cut_off: bool = False
    waiting: Sequence[str] = ()
    leaked: int = 0
    violation: str | None = None


def _cluster(setting: ExplorerSetting) -> ExploredCluster:
    return ExploredCluster(setting.stores, http_port=0 if setting.needs_http else None, tokens=setting.tokens)


async def prepared(setting: ExplorerSetting, prepare: Client) -> ExplorerSetting:
    """Runs the preparation once; returns the setting whose runs start with the state that it left."""
    mock = _cluster(setting)
    await mock.start()
    try:
        try:
            async with asyncio.timeout(setting.timeout_s):
                await prepare(mock)
        except (TimeoutError, RuntimeError, OSError, CommandError) as error:
            why = str(error) or f"it takes more than {setting.timeout_s:g} s"
            raise NotPrepared(f"the preparation: {why}") from error
        await mock.snapshot(_PREPARED)
    finally:
        await mock.stop(drain_s=0)
    return setting._replace(prepared=mock.snapshots)


async def run_once(setting: ExplorerSetting, *injections: Injection) -> Run:
    """Runs the client once. Raises CommandError and OSErrors of the cluster, but nothing else of the client."""
    run, recorder, mock = Run(injections), MemoryRecorder(), _cluster(setting)
    async with AsyncExitStack() as stack:
        await mock.start()
        stack.push_async_callback(_stop, mock)
        if setting.prepared is not None and mock.snapshots is not None:
            mock.snapshots.take_from(setting.prepared, _PREPARED)
            await mock.restore(_PREPARED)
        for server in mock.stores:
            server.hub.recorder = recorder
        changes = []
        try:
            for injection in by_rules(injections):
                injection.add_to(mock)
                if (change := injection.failure.change) is not None:
                    changes.append(asyncio.create_task(injection.change(mock, change, run.impossible), name=_TASK))
            started_s = time.monotonic()
            await _run_client(setting, mock, run)
            run.duration_s = time.monotonic() - started_s
        finally:
            for task in changes:
                task.cancel()
            await asyncio.gather(*changes, return_exceptions=True)  # `impossible` has their errors
        requests = mock.requests()
        run.is_cut_off = mock.is_cut_off(requests)
        mock.faults.toxics.clear()
        run.leaked = 0 if run.is_hung else await _left_open(mock, setting.leaked)
        await _owned(mock)
        _read_contents(mock, run)
        run.violation = await _violation(setting, mock)
        fired = {decision.rule for decision in mock.faults.decisions} - run.impossible.keys()
        run.is_made = fired.issuperset(map(str, injections))
        run.faulty = frozenset(decision.connection for decision in mock.faults.decisions)
        points = points_of(requests)
        matching = {seen.number for seen in mock.requests(setting.match)}
        run.points = list(points.values())
        run.chosen = [point for number, point in points.items() if number in matching]
        run.waiting = _waiting(requests) if run.is_hung else ()
    run.stderr, run.records = mock.stderr, recorder.records()
    return run


async def _run_client(setting: ExplorerSetting, mock: ExploredCluster, run: Run) -> None:
    """Awaits the client, or cancels it when its time is over."""
    try:
        async with asyncio.timeout(setting.timeout_s) as limit:
            progress = asyncio.create_task(_extend(limit, setting.timeout_s, mock), name=_TASK)
            try:
                output = await setting.client(mock)
            finally:
                progress.cancel()
        run.output = output if isinstance(output, bytes) else None
    except (KeyboardInterrupt, CommandError):
        raise
    except BaseException as error:  # the client's own, such as the panic of a client in Rust
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the exploration is cancelled
        run.is_hung = isinstance(error, TimeoutError) and limit.expired()
        run.error = None if run.is_hung else error


async def _violation(setting: ExplorerSetting, mock: ExploredCluster) -> str | None:
    """Returns what the user's check finds. Raises TypeError if it returns no text, and its own errors.

    A coroutine function may make requests: the failures have ended by then.
    """
    if setting.check is None:
        return None
    try:
        async with asyncio.timeout(setting.timeout_s) as limit:
            broken = setting.check(mock)
            if inspect.isawaitable(broken):
                mock.faults.clear()
                broken = await broken
    except AssertionError as error:
        return f"check: {[*str(error).splitlines(), 'an assertion failed'][0]}"
    except TimeoutError:
        if not limit.expired():
            raise
        return f"check: it does not finish within {setting.timeout_s:g} s"
    if not isinstance(broken, str | None):
        raise TypeError(f"check: it returned {broken!r}; give a function that returns text or None")
    return broken


async def _extend(limit: asyncio.Timeout, timeout_s: float, mock: ExploredCluster) -> None:
    """Doubles the time of a client that still makes requests: on a busy machine, it is slow rather than hung."""
    await asyncio.sleep(timeout_s * 0.2)
    count = len(points_of(mock.requests()))
    await asyncio.sleep(timeout_s * 0.7)
    if len(points_of(mock.requests())) > count:
        limit.reschedule(asyncio.get_running_loop().time() + timeout_s)


async def _stop(mock: ExploredCluster) -> None:
    mock.faults.clear()
    mock.faults.toxics.clear()
    with suppress(FaultFunctionError):
        await mock.stop(drain_s=0)


async def _left_open(mock: ExploredCluster, usual: int) -> int:
    """Returns the number of connections that stay open. usual: how many may, so that they are not waited for."""
    until_s = time.monotonic() + _CLOSING_S
    while True:
        count = sum(len(server.hub.connections) for server in mock.stores)
        if count <= usual or time.monotonic() >= until_s:
            return count
        await asyncio.sleep(_LOOK_S)  # connections have no event


async def _owned(mock: ExploredCluster) -> None:
    """Waits until each container has an owner: on its way to another store, its contents are in none."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_OWNED_S):
            while sum(len(server.store.containers) for server in mock.stores) < mock.settings.store.containers:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)


def _waiting(requests: Sequence[Seen]) -> list[str]:
    """Returns the requests without a reply, the latest last; else the last request."""
    pending = [seen for seen in requests if seen.replied_s is None and not _is_over(seen)]
    lines = [f"waits for the reply to {line_of(seen)}" for seen in pending[-_MOST_WAITING:]]
    if not lines:
        lines = [f"no request waits for a reply; the last was {line_of(seen)}" for seen in requests[-1:]]
    return lines or ["it made no request"]


def _is_over(seen: Seen) -> bool:
    """Whether a request without a reply has none to wait for."""
    return seen.type_name == "KEEP_ALIVE" or any(": close" in fault for fault in seen.faults)


def _read_contents(mock: ExploredCluster, run: Run) -> None:
    """Reads the events of each segment; contents that are no events count as a single event.

    Tables, such as the state of a reader group, differ between runs without faults; open transactions are not stored
    yet.
    """
    for name, segment in mock.segments.items():
        if is_index(name) or parent_of(name) or segment.is_table or "/_" in f"/{name}":
            continue
        data = segment.read_bytes(segment.start_offset, segment.length - segment.start_offset)
        run.starts[name] = segment.start_offset
        events, length = events_of(data)
        run.segments[name] = events if length == len(data) else [data]
        if length != len(data):
            run.unframed.add(name)


def events_of(data: bytes) -> tuple[list[bytes], int]:
    """Returns the whole events at the start of data, and their length."""
    events: list[bytes] = []
    return events, split_events(data, 0, len(data), 0, lambda event, *_: event, None, events)


class MemoryRecorder(TraceRecorder):
    """Keeps a run's traffic in memory."""

    def __init__(self) -> None:
        mark = make_mark(os.urandom(8))
        super().__init__(TraceWriter(mark, Metadata(17, "segstore explore"), block_bytes=_BLOCK_BYTES))
        self._blocks = [self._writer.start()]

    def take_block(self) -> None:
        self._blocks.append(self._writer.take())

    def records(self) -> list[Record]:
        """Ends the recording and returns its records."""
        self._blocks.append(self._writer.finish(self._clock()))
        return [record for record in read_records(b"".join(self._blocks)) if isinstance(record, Record)]
