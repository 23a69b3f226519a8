"""Addresses of the stores that own containers, kept current by watches so that lookups cost nothing.

A container's node holds the name of its owner, which in a cluster of processes is the store's address.

Invariant: answers reflect the last read from the service, and every change is read at once; after the end of a session,
no owner is known until the next session has read the nodes. A client sent to a former owner gets WrongHost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from segstore.server.coordination import CONTAINERS, CoordinationSession, container_path, follow
from segstore.wire.endpoint import Endpoint


class Owners:
    def __init__(self, containers: int) -> None:
        self._count = containers
        self._owners: dict[int, Endpoint] = {}

    def of(self, container_id: int) -> Endpoint | None:
        """Returns the address of a container's owner; None while it is not known."""
        return self._owners.get(container_id)

    async def run(self, session: CoordinationSession) -> None:
        """Watches the nodes until the session ends."""
        try:
            await follow(partial(self._look, session), "the owners of containers are unknown")
        finally:
            self._owners = {}

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        owners: dict[int, Endpoint] = {}
        for child in await session.children(CONTAINERS, changed.set):
            if child.isdecimal() and int(child) < self._count:
                node = await session.get(container_path(int(child)))
                if node is not None:
                    with suppress(ValueError):  # another program may have written the node
                        owners[int(child)] = Endpoint.parse(node.data.decode())
        self._owners = owners
        return True
