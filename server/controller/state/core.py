"""State shared by the controller's parts: journal, segment store, clock, locks, timers and memory account.

Invariants: the state changes only through `record`, between two awaits, so a reader that does not await sees a
consistent state. An operation of several steps on a stream holds the stream's lock from its first read to its last
record. A timer means only that something may be due; its handler checks the state again.

A stream, reader group or table is charged the size of its operations, and measured again once the charge has doubled;
so the amortised cost of an operation is proportional to its size. Deletion releases everything except the name, if its
segment numbers must not be used again. Only growth is refused, and before it starts.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import count
from random import Random, SystemRandom
from typing import Final, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from segstore.server.clock import SteadyTime
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.errors import MemoryFull, TooMany
from segstore.server.controller.segment_admin import SegmentAdmin
from segstore.server.controller.state import operations as op
from segstore.server.controller.state.state import State
from segstore.server.store import MemoryAccount, StoreFull, name_bytes

_NAME_MAX: Final = 1_024
_ENCODER: Final = msgspec.msgpack.Encoder()
_FACTOR: Final = 6
"""Approximate ratio of a value's memory to its encoded size."""
_OBJECT_BYTES: Final = 2_000
_SLACK_BYTES: Final = 64 * 1024


class Due(Enum):
    """The purpose of a timer."""

    SCALE = "scale"
    TRANSACTION = "transaction"
    RETENTION = "retention"
    LOAD = "load"
    WATERMARK = "watermark"


class Timer(NamedTuple):
    """A timer for a stream, or for a transaction of it."""

    due_ms: int
    order: int
    kind: Due
    scope: str
    stream: str
    transaction: UUID | None


class Core:
    """What all parts of a controller share."""

    def __init__(
        self,
        segments: SegmentAdmin,
        config: ControllerConfig | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
        random: Random | None = None,
        journal: Callable[[op.Operation], None] | None = None,
        state: State | None = None,
        transaction_ids: Iterator[int] | None = None,
        memory: MemoryAccount | None = None,
    ) -> None:
        """now_ms: returns the time in milliseconds since 1970; None for `SteadyTime`. random: source of ids. journal:
        called with every operation before it is applied. state: the initial state, owned by the core from then on.
        transaction_ids: supplies the lower 96 bits of transaction ids, in order; None for a counter. memory: account
        charged with the state's estimated size; None for an account without a limit.
        """
        self.segments = segments
        self.config = config or ControllerConfig()
        self.now_ms = now_ms or SteadyTime().now_ms
        self.random = random or SystemRandom()
        self.state = state or State()
        # Ids consist of an epoch and a counter, as in Pravega. The counter of a new state starts at the current time,
        # so that ids of an earlier run are unknown.
        self.transaction_ids = transaction_ids or count(self.state.transactions or self.now_ms() << 20)
        self.memory = StateMemory(memory or MemoryAccount(), self.state)
        self._woken = asyncio.Event()
        self._journal = journal
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timers: list[Timer] = []
        self._order = 0
        self._once: set[tuple[Due, str, str]] = set()

    def replace(self, state: State) -> None:
        """Replaces the state's contents, which then belong to this object, and cancels all timers. Not journaled."""
        account = self.memory.account
        self.memory.release()
        for name in State.__struct_fields__:
            setattr(self.state, name, getattr(state, name))
        self.memory = StateMemory(account, self.state)
        self._timers.clear()
        self._once.clear()

    def check_segments(self, what: str, count: int) -> None:
        """Raises `TooMany` for more segments than a stream or a table may have."""
        if count > self.config.max_segments:
            raise TooMany(what, count, self.config.max_segments)

    def check_writer(self, name: str) -> None:
        """Raises `TooMany` for a longer name of a writer than the state keeps."""
        if len(name) > _NAME_MAX:
            raise TooMany("characters of a name", len(name), _NAME_MAX)

    def record(self, operation: op.Operation) -> None:
        """Journals an operation and applies it."""
        if self._journal is not None:
            self._journal(operation)
        operation.apply(self.state)
        self.memory.applied(operation)

    def lock(self, *names: str) -> asyncio.Lock:
        """Returns the lock of the object with this name, such as a stream's scope and name; not reentrant."""
        return self._locks.setdefault("/".join(names), asyncio.Lock())

    def schedule(self, due_ms: int, kind: Due, scope: str, stream: str, transaction: UUID | None = None) -> None:
        self._order += 1
        heapq.heappush(self._timers, Timer(due_ms, self._order, kind, scope, stream, transaction))
        if self._timers[0].order == self._order:
            self._woken.set()

    def schedule_once(self, after_ms: int, kind: Due, scope: str, stream: str) -> None:
        """Sets a timer for a stream, unless it has a timer of this kind."""
        if (kind, scope, stream) not in self._once:
            self._once.add((kind, scope, stream))
            self.schedule(self.now_ms() + after_ms, kind, scope, stream)

    def next_due_ms(self) -> int | None:
        """Returns when the next timer is due; None without timers."""
        return self._timers[0].due_ms if self._timers else None

    async def wait_for_timer(self) -> None:
        """Waits until a timer is set that is due before all other timers."""
        self._woken.clear()
        await self._woken.wait()

    def take_due(self, now_ms: int) -> list[Timer]:
        """Takes the timers that are due, earliest first."""
        due = []
        while self._timers and self._timers[0].due_ms <= now_ms:
            timer = heapq.heappop(self._timers)
            self._once.discard((timer.kind, timer.scope, timer.stream))
            due.append(timer)
        return due


class StateMemory:
    """Charges `account` for `state`, including its initial contents."""

    def __init__(self, account: MemoryAccount, state: State) -> None:
        self.account = account
        self._state = state
        self._charged: dict[tuple[str, str, str], tuple[int, int]] = {}
        """The charge of each object, and the charge at which it is measured again."""
        for scope, held in state.scopes.items():
            self._charge(("scopes", scope, ""), 0)
            for kind in ("streams", "reader_groups", "tables"):
                for name in getattr(held, kind):
                    self._charge((kind, scope, name), 0)
        for name in state.numbers:
            self.account.charge(name_bytes(name))
        self._numbers = len(state.numbers)

    def release(self) -> None:
        """Releases all charged memory, because the state is about to be replaced."""
        self.account.charge(
            -sum(charge for charge, _ in self._charged.values()) - sum(map(name_bytes, self._state.numbers))
        )

    def check(self, request_bytes: int) -> None:
        """Raises `MemoryFull` for a request that would make the state grow beyond the limit."""
        try:
            self.account.check(_OBJECT_BYTES + _FACTOR * request_bytes)
        except StoreFull as error:
            raise MemoryFull(error.used, error.limit) from error

    def applied(self, operation: op.Operation) -> None:
        """Charges for an applied operation."""
        match operation:
            case op.StreamOperation():
                key = "streams", operation.scope, operation.stream
            case op.ReaderGroupSet() | op.ReaderGroupDeleted():
                key = "reader_groups", operation.scope, operation.name
            case op.TableCreated() | op.TableDeleted():
                key = "tables", operation.scope, operation.name
            case _:
                key = "scopes", operation.scope, ""
        self._charge(key, _FACTOR * len(op.encode(operation)))
        if len(self._state.numbers) > self._numbers:
            self._numbers += 1
            self.account.charge(name_bytes("/".join(key[1:])))

    def _charge(self, key: tuple[str, str, str], size: int) -> None:
        """Charges `size` more for an object, or its measured size; releases a deleted object."""
        kind, scope, name = key
        held = self._state.scopes.get(scope)
        thing = held if held is None or kind == "scopes" else getattr(held, kind).get(name)
        before, again_at = self._charged.pop(key, (0, 0))
        if thing is None:
            self.account.charge(-before)
            return
        now = before + size
        if now >= again_at:
            encoded = b"" if kind == "scopes" else _ENCODER.encode(thing)
            now = _OBJECT_BYTES + _FACTOR * (len(encoded) + len(name))
            again_at = 2 * now + _SLACK_BYTES
        self._charged[key] = now, again_at
        self.account.charge(now - before)
