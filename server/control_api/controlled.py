"""The objects that the control API inspects and changes: stores, a tap or a replay, their faults, the controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Request

from segstore.server.connection import WriterCounts
from segstore.server.control_api.fronts import Front, ReplayFront, StoreFront
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.writer_names import WriterNames
from segstore.server.controller import Controller
from segstore.server.faults import Faults, NoSuchRule, Observer
from segstore.server.node import Snapshots
from segstore.server.recordings import Recordings
from segstore.server.store import Segment, StoreError
from segstore.server.traffic import History, Traffic
from segstore.wire import WIRE_VERSION
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.cluster import Cluster
    from segstore.server.node import SegmentStoreServer
    from segstore.server.replay import TraceServer
    from segstore.server.tap import TapServer

Kind = Literal["stores", "tap", "replay"]
_AT_ONCE = 10_000
_COMPARED_CHARACTERS = 64
"""Characters of a name that are compared in the time that a short name takes."""
_ALONE = "there is only one store; `segstore serve --stores 2` starts two"


def _nothing(*_: Any) -> None:
    return None


async def _settled() -> None:
    return None


@dataclass
class Controlled:
    """The objects behind the control API.

    stores: the stores of this process; empty for a tap or a replay. tap, replay: the tap or the replay, if this is a
    tap or a replay. faults: their fault rules, or None. controller: returns the current controller, if any;
    controller_address: returns its address. data: the data directory; None for memory. cluster: moves containers, stops
    and starts stores, if this process has several stores; else why_no_cluster has the reason. owner_elsewhere: returns
    the address of a container's owner in another process. names: registered writer names. snapshots: those of its data;
    None with a data directory. settled: returns when the controller's changes are durable. one_at_a_time: held by
    requests that arrange data; moving: by those that move containers, stop and start stores. traffic: the latest
    traffic of the stores; None if it is not kept. observer: the log of requests that the API has started, if it has.
    started_ms: creation time of this object. version: of this project.
    """

    stores: Sequence[SegmentStoreServer] = ()
    faults: Faults | None = None
    controller: Callable[[], Controller | None] = _nothing
    controller_address: Callable[[], Endpoint | None] = _nothing
    tap: TapServer | None = None
    replay: TraceServer | None = None
    traffic: Traffic | None = None
    data: Path | None = None
    cluster: Cluster | None = None
    why_no_cluster: str = _ALONE
    owner_elsewhere: Callable[[int], Endpoint | None] = _nothing
    names: WriterNames = field(default_factory=WriterNames)
    snapshots: Snapshots | None = None
    settled: Callable[[], Awaitable[None]] = _settled
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    observer: Observer | None = None
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    version: str = field(default_factory=lambda: version("segstore"))

    @property
    def kind(self) -> Kind:
        """The kind of the objects, which decides which routes exist."""
        return "tap" if self.tap is not None else "replay" if self.replay is not None else "stores"

    @property
    def fronts(self) -> list[Front]:
        """The endpoints for clients, by number."""
        if self.replay is not None:
            return [ReplayFront(self.replay)]
        return [StoreFront(store) for store in self.stores] if self.tap is None else list(self.tap.fronts)

    @property
    def containers(self) -> int:
        """Returns the number of containers in the cluster; 0 on a tap."""
        return self.stores[0].settings.containers if self.stores else 0

    @property
    def wire_version(self) -> int:
        """Returns the newest wire version that the stores announce; on a tap, the codec's version."""
        return self.stores[0].settings.wire_version if self.stores else WIRE_VERSION

    @property
    def tls(self) -> bool:
        """Whether the ports for clients use TLS."""
        return (
            self.tap.tls if self.tap is not None else any(store.settings.tls_cert is not None for store in self.stores)
        )

    @property
    def capabilities(self) -> list[str]:
        """The names of the parts of the API that can be used here."""
        has_stores, has_traffic = self.kind == "stores", self.traffic is not None
        parts = {
            "tap": self.kind == "tap",
            "replay": self.kind == "replay",
            "stores": has_stores,
            "segments": has_stores,
            "containers": has_stores,
            "counters": True,
            "controller": self.controller() is not None,
            "faults": self.faults is not None,
            "toxics": self.faults is not None,
            "requests": has_traffic,
            "send": has_stores and has_traffic,
            "recordings": has_traffic,
            "snapshots": self.snapshots is not None,
        }
        return [name for name, is_there in parts.items() if is_there]

    @cached_property
    def history(self) -> History | None:
        """The latest requests of the traffic; None if it is not kept."""
        return None if self.traffic is None else History(self.traffic, self.faults)

    @cached_property
    def recordings(self) -> Recordings | None:
        """Recordings of the traffic; None if it is not kept."""
        return None if self.traffic is None else Recordings(self.traffic)

    @cached_property
    def counts(self) -> WriterCounts:
        """Counts per writer, shared by all stores because segments move between stores and stores are restarted."""
        return WriterCounts(lambda segment: any(store.service.has_segment(segment) for store in self.stores))

    def check_store(self, number: int | None, where: str) -> None:
        """Refuses the number of a store that does not exist; None means all. A tap may learn of more stores."""
        count = len(self.stores)
        if self.tap is None and number is not None and number >= count:
            raise ApiProblem(422, f"{where}: there is no store {number}: there are {count}, from 0", where)

    def forget_requests(self) -> None:
        """Discards all known requests: the kept traffic, and a mock's observations."""
        if self.traffic is not None:
            self.traffic.clear()
        if self.faults is not None and self.faults.observer is not None:
            self.faults.observer.clear()

    def begin(self) -> None:
        """Starts logging requests, which a tap does not keep for waits yet, and counting appends per writer."""
        faults, is_tap = self.faults, self.tap is not None
        if faults is not None and faults.observer is None and not (is_tap and self.history is None):
            self.observer = faults.observer = Observer(history=self.history, kept_from=None if is_tap else 0)
        self.count_writers()

    def count_writers(self) -> None:
        """Starts counting appends per writer in all stores."""
        for store in self.stores:
            if store.service.writer_counts is None:
                store.service.writer_counts = self.counts

    def keep_requests(self, faults: Faults) -> Observer:
        """Keeps requests for waits and verifications from now on, unless they are kept. Returns their log."""
        if faults.observer is None:
            self.observer = faults.observer = Observer()
        if faults.observer.kept_from is None:
            faults.observer.kept_from = faults.observer.last
        return faults.observer

    def stop_keeping_requests(self, faults: Faults) -> None:
        """Keeps no more requests for waits and verifications, in the log that the API has started."""
        if self.observer is not None and self.observer.history is not None:
            self.observer.kept_from = None
        else:
            self.observer = faults.observer = None

    async def segments(self) -> AsyncIterator[Segment]:
        """Yields all segments of the stores of this process. Yields to the loop regularly."""
        done = 0
        for store in self.stores:
            for container in list(store.store.containers.values()):
                for segment in list(container.segments.values()):
                    yield segment
                    done += 1 + len(segment.name) // _COMPARED_CHARACTERS
                    if done > _AT_ONCE:
                        done = 0
                        await asyncio.sleep(0)

    def store_of(self, segment: str) -> SegmentStoreServer | None:
        """Returns the store that owns the segment's container; None if it is not in this process, or the name is
        invalid.
        """
        for store in self.stores:
            try:
                store.store.container_for(segment)
            except StoreError:
                continue
            return store
        return None


def faults_of(controlled: Controlled) -> Faults:
    """Returns the fault rules and toxics. Raises ApiProblem."""
    if controlled.faults is None:
        raise ApiProblem(409, "faults and waits are not available: the store was made with watched=False", "path")
    return controlled.faults


def faults_with(controlled: Controlled, name: str) -> Faults:
    """Returns the fault rules, which include the named rule. Raises ApiProblem, NoSuchRule."""
    there = faults_of(controlled)
    if name not in there.rules:
        raise NoSuchRule(name, tuple(there.rules))
    return there


async def _of_request(request: Request) -> Controlled:
    controlled: Controlled = request.state.controlled
    return controlled


Here = Annotated[Controlled, Depends(_of_request)]
"""The objects of the server that a request is for: all servers of a process have the same routes."""
