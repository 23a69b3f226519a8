"""Containers owned by one store through its coordination session; lost and acquired again with the session.

One task a container looks at its node, acts, and waits for the node to change (seed 57.9):

- no node: take it, at once if it was ours, else when it is our turn;
- ours in this session: serve it;
- ours of an older session: wait until it is gone, or replace it, then take it;
- another's: unload it at once (seed 57.4).

A container that is served again under the epoch it was left in, nobody having opened it in between, goes on from
memory; else it is opened, which fences all older owners. When the session is lost nothing is served until its nodes are
owned again: requests hear WrongHost. While it is suspended the store goes on, for the fence does not need the session.

A container's node that no session holds is left alone, and this is said. So is a container that cannot be opened as it
is: nobody owns it, and each store that tried looks now and then whether somebody has mended it. A store that can open
none of them ends.

Invariants: a container is served only between an opening and the next one's fence; at most one task is at work on a
container; an error that nobody foresaw ends the store rather than leave it half an owner (seed 57.5).
Follows `OwnershipCache` and `ZookeeperSessionExpiredHandler` (Pulsar, change 6347).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol

from segstore.server.coordination.placement import LoadReport, surplus, turn
from segstore.server.coordination.policy import OwnershipSettings, SessionExpiredPolicy, backoff_s, policy_of
from segstore.server.coordination.reports import SHOWN_BYTES, LoadReports, SameName
from segstore.server.coordination.storage import ContainerRefused, ContainerStorage
from segstore.server.coordination.types import (
    BadVersion,
    CoordinationError,
    CoordinationSession,
    Coordinator,
    Disconnected,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
    Unreachable,
)
from segstore.server.durable import DataError
from segstore.server.store import Container

log = logging.getLogger(__name__)

CONTAINERS: Final = "/segstore/containers"

_MENDED_S: Final = 2.0
"""Between looks at a container that was refused."""


def container_path(container_id: int) -> str:
    """The node whose session owns a container."""
    return f"{CONTAINERS}/{container_id}"


class Hosted(Protocol):
    """The store whose containers these are."""

    def own(self, container_id: int, container: Container | None) -> None:
        """Serve a container: the one given, or an empty one."""

    def own_unopened(self, container_id: int, first_use: Callable[[], None]) -> None:
        """Own a container whose state is not here yet; `first_use` is called when somebody asks for it."""

    def release(self, container_id: int) -> Container | None:
        """Serve a container no more; None if it was not opened. KeyError if it is not owned."""

    def load(self) -> LoadReport:
        """What there is to do."""


class _Opening:
    """A container as this store has opened it: its epoch, and its state while it is not served."""

    __slots__ = ("container", "epoch", "fenced")

    def __init__(self) -> None:
        self.epoch = 0
        self.container: Container | None = None
        self.fenced = False


class ContainerOwnership:
    """Owns containers for one store, from `start` to `stop` or to its shutdown.

    Attributes:
        name: of the store; its own in the cluster.
        served: the containers that are served now.
        refused: those that this store cannot open as they are, and why.
        session: the one it has; None before the start and after the end.
        shutdown_reason: why the store is to end; None while it is not.
    """

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        storage: ContainerStorage,
        hosted: Hosted,
        containers: int,
        settings: OwnershipSettings,
        *,
        random: Random | None = None,
        on_shutdown: Callable[[str], None] = lambda _: None,
        drop_caches: Callable[[], None] = lambda: None,
    ) -> None:
        """on_shutdown: called once, with the reason, when the store is to end. drop_caches: after each new session."""
        self.name = name
        self.served: set[int] = set()
        self.refused: dict[int, str] = {}
        self.session: CoordinationSession | None = None
        self.shutdown_reason: str | None = None
        self._coordinator = coordinator
        self._storage = storage
        self._hosted = hosted
        self._count = containers
        self._settings = settings
        self._random = random or Random()
        self._policy: SessionExpiredPolicy = policy_of(settings, self._random)
        self._on_shutdown = on_shutdown
        self._drop_caches = drop_caches
        self._openings: dict[int, _Opening] = {}
        self._unopened: set[int] = set()  # owned, to be opened on their first use
        self._wanted: set[int] = set()  # of those, the ones that were asked for
        self._had: set[int] = set()  # what was ours when the last session ended
        self._leaving: set[int] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._pokes: dict[int, asyncio.Event] = {}
        self._preferred: frozenset[int] = frozenset()
        self._reports = LoadReports(name, hosted, settings, self._random, self._rebalance)
        self._others = asyncio.Event()
        self._ours: set[int] = set()  # made in this session, and not deleted by us
        self._replaced: set[tuple[int, int]] = set()  # nodes that were deleted: their containers, their sessions
        self._said: set[str] = set()
        self._main: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, preferred: Iterable[int] = (), *, others: bool = True) -> None:
        """Opens a session and begins to own; `preferred` are taken at once. Raises Unreachable.

        others: take also what nobody has, when the turn comes; without, from `take_others` on.
        """
        self._preferred = frozenset(preferred)
        if others:
            self._others.set()
        self.session = session = await self._coordinator.connect()
        self._main = asyncio.create_task(self._run(session), name=f"ownership of {self.name}")

    async def stop(self) -> None:
        """Serves nothing any more and ends the session, so that others can take over at once. May be called twice."""
        main, self._main = self._main, None
        if main is not None:
            main.cancel()
            await asyncio.wait([main])
            if not main.cancelled() and (error := main.exception()) is not None:
                raise error
        self._hold_all()
        session, self.session = self.session, None
        if session is not None:
            await session.aclose()

    def owns(self, container_id: int) -> bool:
        """Whether this store is the one to ask."""
        return container_id in self.served or container_id in self._unopened

    @property
    def ended(self) -> bool:
        """Whether it was stopped, or shuts its store down: it will have no session any more."""
        return self._main is None or self.shutdown_reason is not None

    def take_others(self) -> None:
        """Take from now on what nobody has, when the turn comes."""
        self._others.set()

    def leave(self, container_id: int) -> None:
        """Take a container only when the turn comes."""
        self._preferred -= {container_id}

    def prefer(self, container_id: int) -> None:
        """Take a container as soon as nobody has it."""
        self._preferred |= {container_id}
        if (poke := self._pokes.get(container_id)) is not None:
            poke.set()

    @property
    def epochs(self) -> dict[int, int]:
        """The epoch of each container that is served."""
        return {each: self._openings[each].epoch for each in self.served}

    def lost(self, container_id: int) -> None:
        """The container's journal has refused this store, so another has opened it: drop it and look at its node."""
        self._stop_serving(container_id)
        self._openings.pop(container_id, None)
        self._want(container_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds; it is looked at whenever something has changed."""
        while not condition():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed

    def _say(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def give_up(self, container_id: int) -> None:
        """Let another store have a container, if one wants it."""
        self._leaving.add(container_id)
        if (poke := self._pokes.get(container_id)) is not None:
            poke.set()

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
                new = await self._policy.on_expired(self._coordinator)
            except Unreachable as error:
                reason = f"{expired} and there is no new one: {error}"
                break
            if new is None:
                reason = expired
                break
            session = new
            self._preferred = frozenset()
        self.session = None
        self.shutdown_reason = reason
        self._say()
        log.error("store %s shuts down: %s", self.name, reason)
        self._on_shutdown(reason)

    async def _live(self, session: CoordinationSession) -> str | None:
        """One session, to its end: None, or why the store is to end."""
        self.session = session
        ended = asyncio.Event()

        def on_change(state: SessionState) -> None:
            if state in (SessionState.LOST, SessionState.CLOSED):
                self._hold_all()
                ended.set()
            elif state is SessionState.SUSPENDED:
                log.warning(
                    "store %s: the coordination service does not answer; it serves what it has until another opens it",
                    self.name,
                )
            else:
                log.info("store %s: the coordination service answers again", self.name)
                for poke in self._pokes.values():
                    poke.set()
            self._say()

        session.on_change(on_change)
        if session.state is SessionState.LOST:
            ended.set()
        self._drop_caches()
        self._say()
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
                        foreseen = isinstance(error, CoordinationError | DataError)
                        log.error("store %s: owning containers failed", self.name, exc_info=None if foreseen else error)
                        return f"owning its containers failed: {error if foreseen else repr(error)}"
            return None
        finally:
            for task in (over, *tasks):
                task.cancel()
            await asyncio.gather(over, *tasks, return_exceptions=True)
            self._pokes.clear()

    # --- one container ----------------------------------------------------------------------------------------------

    async def _keep(self, session: CoordinationSession, container_id: int) -> None:
        """Looks at the container's node, acts, waits; ends with the session."""
        failed = 0
        while True:
            changed = self._pokes[container_id] = asyncio.Event()
            try:
                if await self._look(session, container_id, changed):
                    failed = 0
                    await changed.wait()
                continue
            except SessionExpired:
                return
            except Disconnected as error:
                log.info("store %s: container %d: %s; asking again", self.name, container_id, error)
            await self._back_off(failed, changed)
            failed += 1

    async def _back_off(self, failed: int, changed: asyncio.Event) -> None:
        """A pause, which ends early when there is a connection again."""
        changed.clear()
        try:
            async with asyncio.timeout(backoff_s(failed, self._random)):
                await changed.wait()
        except TimeoutError:
            return

    async def _look(self, session: CoordinationSession, container_id: int, changed: asyncio.Event) -> bool:
        """Acts on the node as it is; False: it is to be looked at again at once."""
        path = container_path(container_id)
        node = await session.get(path, changed.set)
        if node is None:
            self._stop_serving(container_id)
            if container_id in self.refused and await self._storage.refused(container_id):
                with suppress(TimeoutError):  # it may have been mended
                    async with asyncio.timeout(_MENDED_S):
                        await changed.wait()
                return False
            await self._take(session, container_id, changed)
            return False
        if node.owner == session.session_id:
            self._ours.add(container_id)
            if container_id in self._leaving:
                self._ours.discard(container_id)
                self._leaving.discard(container_id)
                self._preferred -= {container_id}
                self._unload(container_id)
                await self._delete(session, path, node.version)
                await asyncio.sleep(self._settings.takeover_delay_ms / 1000)  # another's turn comes first
                return False
            try:
                await self._serve(session, container_id)
            except ContainerRefused as error:
                self._refuse(container_id, str(error))
                self._ours.discard(container_id)
                await self._delete(session, path, node.version)
                return False
            self.refused.pop(container_id, None)
            return container_id not in self._leaving  # it may have been given up meanwhile
        if node.data == self.name.encode():
            if container_id in self._ours or (container_id, node.owner) in self._replaced:
                raise SameName(self.name, path)  # that session is alive, or it would not have made a node
            if self._settings.stale_node == "replace":
                await self._delete(session, path, node.version)
                self._replaced.add((container_id, node.owner))
                return False
            return True
        if node.owner == 0 and path not in self._said:
            self._said.add(path)
            held = node.data[:SHOWN_BYTES]
            log.error(
                "store %s: container %d cannot be owned: node %s is no session's and holds %r; delete it",
                self.name,
                container_id,
                path,
                held,
            )
        self._unload(container_id)
        if container_id in self.refused and not await self._storage.refused(container_id):
            del self.refused[container_id]  # else it may be that the other one only tries
        return True

    def _refuse(self, container_id: int, why: str) -> None:
        if self.refused.get(container_id) != why:
            log.error("store %s: %s; it is nobody's until then, the others are served", self.name, why)
        self.refused[container_id] = why
        self._unload(container_id)
        self._preferred -= {container_id}
        if len(self.refused) == self._count:
            raise CoordinationError(why if self._count == 1 else f"no container can be opened; {why}")
        self._say()

    async def _take(self, session: CoordinationSession, container_id: int, changed: asyncio.Event) -> None:
        """Makes the node: at once if the container was ours, else when our turn has come and it is still nobody's."""
        if container_id not in self._preferred and container_id not in self._had:
            await self._others.wait()
            delay_ms = self._settings.takeover_delay_ms * (1 + await self._turn(session, container_id))
            with suppress(TimeoutError):  # nobody took it
                async with asyncio.timeout(delay_ms / 1000):
                    await changed.wait()
                return
        try:
            await session.create(container_path(container_id), self.name.encode(), ephemeral=True)
        except NodeExists:
            return
        self._ours.add(container_id)

    async def _turn(self, session: CoordinationSession, container_id: int) -> int:
        owned = set(await session.children(CONTAINERS))
        unowned = [each for each in range(self._count) if str(each) not in owned]
        return turn(self.name, container_id, unowned, await self._reports.read(session))

    @staticmethod
    async def _delete(session: CoordinationSession, path: str, version: int) -> None:
        try:
            await session.delete(path, version)
        except (NoNode, BadVersion):
            return  # it is looked at again

    async def _serve(self, session: CoordinationSession, container_id: int) -> None:
        """Serves what the node says is ours: from memory, or opened now, or when somebody asks for it."""
        if container_id in self.served:
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
                if container_id not in self._unopened:
                    self._check(session)
                    self._unopened.add(container_id)
                    self._hosted.own_unopened(container_id, lambda: self._want(container_id))
                    self._say()
                return
            opening = await self._open(container_id)
        self._check(session)
        if opening.fenced:
            return
        if container_id in self._unopened:
            self._unopened.discard(container_id)
            self._hosted.release(container_id)
        self._wanted.discard(container_id)
        self._had.discard(container_id)
        container, opening.container = opening.container, None
        self.served.add(container_id)
        self._hosted.own(container_id, container)
        self._say()

    async def _open(self, container_id: int) -> _Opening:
        opening = _Opening()

        def fenced() -> Container | None:
            opening.fenced = True
            if self._openings.get(container_id) is opening:
                self._stop_serving(container_id)
                del self._openings[container_id]
            container, opening.container = opening.container, None
            return container

        self._openings[container_id] = opening
        try:
            opening.epoch, opening.container = await self._storage.open(container_id, fenced)
        except BaseException:
            if self._openings.get(container_id) is opening:  # else it was dropped meanwhile
                del self._openings[container_id]
            raise
        return opening

    @staticmethod
    def _check(session: CoordinationSession) -> None:
        if session.state in (SessionState.LOST, SessionState.CLOSED):
            raise SessionExpired(f"session {session.session_id:#x} is over")

    def _want(self, container_id: int) -> None:
        self._wanted.add(container_id)
        if (poke := self._pokes.get(container_id)) is not None:
            poke.set()

    def _stop_serving(self, container_id: int) -> None:
        """Nothing is answered for the container any more; its state is kept."""
        if container_id in self._unopened:
            self._unopened.discard(container_id)
            self._hosted.release(container_id)
        if container_id in self.served:
            self.served.discard(container_id)
            container = self._hosted.release(container_id)
            if (opening := self._openings.get(container_id)) is not None:
                opening.container = container
        self._say()

    def _unload(self, container_id: int) -> None:
        """The container is another's, or to be: its state is given back."""
        self._stop_serving(container_id)
        self._had.discard(container_id)
        opening = self._openings.pop(container_id, None)
        if opening is not None and opening.container is not None:
            self._storage.close(container_id, opening.epoch, opening.container)

    def _hold_all(self) -> None:
        """The session is over: nothing is served, all is kept for being owned again."""
        self._had |= self.served | self._unopened
        for container_id in self.served | self._unopened:
            self._stop_serving(container_id)

    def _rebalance(self, stores: int) -> None:
        """Gives up what others have too little of."""
        owned = sorted(self.served | self._unopened)
        above = surplus(len(owned), self._count, stores)
        for container_id in owned[len(owned) - above :]:
            self.give_up(container_id)
