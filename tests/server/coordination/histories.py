"""Random histories of a cluster whose stores lose their sessions, judged.

Stores own containers whose state lies in a log that fences: an opening gives the next epoch, and what an owner of an
older one appends is refused. Nobody tells the old owner, as no shared log does: it goes on from its memory until the
log refuses it. A store may also sleep: it hears nothing of its session, not even that it has expired, and wakes up as
the owner that it was. Writers append numbered events, resend what was not acknowledged, and ask for their last number
first, as clients do; a writer asks a controller that has known the owners for a while, and goes on with the store that
served it last. All of it runs in virtual time from one seed.

Facts of what writers and a reader at the end saw go to the judge (seeds 57.7, 57.8): nothing acknowledged is lost; per
segment and writer the events are in order and there once. The epochs of containers, of which no client hears, are
compared here: no two stores acknowledge in one epoch.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from segstore.server.coordination import InProcessCoordinator, Opened
from segstore.server.coordination.errors import Unreachable
from segstore.server.store import Container, NotOwner, Operation, StoreError, decode, encode
from segstore.wire.blocks import frame_header
from segstore.wire.history import Acked, Fact, Judge, Place, Sent
from segstore.wire.history.facts import Read, SetUp, segment_key
from segstore.wire.names import container_of
from tests.server.coordination.stores import Store
from tests.server.coordination.virtual_time import run
from tests.server.store.journal import Journal

__all__ = ["Log", "NoFence", "play"]

CONTAINERS = 3
SEGMENTS = [f"segment-{number}" for number in range(4)]


class Fenced(NotOwner):
    """The log belongs to a later opening."""


class Log:
    """The logs of all containers (`ContainerStorage`); what was written is there as bytes, whoever wrote it."""

    def __init__(self, random: Random) -> None:
        self.epochs: defaultdict[int, int] = defaultdict(int)
        self.operations: defaultdict[int, list[bytes]] = defaultdict(list)
        self.fenced: dict[tuple[int, int], Callable[[], Container | None]] = {}
        self._random = random

    async def epoch(self, container_id: int) -> int:
        await asyncio.sleep(self._random.random() * 0.05)
        return self.epochs[container_id]

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        await asyncio.sleep(self._random.random() * 0.2)
        self.epochs[container_id] += 1
        epoch = self.epochs[container_id]
        self.fenced[container_id, epoch] = fenced
        container = self._container(container_id, epoch)
        for line in tuple(self.operations[container_id]):
            container.apply(decode(line))
        container.recovered()
        await asyncio.sleep(self._random.random() * 0.2)
        return epoch, container

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        container.clear()

    def _refuses(self, container_id: int, epoch: int) -> bool:
        return epoch < self.epochs[container_id]

    def _container(self, container_id: int, epoch: int) -> Container:
        def write(operation: Operation) -> None:
            if self._refuses(container_id, epoch):
                raise Fenced("", container=container_id)
            self.operations[container_id].append(encode(operation))

        return Container(container_id, journal=Journal(write))

    def recovered(self, container_id: int) -> Container:
        """What the log alone gives."""
        container = Container(container_id)
        for line in self.operations[container_id]:
            container.apply(decode(line))
        return container


class NoFence(Log):
    """A log that takes what an old owner writes: the checker must notice."""

    def _refuses(self, container_id: int, epoch: int) -> bool:
        return False


class _Cluster:
    def __init__(self, seed: int, log_type: type[Log], stores: int, settings: dict[str, Any]) -> None:
        self.random = random = Random(seed)
        self.log = log_type(random)
        self.coordinator = InProcessCoordinator(session_timeout_ms=2_000, delay_s=lambda: random.random() * 0.1)
        policy = random.choice(["reconnect", "reconnect", "shutdown"])
        self.make = lambda number: Store(
            f"store-{number}",
            self.coordinator,
            self.log,
            CONTAINERS,
            seed=random.randrange(2**30),
            **{
                "session_expired_policy": policy,
                "takeover_delay_ms": random.choice([0, 50, 500, 5_000]),
                "stale_node": random.choice(["wait", "replace"]),
                "preload": random.random() < 0.5,
                "load_report_interval_ms": random.choice([500, 5_000]),
                **settings,
            },
        )
        self.stores = [self.make(number) for number in range(stores)]
        self.table: dict[int, Store] = {}
        """The owners as the controller knows them: what was true a while ago."""
        self.owners: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        """The container and its epoch → the stores that acknowledged appends."""
        self.judge = Judge()
        self.facts = self.attempts = 0
        self.over = False

    def fact(self, value: Any, connection: int) -> Place:
        """Takes what a client saw on a connection; returns its place."""
        self.facts += 1
        place = Place("history", 0, self.facts, connection, self.facts)
        self.judge.fact(Fact(segment_key(value.segment), place, value))
        return place

    async def write(self, segment: str, writer: UUID, events: int) -> None:
        """Appends events 0, 1, … each until it is acknowledged."""
        random = self.random
        number = 0
        store: Store | None = None
        while number < events:
            await asyncio.sleep(random.random() * 0.8)
            container_id = container_of(segment, CONTAINERS)
            if store is None or store not in self.stores or random.random() < 0.25:
                store = self._answer(container_id)
            if (first_use := store.first_uses.get(container_id)) is not None:
                first_use()
            try:
                container = store.store.container_for(segment)
                if segment not in container.segments:
                    container.create_segment(segment, now_ms=0)
                last = container.setup_append(segment, writer, now_ms=0)
                self.attempts += 1
                connection, name, length = self.attempts, writer.hex, -1
                place = self.fact(SetUp(segment, name, last, Place("history", 0, 0, 0, 0)), connection)
                if last < number:
                    data = frame_header(8) + number.to_bytes(4) + writer.int.to_bytes(16)[-4:]
                    place = self.fact(Sent(segment, name, number, 1, data), connection)
                    container.append(segment, writer.bytes, ((number, 1, data, 0),), last, 0)
                    length = container.segments[segment].length
            except StoreError:
                self._refused(store, container_id)
                store = None
                continue
            if random.random() < 0.1:
                store = None
                continue  # the reply is lost
            if last < number:
                self.fact(Acked(segment, name, number, length, store.ownership.name, place), connection)
            self.owners[container_id, store.epoch_of(container_id)].add(store.ownership.name)
            number += 1

    def _answer(self, container_id: int) -> Store:
        """Whom to ask; now and then the controller looks again, and now and then a writer asks anyone."""
        known = self.table.get(container_id)
        if known not in self.stores or self.random.random() < 0.5:
            owners = [store for store in self.stores if store.ownership.owns(container_id)]
            known = self.table[container_id] = self.random.choice(owners or self.stores)
        if known is None or self.random.random() < 0.2:
            return self.random.choice(self.stores)
        return known

    async def _sleep(self, store: Store, session: Any, duration_s: float) -> None:
        """A store whose coordination stands still, while what it has in memory goes on answering."""
        coordinator = self.coordinator
        coordinator.cut(session.session_id)
        if self.random.random() < 0.5:
            coordinator.expire(session.session_id)  # the others hear of it at once, it does when it wakes up
        await asyncio.sleep(duration_s)
        coordinator.heal(session)

    def _refused(self, store: Store, container_id: int) -> None:
        """A store that its log has refused knows that it is no owner, and drops what it had."""
        container = store.store.containers.get(container_id)
        if container is not None and self.log.epochs[container_id] != store.epoch_of(container_id):
            self.log.fenced[container_id, store.epoch_of(container_id)]()

    async def disturb(self) -> None:
        """Expiries, cuts that heal or do not, pauses of the service, stores that stop and start, moves."""
        random, coordinator = self.random, self.coordinator
        while not self.over:
            await asyncio.sleep(random.random() * 2)
            number = random.randrange(len(self.stores))
            store = self.stores[number]
            session: Any = store.ownership.session
            match random.randrange(11):
                case 0 if session is not None and session.session_id in coordinator.sessions:
                    coordinator.expire(session.session_id)
                case 1 | 2 | 3 if session is not None and session.session_id in coordinator.sessions:
                    coordinator.cut(session.session_id)
                    await asyncio.sleep(random.random() * 6)
                    coordinator.heal(session)
                case 8 | 9 | 10 if session is not None and session.session_id in coordinator.sessions:
                    await self._sleep(store, session, random.random() * 6)
                case 4:
                    coordinator.pause()
                    await asyncio.sleep(random.random() * 6)
                    coordinator.resume()
                case 5:
                    store.ownership.give_up(random.randrange(CONTAINERS))
                case 6:
                    await store.ownership.stop()
                    await asyncio.sleep(random.random())
                    await self._start(number)
                case _:
                    if store.reasons:
                        await store.ownership.stop()
                        await self._start(number)

    async def _start(self, number: int) -> None:
        while True:
            self.stores[number] = store = self.make(number)
            try:
                await store.ownership.start()
            except Unreachable:
                await asyncio.sleep(0.2)
            else:
                return

    async def run(self, events: int) -> None:
        for store in self.stores:
            await store.ownership.start()
        disturbing = asyncio.create_task(self.disturb())
        writers = [(segment, UUID(int=number + 1)) for segment in SEGMENTS for number in range(2)]
        await asyncio.gather(*(self.write(segment, writer, events) for segment, writer in writers))
        self.over = True
        await disturbing
        for store in self.stores:
            await store.ownership.stop()
        self.coordinator.close()


def play(seed: int, log_type: type[Log] = Log, *, stores: int = 3, events: int = 12, **settings: Any) -> list[str]:
    """One history; the rules that it broke, none for a sound one."""
    cluster = _Cluster(seed, log_type, stores, settings)
    run(cluster.run(events))
    for segment in SEGMENTS:
        container = cluster.log.recovered(container_of(segment, CONTAINERS))
        if segment in container.segments:
            data = container.segments[segment].read_bytes(0, container.segments[segment].length)
            cluster.fact(Read(segment, 0, bytes(data), True, Place("history", 0, 0, 0, 0)), 0)
    broken = [f"{verdict.rule}: {verdict.text}" for verdict in cluster.judge.end().broken]
    return broken + [f"{names} acknowledged in one epoch" for names in cluster.owners.values() if len(names) > 1]
