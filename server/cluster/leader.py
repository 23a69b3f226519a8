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
from contextlib import AsyncExitStack
from typing import NamedTuple

from segstore.server.cluster.node import controller_state
from segstore.server.cluster.settings import ClusterSettings
from segstore.server.controller import Controller
from segstore.server.controller.api import Authority, ControllerServer, Permission
from segstore.server.controller.state import operations as op
from segstore.server.coordination import Configuration, Configured, Disconnected, configured
from segstore.server.durable import MIN_MEMORY_BYTES, ContainerEpoch, Durability, Fenced, JournalFailed
from segstore.server.segments import RemoteSegments
from segstore.server.shared_folder import Owners, SharedFolder, result_of
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)


class Leading(NamedTuple):
    """An open controller. calls: serves its API. segments: sends its requests to the stores."""

    epoch: ContainerEpoch
    durability: Durability
    controller: Controller
    calls: ControllerServer
    segments: RemoteSegments


class ControllerLeader:
    """Opens the controller when this process is elected, and closes it when it resigns.

    `leading` is the open controller; None while another process leads.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        folder: SharedFolder,
        owners: Owners,
        configuration: Configuration,
        authority: Authority,
        servers: Callable[[], Sequence[Endpoint]],
        refused: Mapping[int, str],
        *,
        on_failure: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        """owners: the owners of all containers. servers: returns the controller endpoints of all processes. refused:
        the containers that cannot be opened, and why. on_failure: called with one sentence if the controller's state
        can no longer be written while this process leads. on_lost: called if another process turns out to lead.
        """
        self.leading: Leading | None = None
        self._on_failure = on_failure
        self._on_lost = on_lost
        self._settings = settings
        self._folder = folder
        self._owners = owners
        self._configuration = configuration
        self._authority = authority
        self._servers = servers
        self._refused = refused
        self._opening: asyncio.Task[tuple[ContainerEpoch, Durability]] | None = None

    def _open(self) -> tuple[ContainerEpoch, Durability]:
        epoch, durability = self._folder.open(self._folder.controller, (), MIN_MEMORY_BYTES)
        self._folder.recover(epoch, durability, {})
        return epoch, durability

    async def lead(self) -> Leading:
        """Opens the controller. Raises Disconnected if another process is faster, DataError for the folder."""
        await self._opened()
        opening = self._opening = asyncio.create_task(asyncio.to_thread(self._open), name="opening the controller")
        try:
            epoch, durability = await result_of(opening, lambda opened: opened[1].abandon())
        except Fenced as error:
            raise Disconnected(str(error)) from error
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
                    self._on_lost()
                raise JournalFailed(str(Fenced(epoch.folder, epoch.number)))

        segments = RemoteSegments(
            self._owners,
            store.containers,
            token=lambda stream: authority.token(stream, Permission.READ_UPDATE),
            wire_version=store.wire_version,
            tls=None if self._settings.tls is None else self._settings.tls.trusting_context(),
            refused=self._refused,
        )
        controller = Controller(segments, self._settings.controller, journal=journal, state=state)
        calls = ControllerServer.behind(controller, authority, self._servers, settled)
        leading = self.leading = Leading(epoch, durability, controller, calls, segments)

        def to_publish() -> Configured | None:
            return None if epoch.is_over else configured(state)

        self._configuration.publish(to_publish)
        log.info("this process leads the controller, epoch %d", epoch.number)
        return leading

    def _failed(self, epoch: ContainerEpoch, why: str) -> None:
        if self.leading is None or self.leading.epoch is not epoch:
            return
        if epoch.is_known_over:
            self._on_lost()
        else:
            self._on_failure(why)

    async def _opened(self) -> None:
        """Waits until no opening is in progress."""
        while self._opening is not None and not self._opening.done():
            await asyncio.wait({self._opening})

    async def resign(self) -> None:
        """Closes the controller, if it is open. Waits for a cancelled opening to end."""
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
