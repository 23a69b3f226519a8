"""The processes of a cluster as the coordination service knows them: all processes, and owners of containers.

The nodes are watched, so lookups cost nothing: answers reflect the last read from the service, every change is read at
once, and after the end of a session nothing is known until the next session has read the nodes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from segstore.server.coordination import CONTAINERS, CoordinationSession, NodeExists, container_path, follow
from segstore.wire.endpoint import Endpoint

CONTROLLER: Final = "/segstore/controller"
"""The node of the process that leads the controller, with its address."""
_PRESENT: Final = "/segstore/controllers"


class Present:
    """The running processes: the node of a process is named by its controller's address. all: these addresses, in
    order.
    """

    def __init__(self, where: Endpoint) -> None:
        self.all: list[Endpoint] = [where]
        self._where = where

    async def run(self, session: CoordinationSession) -> None:
        """Registers this process and watches the other processes, until the session ends."""
        await follow(partial(self._look, session), "the other controllers are unknown")

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        own = str(self._where)
        names = await session.children(_PRESENT, changed.set)
        if own not in names:  # otherwise it is ours, of this or an older session
            with suppress(NodeExists):
                await session.create(f"{_PRESENT}/{own}", b"", ephemeral=True)
            return False
        endpoints = []
        for name in names:
            with suppress(ValueError):  # another program may have created the node
                endpoints.append(Endpoint.parse(name))
        self.all = endpoints
        return True


class Owners:
    """Addresses of the stores that own containers: a container's node holds its owner's address. A client sent to a
    former owner gets WrongHost.
    """

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
