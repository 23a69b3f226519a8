"""Load reports: publishes this store's report periodically, and reads the reports of all stores (seed 57.6).

Other programs may write nodes, too: a node that is not a report is skipped, and logged once. Two stores with the same
name mistake each other's nodes for nodes of their own older session, so one store shuts down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from segstore.server.coordination import errors
from segstore.server.coordination.placement import LoadReport
from segstore.server.coordination.policy import OwnershipSettings, backoff_s
from segstore.server.coordination.types import CoordinationSession, Node

log = logging.getLogger(__name__)

STORES: Final = "/segstore/stores"

SHOWN_BYTES: Final = 200
"""Number of bytes of a node's data in messages."""


def store_path(name: str) -> str:
    return f"{STORES}/{name}"


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
        made = False
        other: Node | None = None
        while True:
            try:
                node = await self._publish(session)
                if node is None:
                    failed, made, other = 0, True, None
                    if self._settings.rebalance:
                        self._rebalance(len(await self.read(session)))
                    await asyncio.sleep(self._settings.load_report_interval_ms / 1000)
                    continue
                # There are two signs of another store with our name: a node that we created in this session was
                # deleted, or a node that is not of this session changes, although our older session cannot write it.
                if made or (other is not None and (other.owner, other.version) != (node.owner, node.version)):
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
        path, data = store_path(self._name), msgspec.json.encode(self._load())
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
                reports[name] = msgspec.json.decode(node.data, type=LoadReport)
            except msgspec.MsgspecError as error:
                if path not in self._logged:
                    self._logged.add(path)
                    held = node.data[:SHOWN_BYTES]
                    log.warning("node %s is not a load report and is skipped: %s: %r", path, error, held)
        return reports
