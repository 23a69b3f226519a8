"""The table that stores a reader group's state: reads deltas, and writes conditionally on what was read.

Entries are read as deltas of the table's log. A change atomically writes the entries that it touches and the version
keys of their maps, each conditional on the version last read; so a change is always made from the newest state of every
map that it touches, or is retried.

Invariants: a cached entry never goes back to an older version; a change whose reply was lost is not applied twice.
Refused: entries that do not belong to a reader group (ProtocolViolation). Follows `Synchronizer` and `Table`
(pravega-client-rust).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from segstore.client.connection import ConnectionPool, Locations, SegmentRequests
from segstore.client.errors import (
    ClientError,
    ConditionFailed,
    NoSuchReaderGroup,
    PeerRefused,
    ProtocolViolation,
    RetriesExhausted,
    SegmentExists,
    SegmentMissing,
)
from segstore.client.groups.state import GroupState
from segstore.client.lifecycle import finish
from segstore.client.tables import Item, TableSegment
from segstore.wire import NOT_EXISTS, ErrorMessageCode
from segstore.wire.names import segment_name
from segstore.wire.reader_groups import VERSION_VALUE, decode_key, encode_key

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 100
"""Maximum number of conflicts with other clients before a change gives up."""

_Key = tuple[str, str | None]


def table_name(scope: str, group: str) -> str:
    """Returns the name of a group's table segment."""
    return segment_name(scope, f"{group}_kvtable", 0, 0)


class GroupTable:
    """The table of one group.

    Attributes:
        state: the state as of the last `fetch` or `change`; must not be modified in place.
    """

    def __init__(
        self, pool: ConnectionPool, locations: Locations, scope: str, group: str, *, recovers: bool = False
    ) -> None:
        """recovers: used by a reader, which retries for longer than a user's call."""
        self.group: Final = f"{scope}/{group}"
        self._random = pool.random
        self._requests = SegmentRequests(pool, locations, recovers=recovers)
        self._table = TableSegment(self._requests, table_name(scope, group))
        self._backoff = pool.settings.reconnect_backoff
        self._close_s = pool.settings.close_timeout_ms / 1000
        self._lock = asyncio.Lock()
        self._forget()

    def _forget(self) -> None:
        self.state = GroupState(self.group)
        self._versions: dict[_Key, int] = {}
        self._position = 0

    @property
    def segment(self) -> str:
        """The name of the table segment."""
        return self._table.name

    # --- the table --------------------------------------------------------------------------------------------------

    async def create(self) -> bool:
        """Creates the table unless it exists; returns whether it was created."""
        try:
            await self._table.create()
        except SegmentExists:
            return False
        return True

    async def delete(self) -> None:
        """Deletes the table. Raises NoSuchReaderGroup."""
        async with self._lock:
            self._forget()
            try:
                await self._table.delete()
            except SegmentMissing as missing:
                if not missing.details.get("retried"):  # a retried call may itself have deleted it
                    raise self.missing() from missing

    def missing(self) -> NoSuchReaderGroup:
        """Returns the error for a group that does not exist."""
        return NoSuchReaderGroup(f"reader group {self.group} does not exist", segment=self._table.name)

    # --- its state --------------------------------------------------------------------------------------------------

    async def fetch(self) -> GroupState:
        """Reads new entries; returns the state. Raises NoSuchReaderGroup, ProtocolViolation, and errors of requests."""
        async with self._lock:
            await self._fetch()
            return self.state

    async def _fetch(self) -> int:
        """Reads new entries; returns their number."""
        new, from_scratch = 0, False
        while True:
            asked = self._position
            try:
                delta = await self._table.delta(asked, _PAGE)
            except SegmentMissing as missing:
                self._forget()
                raise self.missing() from missing
            except PeerRefused as refused:
                illegal = refused.details.get("error_code") == ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION.name
                if not illegal or not asked or from_scratch:
                    raise
                self._forget()  # the table was recreated, and is shorter
                from_scratch = True
                continue
            if delta.items and delta.position <= asked:
                raise ProtocolViolation(
                    f"{self._table.name} returned entries after {asked}, but continues from {delta.position}",
                    segment=self._table.name,
                )
            if delta.clear:
                self._forget()
            for item in delta.items:
                new += self._take(item)
            if delta.items:
                self._position = delta.position
            if delta.reached_end or not delta.items:
                return new

    def _take(self, item: Item, *, anyway: bool = False) -> bool:
        """Applies an entry read from the table; returns whether it was new. anyway: even if the cached one is newer."""
        try:
            key = outer, inner = decode_key(item.key)
            if not anyway and item.version <= self._versions.get(key, NOT_EXISTS):
                return False
            if inner is not None:
                self.state.take(outer, inner, None if item.version == NOT_EXISTS else item.value)
        except ValueError as cause:
            raise ProtocolViolation(
                f"{self._table.name} has an entry that no reader group has: {cause}", segment=self._table.name
            ) from cause
        self._versions[key] = item.version
        return True

    async def change(self, decide: Callable[[GroupState], T]) -> T:
        """Applies `decide` to a copy of the state, writes its changes, and returns its result.

        On a conflict with another client it is called again with the newer state. If it raises, nothing changes.
        Raises NoSuchReaderGroup, RetriesExhausted, and the errors of requests.
        """
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                draft = self.state.copy()
                decided = decide(draft)
                values: dict[_Key, bytes] = {}
                for outer, inner, value in draft.changes():
                    values[outer, inner] = value
                    values[outer, None] = VERSION_VALUE
                if not values or await self._write(values):
                    return decided
                await asyncio.sleep(self._backoff.delay_ms(min(attempt, 4), self._random) / 1000 if attempt > 1 else 0)
        raise RetriesExhausted(
            f"a change of {self.group} was tried {_ATTEMPTS} times and conflicted with other clients each time",
            segment=self._table.name,
            actual=_ATTEMPTS,
        )

    async def change_or_undo(
        self, decide: Callable[[GroupState], T], undo: Callable[[GroupState], object], what: str
    ) -> T:
        """As `change`. If cancelled, waits until the change has ended and applies `undo` if it succeeded.

        Both take at most `close_timeout_ms`. what: names the change in a warning if it could not be undone.
        """
        changing = asyncio.get_running_loop().create_task(self.change(decide), name=f"{what} of {self.group}")
        try:
            return await asyncio.shield(changing)
        except asyncio.CancelledError:
            await finish(self._undo(changing, undo, what), f"undoing {what} of {self.group}")
            raise

    async def _undo(self, changing: asyncio.Task[T], undo: Callable[[GroupState], object], what: str) -> None:
        try:
            async with asyncio.timeout(self._close_s):
                await asyncio.wait([changing])
                if not changing.cancelled() and changing.exception() is None:
                    await self.change(undo)
        except (ClientError, TimeoutError) as problem:
            said = "%s of %s was cancelled, but may have been applied: %r"
            log.warning(said, what, self.group, problem, extra={"segment": self._table.name})
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)

    async def _write(self, values: dict[_Key, bytes]) -> bool:
        """Writes entries if none has changed meanwhile; else reads the new entries and returns False."""
        items = [Item(encode_key(*key), self._versions.get(key, NOT_EXISTS), value) for key, value in values.items()]
        try:
            versions = await self._table.update(items)
        except SegmentMissing as missing:
            self._forget()
            raise self.missing() from missing
        except ConditionFailed as failed:
            before = {key: self._versions.get(key, NOT_EXISTS) for key in values}
            if not await self._fetch():
                await self._look_up(items)  # an entry was removed, which deltas do not show
            ours = failed.details.get("retried") and all(
                self._versions.get(key, NOT_EXISTS) > before[key] for key in values
            )
            return bool(ours) and await self._holds(items)
        for item, version in zip(items, versions, strict=True):
            self._take(item._replace(version=version), anyway=True)
        return True

    async def _look_up(self, items: list[Item]) -> None:
        for item, found in zip(items, await self._table.get([each.key for each in items]), strict=True):
            self._take(Item(item.key, NOT_EXISTS) if found is None else found, anyway=True)

    async def _holds(self, items: list[Item]) -> bool:
        """Whether the table has these values, that is, an update whose reply was lost was applied."""
        found = await self._table.get([each.key for each in items])
        return all(each is not None and each.value == item.value for item, each in zip(items, found, strict=True))

    def close(self) -> None:
        """Releases the flows. Can be called twice."""
        self._requests.close()
