"""Named snapshots of a server in memory, and its reset, so that tests of one server can start from the same state.

    await mock.snapshot("two streams")
    ...
    await mock.restore("two streams")

A snapshot has the segments with their attributes and tables, the used-up names, and the controller's state. Restoring
it is like restarting the server with that state: all connections to the stores are cut, controller calls in flight get
UNAVAILABLE, fault rules and toxics are removed, and their decisions, recorded requests and the counts of writers are
discarded. The seed and the round-trip time come from the snapshot; ports stay. A reset restores an empty state, with
the seed and the round-trip time from the server's start.

Invariants: a snapshot is taken, and restored, between two steps of the server, so no request sees a half-restored
state; its bytes are charged to the server's memory. Refused: servers with a data directory, whose journal such a change
would contradict; a container that currently has no owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.server.config import UnknownName
from segstore.server.durable import Image, copy_of, restore
from segstore.server.store import SEGMENT_BYTES, Container, MemoryAccount, name_bytes

if TYPE_CHECKING:
    from segstore.server.controller import ControllerServer
    from segstore.server.faults import Faults, FaultSettings
    from segstore.server.node.runner import SegmentStoreServer

NO_SNAPSHOTS: Final = "snapshots and reset are for servers in memory, and this one has a data directory"
_CLOSING_S: Final = 10.0
_LOOK_S: Final = 0.001

_SNAPSHOT_BYTES: Final = 2048
"""About what a snapshot without segments takes."""


class SnapshotRefused(RuntimeError):
    """A snapshot cannot be taken or restored; the text is one sentence."""


class NoSuchSnapshot(UnknownName):
    """No snapshot has that name."""

    kind = "snapshot"


class SnapshotInfo(NamedTuple):
    """Facts about a snapshot. size: its bytes. taken_ms: Unix milliseconds."""

    name: str
    segments: int
    size: int
    taken_ms: int


class _Snapshot(NamedTuple):
    info: SnapshotInfo
    containers: Mapping[int, Image]
    controller: bytes
    faults: FaultSettings | None
    charged: int
    """The data of the segments and, about, what their images take beside it."""


class Snapshots:
    """The snapshots of the stores of one process and their controller.

    stores: all stores of the cluster. memory: the account that snapshots are charged to. faults: their fault rules.
    calls: returns the current server of the controller, if any. changed: called when the controller's state was
    replaced.
    """

    def __init__(
        self,
        stores: Sequence[SegmentStoreServer],
        memory: MemoryAccount,
        faults: Faults | None,
        *,
        calls: Callable[[], ControllerServer | None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._stores = stores
        self._memory = memory
        self._faults = faults
        self._calls = calls
        self._changed = changed
        self._snapshots: dict[str, _Snapshot] = {}
        self._one_at_a_time = asyncio.Lock()

    def infos(self) -> list[SnapshotInfo]:
        """Facts about the snapshots, in the order in which they were first taken."""
        return [snapshot.info for snapshot in self._snapshots.values()]

    async def take(self, name: str) -> SnapshotInfo:
        """Takes a snapshot, and replaces the one of this name. Raises SnapshotRefused, StoreFull if memory is full."""
        if not name or type(name) is not str:  # names come from tests, too
            raise SnapshotRefused("the name of a snapshot is text, and not empty")
        async with self._one_at_a_time:
            containers = self._containers()
            held = [segment for container in containers for segment in container.segments.values()]
            images_bytes = _SNAPSHOT_BYTES + sum(SEGMENT_BYTES + name_bytes(segment.name) for segment in held)
            self._memory.check(images_bytes + sum(segment.length - segment.start_offset for segment in held))
            images = {container.container_id: copy_of(container) for container in containers}
            calls = self._calls()
            state = b"" if calls is None else calls.controller.image()
            self.delete(name, missing_ok=True)
            segments = [segment for image in images.values() for segment in image.segments]
            size = len(state) + sum(len(extent.data) for segment in segments for extent in segment.extents)
            info = SnapshotInfo(name, len(segments), size, time.time_ns() // 1_000_000)
            general = None if self._faults is None else self._faults.general
            self._snapshots[name] = _Snapshot(info, images, state, general, images_bytes + size)
            self._memory.charge(images_bytes + size)
            return info

    def take_from(self, others: Snapshots, name: str) -> None:
        """Shares a snapshot of another server. Raises NoSuchSnapshot, StoreFull."""
        snapshot = others._snapshots.get(name)
        if snapshot is None:
            raise NoSuchSnapshot(name, tuple(others._snapshots))
        self._memory.check(snapshot.charged)
        self.delete(name, missing_ok=True)
        self._snapshots[name] = snapshot
        self._memory.charge(snapshot.charged)

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        """Deletes a snapshot. Raises NoSuchSnapshot, unless `missing_ok`."""
        snapshot = self._snapshots.pop(name, None)
        if snapshot is not None:
            self._memory.charge(-snapshot.charged)
        elif not missing_ok:
            raise NoSuchSnapshot(name, tuple(self._snapshots))

    async def restore(self, name: str) -> int:
        """Restores a snapshot, which stays; returns the number of connections that were cut.

        Raises NoSuchSnapshot; SnapshotRefused, and changes nothing but the connections.
        """
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise NoSuchSnapshot(name, tuple(self._snapshots))
        return await self._replace(snapshot.containers, snapshot.controller, snapshot.faults)

    async def reset(self) -> int:
        """Restores an empty state; returns the number of connections that were cut. Raises SnapshotRefused."""
        return await self._replace({}, b"", None if self._faults is None else self._faults.at_start)

    async def _replace(self, images: Mapping[int, Image], state: bytes, faults: FaultSettings | None) -> int:
        async with self._one_at_a_time:
            self._containers()
            cut = sum(store.hub.cut() for store in self._stores)
            await self._all_closed()
            if (calls := self._calls()) is not None:
                await calls.interrupt()
            # Nothing waits from here on. Connections that came meanwhile have asked of the old state.
            cut += sum(store.hub.cut() for store in self._stores)
            for container in self._containers():
                container.clear()
                image = images.get(container.container_id)
                if image is not None:
                    restore(container, image, {})
                    container.recovered()
            if calls is not None:
                calls.controller.restore(state)
                self._changed()
            for store in self._stores:
                if store.service.writer_counts is not None:
                    store.service.writer_counts.clear()
            if self._faults is not None and faults is not None:
                self._faults.start_over(faults)
            return cut

    def _containers(self) -> list[Container]:
        """Returns all containers of the cluster. Raises SnapshotRefused if a container has no owner."""
        stores = (server.store for server in self._stores)
        containers = {number: container for store in stores for number, container in store.containers.items()}
        settings = self._stores[0].settings
        wanted = range(settings.containers) if len(self._stores) > 1 or settings.own is None else settings.own
        missing = [number for number in wanted if number not in containers]
        if missing:
            raise SnapshotRefused(f"container {missing[0]} has no owner at the moment: try again")
        return list(containers.values())

    async def _all_closed(self) -> None:
        """Waits until the connections that were cut have ended, with all that belongs to them."""
        cut = [(store.hub.connections, connection) for store in self._stores for connection in store.hub.connections]
        try:
            async with asyncio.timeout(_CLOSING_S):
                while any(connection in connections for connections, connection in cut):  # noqa: ASYNC110 — they have no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise SnapshotRefused(f"a connection did not end within {_CLOSING_S:g} s") from error


class WithSnapshots:
    """A server that can be snapshotted. snapshots: None if it has a data directory."""

    snapshots: Snapshots | None = None

    @property
    def _snapshots(self) -> Snapshots:
        if self.snapshots is None:
            raise SnapshotRefused(NO_SNAPSHOTS)
        return self.snapshots

    async def snapshot(self, name: str) -> None:
        """Takes a snapshot of all data, and replaces a snapshot of this name. Raises SnapshotRefused, StoreFull."""
        await self._snapshots.take(name)

    async def restore(self, name: str) -> None:
        """Restores a snapshot, cuts all connections and removes fault rules and recorded requests.

        Raises NoSuchSnapshot, SnapshotRefused.
        """
        await self._snapshots.restore(name)

    async def reset(self) -> None:
        """Restores an empty server. Raises SnapshotRefused."""
        await self._snapshots.reset()
