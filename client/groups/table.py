"""The state of a reader group as Pravega's clients in Rust and Python store it: entries of a table.

Entries are read as deltas of the table's log. A change atomically writes the entries that it touches and the version
keys of their maps, each conditional on the version last read; so a change is always made from the newest state of every
map that it touches, or is decided again.

Invariants: a cached entry never goes back to an older version; a change whose reply was lost is not applied twice.
Refused: entries that do not belong to a reader group (ProtocolViolation). Follows `Synchronizer` and `Table`
(pravega-client-rust).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from segstore.client.connection import Locations, SegmentRequests
from segstore.client.controller import Cluster
from segstore.client.errors import (
    ConditionFailed,
    NoSuchReaderGroup,
    NoSuchTable,
    NotSupported,
    PeerRefused,
    ProtocolViolation,
    RetriesExhausted,
    SegmentExists,
    SegmentMissing,
)
from segstore.client.tables import Item, TableSegment
from segstore.wire import NOT_EXISTS, ErrorMessageCode
from segstore.wire.names import segment_name
from segstore.wire.reader_groups import (
    VERSION_VALUE,
    GroupState,
    InitialState,
    StoredGroup,
    Update,
    decode_key,
    encode_key,
)

_PAGE: Final = 1000
_ATTEMPTS: Final = 100
"""Maximum number of conflicts with other clients before a change gives up."""

_Key = tuple[str, str | None]


class GroupTable:
    """The state of one group in its table. Its methods raise SegmentMissing if that does not exist.

    Attributes:
        facts: where the state is, for errors.
    """

    def __init__(self, cluster: Cluster, locations: Locations, scope: str, group: str, *, recovers: bool) -> None:
        """locations: used for the table. recovers: used by a reader, which retries for longer than a call."""
        segment = segment_name(scope, f"{group}_kvtable", 0, 0)
        self.facts: Final[Mapping[str, Any]] = {"segment": segment}
        self._scope = scope
        self._group = group
        self._controller = cluster.controller
        self._random = cluster.pool.random
        self._backoff = cluster.pool.settings.reconnect_backoff
        self._requests = SegmentRequests(cluster.pool, locations, recovers=recovers)
        self._table = TableSegment(self._requests, segment)
        self._forget()

    def _forget(self) -> None:
        self._state = StoredGroup()
        self._versions: dict[_Key, int] = {}
        self._position = 0

    # --- the table --------------------------------------------------------------------------------------------------

    async def initialise(self, initial: InitialState) -> GroupState:
        """Creates the table and writes the group's first state, unless another client has; returns the state.

        Raises ConditionFailed if the table is part of a key-value table of the name.
        """
        try:
            await self._table.create()
        except SegmentExists:
            await self._fetch_existing()
        return await self.update(lambda state: [initial] if state.config is None else [])

    async def _fetch_existing(self) -> None:
        own = f"{self._scope}/{self._group}"
        try:
            state = await self.fetch()
        except SegmentMissing as missing:
            raise NoSuchReaderGroup(
                f"the reader group {own} was deleted, and its store cannot create it again yet; another name can be"
                " used at once",
                **self.facts,
            ) from missing
        if state is None and await self._is_key_value_table():
            raise ConditionFailed(f"the reader group {own} cannot have the name of a key-value table", **self.facts)

    async def _is_key_value_table(self) -> bool:
        """Whether the table is the first partition of a key-value table."""
        with suppress(NoSuchTable):
            await self._controller.table_config(self._scope, self._group)
            return True
        return False

    async def delete(self) -> None:
        """Deletes the group with its table."""
        self._forget()
        try:
            await self._table.delete()
        except SegmentMissing as missing:
            if not missing.details.get("retried"):  # a retried call may itself have deleted it
                raise

    async def aclose(self) -> None:
        """Releases the flows. Can be called twice."""
        self._requests.close()

    # --- its state --------------------------------------------------------------------------------------------------

    async def fetch(self) -> GroupState | None:
        """Reads new entries; returns the state, None if no client has written the first state.

        Raises ProtocolViolation, and the errors of requests.
        """
        try:
            await self._fetch()
        except (ProtocolViolation, NotSupported):  # key-value tables have no deltas
            if not await self._is_key_value_table():
                raise
        return None if self._state.config is None else self._state

    async def _fetch(self) -> int:
        """Reads new entries; returns their number."""
        new, from_scratch = 0, False
        while True:
            position = self._position
            try:
                delta = await self._table.delta(position, _PAGE)
            except SegmentMissing:
                self._forget()
                raise
            except PeerRefused as refused:
                illegal = refused.details.get("error_code") == ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION.name
                if not illegal or not position or from_scratch:
                    raise
                self._forget()  # the table was recreated, and is shorter
                from_scratch = True
                continue
            if delta.items and delta.position <= position:
                raise ProtocolViolation(
                    f"{self._table.name} returned entries after {position}, but continues from {delta.position}",
                    **self.facts,
                )
            if delta.clear:
                self._forget()
            new += self._take(delta.items)
            if delta.items:
                self._position = delta.position
            if delta.reached_end or not delta.items:
                return new

    def _take(self, items: Iterable[Item], *, anyway: bool = False) -> int:
        """Applies entries read from the table; returns how many were new. anyway: even if the cache is newer."""
        state, new = self._state.copy(), 0
        try:
            for item in items:
                key = outer, inner = decode_key(item.key)
                if not anyway and item.version <= self._versions.get(key, NOT_EXISTS):
                    continue
                if inner is not None:
                    state.take(outer, inner, None if item.version == NOT_EXISTS else item.value)
                self._versions[key] = item.version
                new += 1
        except ValueError as cause:
            self._forget()
            raise ProtocolViolation(
                f"{self._table.name} has an entry that no reader group has: {cause}", **self.facts
            ) from cause
        if new:
            self._state = state
        return new

    async def update(self, decide: Callable[[GroupState], Sequence[Update]]) -> GroupState:
        """Applies the updates that `decide` returns, writes the changes, and retries on a conflict; returns the state.

        Raises RetriesExhausted, EntryRefused for too many changes, and the errors of requests.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            draft = self._state.copy()
            for update in decide(self._state):
                draft.apply(update)
            values: dict[_Key, bytes] = {}
            for outer, inner, value in self._state.changes_to(draft):
                values[outer, inner] = value
                values[outer, None] = VERSION_VALUE
            if not values or await self._write(values):
                return self._state
            await asyncio.sleep(self._backoff.delay_ms(min(attempt, 4), self._random) / 1000 if attempt > 1 else 0)
        raise RetriesExhausted(
            f"a change of {self._scope}/{self._group} was tried {_ATTEMPTS} times and conflicted with other clients"
            " each time",
            actual=_ATTEMPTS,
            **self.facts,
        )

    async def _write(self, values: dict[_Key, bytes]) -> bool:
        """Writes entries if they are unchanged in the table; else reads the new entries and returns False."""
        items = [Item(encode_key(*key), self._versions.get(key, NOT_EXISTS), value) for key, value in values.items()]
        try:
            versions = await self._table.update(items)
        except SegmentMissing:
            self._forget()
            raise
        except ConditionFailed as failed:
            before = {key: self._versions.get(key, NOT_EXISTS) for key in values}
            if not await self._fetch():
                await self._look_up(items)  # an entry was removed, which deltas do not show
            ours = failed.details.get("retried") and all(
                self._versions.get(key, NOT_EXISTS) > before[key] for key in values
            )
            return bool(ours) and await self._holds(items)
        written = zip(items, versions, strict=True)
        self._take([item._replace(version=version) for item, version in written], anyway=True)
        return True

    async def _look_up(self, items: list[Item]) -> None:
        pairs = zip(items, await self._table.get([item.key for item in items]), strict=True)
        self._take([Item(item.key, NOT_EXISTS) if entry is None else entry for item, entry in pairs], anyway=True)

    async def _holds(self, items: list[Item]) -> bool:
        """Whether the table has these values: then an update whose reply was lost was applied."""
        stored = await self._table.get([item.key for item in items])
        return all(entry is not None and entry.value == item.value for item, entry in zip(items, stored, strict=True))
