"""Load reports: this store's, published periodically, and those of all stores, read (seed 57.6).

What a node holds was written by others: one that is no report is passed over, which is said once. Two stores of one
name would each take the other's nodes for its own of an older session, so when this is seen, one of them ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import msgspec

from segstore.server.coordination.placement import LoadReport
from segstore.server.coordination.policy import OwnershipSettings, backoff_s
from segstore.server.coordination.types import (
    BadVersion,
    CoordinationError,
    CoordinationSession,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    SessionExpired,
)

log = logging.getLogger(__name__)

STORES: Final = "/segstore/stores"

SHOWN_BYTES: Final = 200
"""Of a node whose data is shown to a person."""


def store_path(name: str) -> str:
    """The node that carries a store's load report."""
    return f"{STORES}/{name}"


class SameName(CoordinationError):
    """Another store has this one's name: it holds a node that only a store of this name makes."""

    def __init__(self, name: str, path: str, said: bytes = b"") -> None:
        text = said[:SHOWN_BYTES].decode(errors="backslashreplace")
        super().__init__(
            f"another store is called {name!r} too: it holds node {path}{text and ', which says '}{text}", path
        )


class _Loaded(Protocol):
    """What can say how much it has to do."""

    def load(self) -> LoadReport: ...


class LoadReports:
    """Of one store."""

    def __init__(
        self,
        name: str,
        store: _Loaded,
        settings: OwnershipSettings,
        random: Random,
        rebalance: Callable[[int], None],
    ) -> None:
        """rebalance: told, after each report, how many stores there are, if the settings ask for it."""
        self._name = name
        self._store = store
        self._settings = settings
        self._random = random
        self._rebalance = rebalance
        self._said: set[str] = set()

    async def run(self, session: CoordinationSession) -> None:
        """Says what there is to do, until the session ends. Raises SameName."""
        failed = 0
        made = False
        other: Node | None = None
        while True:
            try:
                node = await self._say(session)
                if node is None:
                    failed, made, other = 0, True, None
                    if self._settings.rebalance:
                        self._rebalance(len(await self.read(session)))
                    await asyncio.sleep(self._settings.load_report_interval_ms / 1000)
                    continue
                # What we have made in this session goes only if one of our name deletes it; and a node of an older
                # session of ours is written no more, and goes when that session's time is up.
                if made or (other is not None and (other.owner, other.version) != (node.owner, node.version)):
                    raise SameName(self._name, store_path(self._name), node.data)
                other = node
            except SessionExpired:
                return
            except Disconnected as error:
                log.info("store %s: no load report: %s", self._name, error)
            except (NodeExists, NoNode, BadVersion) as error:
                log.info("store %s: its load report has changed: %s", self._name, error)
            await asyncio.sleep(backoff_s(failed, self._random))
            failed += 1

    async def _say(self, session: CoordinationSession) -> Node | None:
        """None when it is said; the node that is in the way, of an older session of ours or of another of our name."""
        path, data = store_path(self._name), self._store.load().encode()
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
        """The last report of each store."""
        reports = {}
        for name in await session.children(STORES):
            path = store_path(name)
            node = await session.get(path)
            if node is None:
                continue
            try:
                reports[name] = LoadReport.decode(node.data)
            except msgspec.MsgspecError as error:
                if path not in self._said:
                    self._said.add(path)
                    held = node.data[:SHOWN_BYTES]
                    log.warning("node %s is no store's load report and is passed over: %s: %r", path, error, held)
        return reports
