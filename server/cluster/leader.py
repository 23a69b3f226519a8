"""The controller of a cluster of processes, while this process leads it.

Its state is in the shared folder, opened like a container: the next leader fences this leader. Its requests about
segments go over the wire to the owning stores. It publishes scopes and stream policies to the configuration service.

Invariant: calls are answered here between `lead` and `resign`; `resign` closes everything, and a change that was not
durable by then was never answered. A fenced leader answers nothing and publishes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import NamedTuple

from segstore.server.auth import Permission
from segstore.server.cluster.node import controller_state
from segstore.server.cluster.settings import ClusterSettings
from segstore.server.controller import Controller
from segstore.server.controller.api import Authority, ControllerServer, ForwardingServer
from segstore.server.controller.state import Core
from segstore.server.controller.state import operations as op
from segstore.server.coordination import (
    BadVersion,
    Configuration,
    Configured,
    CoordinationSession,
    Disconnected,
    NodeExists,
    NoNode,
    configured,
    follow,
)
from segstore.server.durable import MIN_MEMORY_BYTES, ContainerEpoch, Durability, Fenced, JournalFailed
from segstore.server.segments import RemoteSegments
from segstore.server.shared_folder import CONTROLLER, Owners, SharedFolder, result_of
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)


class Leading(NamedTuple):
    """An open controller. calls: serves its API. segments: sends its requests to the stores."""

    epoch: ContainerEpoch
    durability: Durability
    calls: ControllerServer
    segments: RemoteSegments


class ControllerLeader:
    """Takes part in the election of the controller's process, and opens the controller while this process leads it.

    One process at a time holds a node, with its address. A process loses the lead when its session ends, or when
    another process takes over with a later epoch (as for containers).

    Attributes:
        leading: the open controller; None while this process does not lead.
        leader: the address of another process that leads, if known.
    """

    def __init__(
        self,
        where: Endpoint,
        front: ForwardingServer,
        settings: ClusterSettings,
        folder: SharedFolder,
        owners: Owners,
        configuration: Configuration,
        authority: Authority,
        servers: Callable[[], Sequence[Endpoint]],
        refused: Mapping[int, str],
        on_failure: Callable[[str], None],
    ) -> None:
        """where: how others find this process. front: its controller port. owners: the owners of all containers.
        servers: returns the controller endpoints of all processes. refused: the containers that cannot be opened, and
        why. on_failure: called with one sentence if the controller's state can no longer be written while this process
        leads.
        """
        self.leading: Leading | None = None
        self.leader: Endpoint | None = None
        self._data = str(where).encode()
        self._front = front
        self._settings = settings
        self._folder = folder
        self._owners = owners
        self._configuration = configuration
        self._authority = authority
        self._servers = servers
        self._refused = refused
        self._on_failure = on_failure
        self._opening: asyncio.Task[tuple[ContainerEpoch, Durability]] | None = None
        self._wake_up = asyncio.Event()
        self._lost = False

    # --- election ---------------------------------------------------------------------------------------------------

    async def run(self, session: CoordinationSession) -> None:
        """Takes part in the election until the session ends. Raises the errors of `lead`, except retryable errors."""
        try:
            await follow(partial(self._look, session), "the leader is unknown")
        finally:
            self._know(None)
            await self.resign()

    def _know(self, leader: Endpoint | None) -> None:
        if leader != self.leader:
            self.leader = leader
            self._front.leader_changed()

    async def _look(self, session: CoordinationSession, changed: asyncio.Event) -> bool:
        """Acts on the node's current state; returns False if it must be read again at once."""
        self._wake_up = changed
        if self._lost:
            await self.resign()
        node = await session.get(CONTROLLER, changed.set)
        if node is None:
            self._know(None)
            await self.resign()
            with suppress(NodeExists):  # another process was first
                await session.create(CONTROLLER, self._data, ephemeral=True)
            return False
        if node.owner == session.session_id:
            if self.leading is None:
                self._know(None)
                await self.lead()
            return True
        await self.resign()
        if node.data == self._data:  # ours, of an older session
            self._know(None)
            if self._settings.ownership.stale_node == "replace":
                with suppress(NoNode, BadVersion):  # it was gone before
                    await session.delete(CONTROLLER, node.version)
                return False
            return True
        try:
            self._know(Endpoint.parse(node.data.decode()))
        except ValueError as error:
            log.warning("node %s does not name a leader: %s", CONTROLLER, error)
            self._know(None)
        return True

    def _overtaken(self) -> None:
        """Another process has taken over: this process resigns and reads the node."""
        self._lost = True
        self._wake_up.set()

    # --- the controller ---------------------------------------------------------------------------------------------

    def _open(self) -> tuple[ContainerEpoch, Durability]:
        return self._folder.open(self._folder.controller, (), MIN_MEMORY_BYTES)

    async def lead(self) -> None:
        """Opens the controller. Raises Disconnected if another process is faster, DataError for the folder."""
        await self._opened()
        opening = self._opening = asyncio.create_task(asyncio.to_thread(self._open), name="opening the controller")
        epoch, durability = await result_of(opening, lambda opened: opened[1].abandon())
        try:
            state = controller_state(durability)
        except BaseException:
            durability.abandon()
            raise
        try:
            await durability.start(lambda why: self._failed(epoch, why))
        except BaseException as error:
            await durability.close()
            if isinstance(error, Exception) and epoch.is_known_over:
                raise Disconnected(str(Fenced(epoch.folder, epoch.number))) from None
            raise
        authority, store = self._authority, self._settings.store

        def journal(operation: op.Operation) -> None:
            durability.controller_journal(op.encode(operation))
            self._configuration.changed_by(operation)

        async def settled() -> None:
            await durability.committer.settled()
            if epoch.is_over:  # the answer may reflect an older state
                if self.leading is not None and self.leading.epoch is epoch:
                    self._overtaken()
                raise JournalFailed(str(Fenced(epoch.folder, epoch.number)))

        segments = RemoteSegments(
            self._owners,
            store.containers,
            token=lambda stream: authority.token(stream, Permission.READ_UPDATE),
            wire_version=store.wire_version,
            tls=None if self._settings.tls is None else self._settings.tls.trusting_context(),
            refused=self._refused,
        )
        controller = Controller(Core(segments, self._settings.controller, journal=journal, state=state))
        calls = ControllerServer(controller, authority, self._servers, settled)
        self.leading = Leading(epoch, durability, calls, segments)

        def to_publish() -> Configured | None:
            return None if epoch.is_over else configured(state)

        self._configuration.publish(to_publish)
        self._front.local = calls
        log.info("this process leads the controller, epoch %d", epoch.number)

    def _failed(self, epoch: ContainerEpoch, why: str) -> None:
        if self.leading is None or self.leading.epoch is not epoch:
            return
        if epoch.is_known_over:
            self._overtaken()
        else:
            self._on_failure(why)

    async def _opened(self) -> None:
        """Waits until no opening is in progress."""
        while self._opening is not None and not self._opening.done():
            await asyncio.wait({self._opening})

    async def resign(self) -> None:
        """Closes the controller, if it is open. Waits for a cancelled opening to end."""
        self._lost, self._front.local = False, None
        leading, self.leading = self.leading, None
        if leading is None:
            await self._opened()
            return
        self._configuration.withdraw()
        async with AsyncExitStack() as ending:
            # Calls still in flight must not wait for changes that will never be durable.
            ending.callback(leading.durability.committer.fail, "another process leads the controller now", logging.INFO)
            ending.push_async_callback(leading.durability.close)
            ending.push_async_callback(leading.segments.aclose)
            ending.push_async_callback(leading.calls.aclose)
