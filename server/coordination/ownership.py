"""Containers owned by one store through its coordination session; lost and acquired again with the session.

For each container, one task reads the container's node, acts, and waits for the node to change (seed 57.9):

- no node: create it, at once if the container was ours, else when it is our turn;
- ours in this session: serve the container;
- ours of an older session: wait until it is gone, or replace it, then take the container;
- another store's: unload the container at once (seed 57.4).

If a container's epoch has not changed since this store last served it, it is served from memory; else it is opened,
which fences all older owners. When the session is lost, nothing is served until the nodes are owned again: requests are
answered with WrongHost. While the session is suspended the store continues, because the fence does not depend on it.

A container's node without a session is left alone and logged. A container that cannot be opened is not owned, and each
store that tried checks periodically whether it was repaired. A store that can open no container shuts down.

Invariants: a container is served only between its opening and the next opening's fence; at most one task works on a
container; an unexpected error ends the store, so that it is never a partial owner (seed 57.5).
Follows `OwnershipCache` and `ZookeeperSessionExpiredHandler` (Pulsar, change 6347).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final

from segstore.server.coordination import errors
from segstore.server.coordination.placement import SHOWN_BYTES, LoadReport, LoadReports, SameName, surplus, turn
from segstore.server.coordination.policy import OwnershipSettings, cancel_and_wait, follow, new_session
from segstore.server.coordination.storage import ContainerRefused, ContainerStorage
from segstore.server.coordination.types import CoordinationSession, Coordinator, SessionState
from segstore.server.durable import DataError
from segstore.server.store import Container, SegmentStore

log = logging.getLogger(__name__)

CONTAINERS: Final = "/segstore/containers"

_REPAIR_LOOK_S: Final = 2.0
"""Interval between checks of a refused container."""


def container_path(container_id: int) -> str:
    """Returns the node whose session owns a container."""
    return f"{CONTAINERS}/{container_id}"


class _Opening:
    """This store's opening of a container: its epoch, and its state while it is not served."""

    def __init__(self) -> None:
        self.epoch = 0
        self.container: Container | None = None
        self.fenced = False


class ContainerOwnership:
    """Owns containers for one store, from `start` to `stop` or to its shutdown.

    Attributes:
        refused: the containers that this store cannot open, with the reasons.
        session: the current session; None before the start and after the end.
        shutdown_reason: why the store shuts down; None while it runs.
    """

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        storage: ContainerStorage,
        store: SegmentStore,
        load: Callable[[], LoadReport],
        settings: OwnershipSettings,
        *,
        random: Random | None = None,
        released: Callable[[], None] = lambda: None,
        on_shutdown: Callable[[str], None] = lambda _: None,
    ) -> None:
        """name: of the store, unique in the cluster. load: returns its load. released: called after it has released a
        container. on_shutdown: called once, with the reason, when the store must shut down.
        """
        self.name = name
        self.refused: dict[int, str] = {}
        self.session: CoordinationSession | None = None
        self.shutdown_reason: str | None = None
        self._coordinator = coordinator
        self._storage = storage
        self._store = store
        self._count = store.container_count
        self._settings = settings
        self._random = random or Random()
        self._released = released
        self._on_shutdown = on_shutdown
        self._openings: dict[int, _Opening] = {}
        self._wanted: set[int] = set()  # the unopened containers that were requested
        self._had: set[int] = set()  # containers owned when the last session ended
        self._leaving: set[int] = set()
        self._changed = asyncio.Event()
        self._wake_ups: dict[int, asyncio.Event] = {}
        self._preferred: frozenset[int] = frozenset()
        self._reports = LoadReports(name, load, settings, self._random, self._rebalance)
        self._ours: set[int] = set()  # nodes that this session created and this store has not deleted
        self._replaced: set[tuple[int, int]] = set()  # deleted stale nodes: container, session
        self._logged: set[str] = set()
        self._main: asyncio.Task[None] | None = None

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self, preferred: Iterable[int] = ()) -> None:
        """Opens a session and starts to acquire containers: the `preferred` at once, other containers in turn.

        Raises Unreachable.
        """
        self._preferred = frozenset(preferred)
        self.session = session = await self._coordinator.connect()
        self._main = asyncio.create_task(self._run(session), name=f"ownership of {self.name}")

    async def stop(self) -> None:
        """Stops serving and closes the session, so that others can take over at once. Can be called twice."""
        main, self._main = self._main, None
        await cancel_and_wait(main)
        self._hold_all()
        session, self.session = self.session, None
        if session is not None:
            await session.aclose()

    def owns(self, container_id: int) -> bool:
        return container_id in self._owned

    def leave(self, container_id: int) -> None:
        """Takes a container only in turn."""
        self._preferred -= {container_id}

    def prefer(self, container_id: int) -> None:
        """Takes a container as soon as it is unowned."""
        self._preferred |= {container_id}
        self._read_again(container_id)

    @property
    def _owned(self) -> set[int]:
        """The containers served, or to be opened on their first use."""
        return {*self._store.containers, *self._store.unopened}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; it is checked after every change."""
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def give_up(self, container_id: int) -> None:
        """Gives up a container, so that another store can take it."""
        self._leaving.add(container_id)
        self._read_again(container_id)

    async def _run(self, session: CoordinationSession) -> None:
        while True:
            reason = await self._live(session)
            self._hold_all()
            await session.aclose()
            if reason is not None:
                break
            expired = "its coordination session has expired" + (session.why and f": {session.why}")
            log.warning("store %s: %s", self.name, expired)
            try:
                new = await new_session(self._coordinator, self._settings, self._random)
            except errors.Unreachable as error:
                reason = f"{expired} and there is no new one: {error}"
                break
            if new is None:
                reason = expired
                break
            session = new
            self._preferred = frozenset()
        self.session = None
        self.shutdown_reason = reason
        self._notify()
        log.error("store %s shuts down: %s", self.name, reason)
        self._on_shutdown(reason)

    async def _live(self, session: CoordinationSession) -> str | None:
        """Works with one session until it ends; returns None, or the reason to shut down the store."""
        self.session = session
        ended = asyncio.Event()

        def on_change(state: SessionState) -> None:
            if state.is_over:
                self._hold_all()
                ended.set()
            elif state is SessionState.SUSPENDED:
                log.warning(
                    "store %s: the coordination service does not answer; it serves what it has until another opens it",
                    self.name,
                )
            else:
                log.info("store %s: the coordination service answers again", self.name)
                for poke in self._wake_ups.values():
                    poke.set()
            self._notify()

        session.on_change(on_change)
        if session.state is SessionState.LOST:
            ended.set()
        self._notify()
        self._leaving.clear()
        self._ours.clear()
        self._replaced.clear()
        tasks = [asyncio.create_task(self._reports.run(session), name=f"load reports of {self.name}")]
        for container_id in range(self._count):
            name = f"ownership of container {container_id} by {self.name}"
            tasks.append(asyncio.create_task(self._keep(session, container_id), name=name))
        over = asyncio.create_task(ended.wait(), name=f"session of {self.name}")
        try:
            waiting: set[asyncio.Task[Any]] = {over, *tasks}
            while not ended.is_set() and len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = None if task.cancelled() else task.exception()
                    if error is not None:
                        foreseen = isinstance(error, errors.CoordinationError | DataError)
                        log.error("store %s: owning containers failed", self.name, exc_info=None if foreseen else error)
                        return f"owning its containers failed: {error if foreseen else repr(error)}"
            return None
        finally:
            for task in (over, *tasks):
                task.cancel()
            await asyncio.gather(over, *tasks, return_exceptions=True)
            self._wake_ups.clear()

    # --- one container ----------------------------------------------------------------------------------------------

    async def _keep(self, session: CoordinationSession, container_id: int) -> None:
        """Reads the container's node, acts, waits; ends with the session."""

        def look(changed: asyncio.Event) -> Coroutine[Any, Any, bool]:
            self._wake_ups[container_id] = changed
            return self._look(session, container_id, changed)

        await follow(look, f"store {self.name}: container {container_id}", self._random)

    async def _look(self, session: CoordinationSession, container_id: int, changed: asyncio.Event) -> bool:
        """Acts on the node's current state; returns False if it must be read again at once."""
        path = container_path(container_id)
        node = await session.get(path, changed.set)
        if node is None:
            self._stop_serving(container_id)
            if container_id in self.refused and await self._storage.refused(container_id):
                with suppress(TimeoutError):  # it may have been repaired
                    async with asyncio.timeout(_REPAIR_LOOK_S):
                        await changed.wait()
                return False
            await self._take(session, container_id, changed)
            return False
        if node.owner == session.session_id:
            return await self._look_at_own(session, container_id, node.version)
        if node.data == self.name.encode():
            if container_id in self._ours or (container_id, node.owner) in self._replaced:
                raise SameName(self.name, path)  # that session is alive: it has just created a node
            if self._settings.stale_node == "replace":
                await self._delete(session, path, node.version)
                self._replaced.add((container_id, node.owner))
                return False
            return True
        if node.owner == 0 and path not in self._logged:
            self._logged.add(path)
            held = node.data[:SHOWN_BYTES]
            log.error(
                "store %s: container %d cannot be owned: node %s belongs to no session and holds %r; delete it",
                self.name,
                container_id,
                path,
                held,
            )
        self._unload(container_id)
        if container_id in self.refused and not await self._storage.refused(container_id):
            del self.refused[container_id]  # otherwise the other store may only be trying to open it
        return True

    async def _look_at_own(self, session: CoordinationSession, container_id: int, version: int) -> bool:
        """Serves a container that this store owns in ZooKeeper, or gives it up; returns as `_look`."""
        path = container_path(container_id)
        self._ours.add(container_id)
        if container_id in self._leaving:
            self._ours.discard(container_id)
            self._leaving.discard(container_id)
            self._preferred -= {container_id}
            self._unload(container_id)
            await self._delete(session, path, version)
            await asyncio.sleep(self._settings.takeover_delay_ms / 1000)  # other stores come first
            return False
        try:
            await self._serve(session, container_id)
        except ContainerRefused as error:
            self._refuse(container_id, str(error))
            self._ours.discard(container_id)
            await self._delete(session, path, version)
            return False
        self.refused.pop(container_id, None)
        return container_id not in self._leaving  # it may have been given up meanwhile

    def _refuse(self, container_id: int, why: str) -> None:
        if self.refused.get(container_id) != why:
            log.error("store %s: %s; it has no owner until then, the others are served", self.name, why)
        self.refused[container_id] = why
        self._unload(container_id)
        self._preferred -= {container_id}
        if len(self.refused) == self._count:
            raise errors.CoordinationError(why if self._count == 1 else f"no container can be opened; {why}")

    async def _take(self, session: CoordinationSession, container_id: int, changed: asyncio.Event) -> None:
        """Creates the node: at once if the container was ours, else in turn if it is still unowned."""
        if container_id not in self._preferred and container_id not in self._had:
            delay_ms = self._settings.takeover_delay_ms * (1 + await self._turn(session, container_id))
            with suppress(TimeoutError):  # it is still unowned
                async with asyncio.timeout(delay_ms / 1000):
                    await changed.wait()
                return
        try:
            await session.create(container_path(container_id), self.name.encode(), ephemeral=True)
        except errors.NodeExists:
            return
        self._ours.add(container_id)

    async def _turn(self, session: CoordinationSession, container_id: int) -> int:
        owned = set(await session.children(CONTAINERS))
        unowned = [number for number in range(self._count) if str(number) not in owned]
        return turn(self.name, container_id, unowned, await self._reports.read(session))

    @staticmethod
    async def _delete(session: CoordinationSession, path: str, version: int) -> None:
        try:
            await session.delete(path, version)
        except (errors.NoNode, errors.BadVersion):
            return  # the caller reads it again

    async def _serve(self, session: CoordinationSession, container_id: int) -> None:
        """Serves a container that we own: from memory, or opened now, or opened on first use."""
        if container_id in self._store.containers:
            return
        opening = self._openings.get(container_id)
        if opening is not None:
            epoch = await self._storage.epoch(container_id)
            if epoch != opening.epoch:
                self._openings.pop(container_id, None)
                opening = None
        if opening is None:
            lazily = container_id in self._had and not self._settings.preload and container_id not in self._wanted
            if lazily:
                if container_id not in self._store.unopened:
                    session.check()
                    self._store.unopened[container_id] = lambda: self._want(container_id)
                    self._notify()
                return
            opening = await self._open(container_id)
        session.check()
        if opening.fenced:
            return
        self._store.unopened.pop(container_id, None)
        self._wanted.discard(container_id)
        self._had.discard(container_id)
        container, opening.container = opening.container, None
        self._store.own(container_id, container)
        self._notify()

    async def _open(self, container_id: int) -> _Opening:
        opening = _Opening()

        def fenced() -> Container | None:
            opening.fenced = True
            if self._openings.get(container_id) is opening:
                self._stop_serving(container_id)
                del self._openings[container_id]
            container, opening.container = opening.container, None
            self._read_again(container_id)
            return container

        self._openings[container_id] = opening
        try:
            opening.epoch, opening.container = await self._storage.open(container_id, fenced)
        except BaseException:
            if self._openings.get(container_id) is opening:  # else it was dropped meanwhile
                del self._openings[container_id]
            raise
        return opening

    def _want(self, container_id: int) -> None:
        self._wanted.add(container_id)
        self._read_again(container_id)

    def _read_again(self, container_id: int) -> None:
        """Has the container's node read again, if there is a session."""
        if (poke := self._wake_ups.get(container_id)) is not None:
            poke.set()

    def _stop_serving(self, container_id: int) -> None:
        """Stops serving a container; its state is kept."""
        self._store.unopened.pop(container_id, None)
        if container_id in self._store.containers:
            container = self._store.release(container_id)
            self._released()
            if (opening := self._openings.get(container_id)) is not None:
                opening.container = container
        self._notify()

    def _unload(self, container_id: int) -> None:
        """Stops serving a container and returns its state to the storage, for another owner."""
        self._stop_serving(container_id)
        self._had.discard(container_id)
        opening = self._openings.pop(container_id, None)
        if opening is not None and opening.container is not None:
            self._storage.close(container_id, opening.epoch, opening.container)

    def _hold_all(self) -> None:
        """Stops serving all containers after the end of a session; their state is kept for the next session."""
        owned = self._owned
        self._had |= owned
        for container_id in owned:
            self._stop_serving(container_id)

    def _rebalance(self, stores: int) -> None:
        """Gives up containers above this store's share."""
        owned = sorted(self._owned)
        above = surplus(len(owned), self._count, stores)
        for container_id in owned[len(owned) - above :]:
            self.give_up(container_id)
