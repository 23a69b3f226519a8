"""Addresses of the stores that own containers, kept current by watches so that lookups cost nothing.

A container's node names its owner; the owner's load report has its address.

Invariant: answers reflect the last read from the service, and every change is read at once; after a session ends
nothing is known until the next one has read the nodes. A client that is sent to a former owner gets WrongHost there.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Final

import msgspec

from segstore.server.coordination import (
    CONTAINERS,
    CoordinationSession,
    Disconnected,
    LoadReport,
    SessionExpired,
    backoff_s,
    container_path,
    store_path,
)
from segstore.server.net import Endpoint

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.1


class Owners:
    """Containers and the addresses of their owners."""

    def __init__(self, containers: int, random: Random | None = None) -> None:
        self._count = containers
        self._random = random or Random()
        self._names: dict[int, str] = {}
        self._locations: dict[str, Endpoint] = {}
        self._changed: list[asyncio.Future[None]] = []

    def of(self, container_id: int) -> Endpoint | None:
        """Where a container is; None while nobody is known to have it."""
        return self._locations.get(self._names.get(container_id, ""))

    async def until_changed(self) -> None:
        """Waits for the next change."""
        changed = asyncio.get_running_loop().create_future()
        self._changed.append(changed)
        await changed

    async def run(self, session: CoordinationSession) -> None:
        """Watches the nodes until the session ends."""
        failed = 0
        try:
            while True:
                changed = asyncio.Event()
                try:
                    all_located = await self._look(session, changed)
                    failed = 0
                    async with asyncio.timeout(None if all_located else _LOOK_AGAIN_S):
                        await changed.wait()
                except TimeoutError:
                    continue
                except Disconnected as error:
                    log.info("who owns which container is not known: %s; asking again", error)
                    await asyncio.sleep(backoff_s(failed, self._random))
                    failed += 1
        except SessionExpired:
            return
        finally:
            self._know({}, {})

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        """Reads all nodes; returns whether every owner's address is known."""
        names: dict[int, str] = {}
        for child in await session.children(CONTAINERS, changed.set):
            if child.isdecimal() and int(child) < self._count:
                node = await session.get(container_path(int(child)))
                if node is not None:
                    names[int(child)] = node.data.decode(errors="replace")
        locations: dict[str, Endpoint] = {}
        for name in set(names.values()):
            known = self._locations.get(name) or await self._locate(session, name)
            if known is not None:
                locations[name] = known
        self._know(names, locations)
        return len(locations) == len(set(names.values()))

    @staticmethod
    async def _locate(session: CoordinationSession, name: str) -> Endpoint | None:
        if not name or "/" in name or "\0" in name:  # no name of a store
            return None
        node = await session.get(store_path(name))
        if node is None:
            return None
        try:
            report = LoadReport.decode(node.data)
        except msgspec.MsgspecError:
            return None
        return Endpoint(report.host, report.port)

    def _know(self, names: dict[int, str], locations: dict[str, Endpoint]) -> None:
        self._names, self._locations = names, locations
        waiting, self._changed = self._changed, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
