"""Placement of unowned containers: the store that reports the least load takes each (seed 57.6).

Each store publishes its load report periodically, and reads the reports of all stores. `turn` and `surplus` are pure
functions of the reports: all stores compute the same distribution, so each knows which containers to take, and how many
other stores come before it for the rest.

Other programs may write nodes, too: a node that is not a report is skipped, and logged once. Two stores with the same
name mistake each other's nodes for nodes of their own older session, so one store shuts down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final

import msgspec

from segstore.server.coordination import errors
from segstore.server.coordination.policy import OwnershipSettings, backoff_s
from segstore.server.coordination.types import CoordinationSession, Node

log = logging.getLogger(__name__)

STORES: Final = "/segstore/stores"

SHOWN_BYTES: Final = 200
"""Number of bytes of a node's data in messages."""


def store_path(name: str) -> str:
    return f"{STORES}/{name}"


class LoadReport(msgspec.Struct, frozen=True):
    """The load of a store.

    containers: number of owned containers. bytes_per_s: appended and read since the last report. connections: number of
    open connections.
    """

    containers: int = 0
    bytes_per_s: float = 0.0
    connections: int = 0


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(LoadReport)


def turn(store: str, container: int, unowned: Iterable[int], reports: Mapping[str, LoadReport]) -> int:
    """Returns how many stores come before `store` in the order for `container`; 0 for the store that should take it.

    The unowned containers are assigned in turn to the store with the least load at that point.
    """
    counts = {name: report.containers for name, report in reports.items()}
    counts.setdefault(store, 0)

    def load(name: str) -> tuple[int, float, int, str]:
        report = reports.get(name, LoadReport())
        return counts[name], report.bytes_per_s, report.connections, name

    for number in sorted({*unowned, container}):
        order = sorted(counts, key=load)
        if number == container:
            return order.index(store)
        counts[order[0]] += 1
    raise AssertionError("the container is among those distributed")


def surplus(owned: int, containers: int, stores: int) -> int:
    """Returns how many containers a store should give up: those above an even share, rounded up."""
    return max(0, owned - -(-containers // max(stores, 1)))


class SameName(errors.CoordinationError):
    """Another store has this store's name: it holds a node that only a store of this name creates."""

    def __init__(self, name: str, path: str, data: bytes = b"") -> None:
        text = data[:SHOWN_BYTES].decode(errors="backslashreplace")
        super().__init__(
            f"another store is called {name!r} too: it holds node {path}{text and ', which says '}{text}", path
        )


class LoadReports:
    def __init__(
        self,
        name: str,
        load: Callable[[], LoadReport],
        settings: OwnershipSettings,
        random: Random,
        rebalance: Callable[[int], None],
    ) -> None:
        """load: returns the store's load. rebalance: called with the number of stores after each report, if the
        settings enable it."""
        self._name = name
        self._load = load
        self._settings = settings
        self._random = random
        self._rebalance = rebalance
        self._logged: set[str] = set()

    async def run(self, session: CoordinationSession) -> None:
        """Publishes reports until the session ends. Raises SameName."""
        failed = 0
        created = False
        other: Node | None = None
        while True:
            try:
                node = await self._publish(session)
                if node is None:
                    failed, created, other = 0, True, None
                    if self._settings.rebalance:
                        self._rebalance(len(await self.read(session)))
                    await asyncio.sleep(self._settings.load_report_interval_ms / 1000)
                    continue
                # There are two signs of another store with our name: a node that we created in this session was
                # deleted, or a node that is not of this session changes, although our older session cannot write it.
                if created or (other is not None and (other.owner, other.version) != (node.owner, node.version)):
                    raise SameName(self._name, store_path(self._name), node.data)
                other = node
            except errors.SessionExpired:
                return
            except errors.Disconnected as error:
                log.info("store %s: no load report: %s", self._name, error)
            except (errors.NodeExists, errors.NoNode, errors.BadVersion) as error:
                log.info("store %s: its load report has changed: %s", self._name, error)
            await asyncio.sleep(backoff_s(failed, self._random))
            failed += 1

    async def _publish(self, session: CoordinationSession) -> Node | None:
        """Publishes a report and returns None; if another session holds the node, returns that node."""
        path, data = store_path(self._name), _ENCODER.encode(self._load())
        node = await session.get(path)
        if node is None:
            await session.create(path, data, ephemeral=True)
        elif node.owner == session.session_id:
            await session.set(path, data, node.version)
        else:
            if self._settings.stale_node == "replace":
                await session.delete(path, node.version)
            return node
        return None

    async def read(self, session: CoordinationSession) -> dict[str, LoadReport]:
        """Returns the last report of each store."""
        reports = {}
        for name in await session.children(STORES):
            path = store_path(name)
            node = await session.get(path)
            if node is None:
                continue
            try:
                reports[name] = _DECODER.decode(node.data)
            except msgspec.MsgspecError as error:
                if path not in self._logged:
                    self._logged.add(path)
                    held = node.data[:SHOWN_BYTES]
                    log.warning("node %s is not a load report and is skipped: %s: %r", path, error, held)
        return reports
