"""The processes of a cluster as the coordination service knows them: the leader, all processes, owners of containers.

The nodes are watched, so lookups cost nothing: answers reflect the last read from the service, every change is read at
once, and after the end of a session nothing is known until the next session has read the nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from segstore.server.coordination import (
    CONTAINERS,
    BadVersion,
    CoordinationSession,
    NodeExists,
    NoNode,
    container_path,
    follow,
)
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

CONTROLLER: Final = "/segstore/controller"
_PRESENT: Final = "/segstore/controllers"


class Candidate:
    """One process in the election: one process at a time holds a node, with its address, and acts for all processes.

    A process is notified when it becomes the leader, and when it loses the lead: its session ends, or another process
    takes over with a later epoch (as for containers). Invariant: `lead` and `resign` are called alternately and never
    overlap.

    Attributes: leads, whether it is the leader; leader, the address of another leader, if known.
    """

    def __init__(
        self,
        where: Endpoint,
        lead: Callable[[], Awaitable[None]],
        resign: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        *,
        stale_node: str,
    ) -> None:
        """where: how others find this process. on_change: called when the leader is another. stale_node: as in
        `OwnershipSettings`.
        """
        self.leads = False
        self.leader: Endpoint | None = None
        self._on_change = on_change
        self._data = str(where).encode()
        self._lead = lead
        self._resign = resign
        self._replace = stale_node == "replace"
        self._wake_up = asyncio.Event()
        self._lost = False

    def lost(self) -> None:
        """Reports that another process has taken over: this one resigns and reads the node."""
        self._lost = True
        self._wake_up.set()

    async def run(self, session: CoordinationSession) -> None:
        """Takes part in the election until the session ends. Raises the errors of `lead`, except retryable errors."""
        try:
            await follow(partial(self._look, session), "the leader is unknown")
        finally:
            self._know(None)
            await self._stop()

    def _know(self, leader: Endpoint | None) -> None:
        if leader != self.leader:
            self.leader = leader
            self._on_change()

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        """Acts on the node's current state; returns False if it must be read again at once."""
        self._wake_up = changed
        if self._lost:
            await self._stop()
        node = await session.get(CONTROLLER, changed.set)
        if node is None:
            self._know(None)
            await self._stop()
            try:
                await session.create(CONTROLLER, self._data, ephemeral=True)
            except NodeExists:
                log.debug("another was first to lead")
            return False
        if node.owner == session.session_id:
            if not self.leads:
                self._know(None)
                await self._lead()
                self.leads = True
            return True
        await self._stop()
        if node.data == self._data:  # ours, of an older session
            self._know(None)
            if self._replace:
                try:
                    await session.delete(CONTROLLER, node.version)
                except (NoNode, BadVersion):
                    log.debug("the stale node was gone before it was deleted")
                return False
            return True
        try:
            self._know(Endpoint.parse(node.data.decode()))
        except ValueError as error:
            log.warning("node %s does not name a leader: %s", CONTROLLER, error)
            self._know(None)
        return True

    async def _stop(self) -> None:
        self._lost = False
        if self.leads:
            self.leads = False
            await self._resign()


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
