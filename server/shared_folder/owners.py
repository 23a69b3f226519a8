"""Addresses of the stores that own containers, kept current by watches so that lookups cost nothing.

A container's node names its owner; the owner's load report has its address.

Invariant: answers reflect the last read from the service, and every change is read at once; after the end of a session,
no owner is known until the next session has read the nodes. A client sent to a former owner gets WrongHost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

import msgspec

from segstore.server.coordination import CONTAINERS, CoordinationSession, LoadReport, container_path, follow, store_path
from segstore.wire.endpoint import Endpoint

_LOOK_AGAIN_S: Final = 0.1


class Owners:
    def __init__(self, containers: int) -> None:
        self._count = containers
        self._random = Random()
        self._names: dict[int, str] = {}
        self._locations: dict[str, Endpoint] = {}

    def of(self, container_id: int) -> Endpoint | None:
        """Returns the address of a container's owner; None while it is not known."""
        return self._locations.get(self._names.get(container_id, ""))

    async def run(self, session: CoordinationSession) -> None:
        """Watches the nodes until the session ends."""
        try:
            await follow(partial(self._look, session), "the owners of containers are unknown", self._random)
        finally:
            self._names, self._locations = {}, {}

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        """Reads all nodes, and again soon if an owner's address is not known."""
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
        self._names, self._locations = names, locations
        if len(locations) == len(set(names.values())):
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await changed.wait()
        return False

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
