"""Key-value tables: fixed-length keys, hashed to partitions that are table segments.

    async with pravega.table("scope", "table") as table:
        version = await table.put(b"0001", b"value")
        await table.put(b"0001", b"newer", version=version)
        async for entry in table.entries():
            …

A key has a primary part, whose hash selects its partition, and an optional secondary part. Entries with the same
primary key can be changed atomically. Each change gives an entry a new `Version`, which later changes can require.

Invariants: iteration is in byte order of keys, across partitions; cancelling it loses nothing, and its `token`
continues after the last returned item. Refused before anything is sent: keys and values of the wrong length, batches
over several primary keys or above the limits. A conditional change whose reply was lost is sent again; if the first try
was applied, the second fails on its own version (see `BadKeyVersion`). Follows `KeyValueTableImpl`, `SegmentSelector`,
`TableEntryHelper` and `TableSegmentImpl` (Pravega's client). Deliberate difference: iterations have tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self, TypedDict, TypeVar, Unpack

from segstore.client.connection import SegmentRequests
from segstore.client.controller import Cluster, TableConfig
from segstore.client.errors import (
    BadKeyVersion,
    ConditionFailed,
    EntryRefused,
    NoSuchTable,
    ProtocolViolation,
    SegmentMissing,
)
from segstore.client.lifecycle import FreedAfter, OpenedBefore, all_of, not_open
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.tables.iteration import Bounds, TableIterator
from segstore.client.tables.segment import MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Item, TableSegment
from segstore.wire import NO_VERSION, NOT_EXISTS
from segstore.wire.hashing import position_of_key

T = TypeVar("T")

_READ_AT_ONCE: Final = MAX_BATCH_BYTES // (MAX_KEY_BYTES + MAX_VALUE_BYTES)
"""This many values of maximum size fit into one reply."""
_READS_AT_ONCE: Final = 5
_ANY: Final = -(2**63)


class TableKey(NamedTuple):
    """The parts of a key; the secondary part is empty in tables without secondary keys."""

    primary: bytes
    secondary: bytes = b""


Key = bytes | TableKey
"""A key; plain bytes are a primary key."""


class Version(NamedTuple):
    """The version of an entry, which changes with each update. Its text form is `segment:number`, as in Pravega."""

    segment_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.segment_id}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text form. Raises ValueError."""
        segment, colon, number = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} is not an entry version: expected segment:number")
        return cls(int(segment), int(number))


NEW: Final = Version(_ANY, NOT_EXISTS)
"""The version of a key that does not exist."""


class TableEntry(NamedTuple):
    """A key, its value and its version."""

    key: TableKey
    value: bytes
    version: Version


class IterationOptions(TypedDict, total=False):
    """The keyword arguments of `KeyValueTable.entries` and `keys`."""

    primary: bytes | None
    from_: bytes | None
    to: bytes | None
    prefix: bytes | None
    after: bytes | None
    page: int


class KeyValueTable(OpenedBefore, FreedAfter):
    """A key-value table. Use with `async with`, or `open` and `close`.

    Attributes:
        scope, table: the table's scope and name.
    """

    scope: Final[str]
    table: Final[str]

    def __init__(self, cluster: Cluster, scope: str, table: str) -> None:
        self.scope = scope
        self.table = table
        self._name = f"{scope}/{table}"
        self._controller = cluster.controller
        self._requests = SegmentRequests(cluster.pool, cluster.locations)
        self._config: TableConfig | None = None
        self._router: RangeRouter | None = None
        self._closed = False

    async def open(self) -> None:
        """Fetches the table's configuration and partitions. Raises NoSuchTable, and the errors of controller calls."""
        config = await self._controller.table_config(self.scope, self.table)
        segments = await self._controller.table_segments(self.scope, self.table)
        if len(segments) != config.partitions:
            raise ProtocolViolation(
                f"table {self._name} has {config.partitions} partitions, the controller names {len(segments)}",
                stream=self._name,
            )
        self._router = RangeRouter(segments)
        self._config = config

    @property
    def config(self) -> TableConfig:
        """The table's configuration. Raises Closed unless the table is open."""
        if self._config is None or self._closed:
            raise not_open(f"table {self._name}", closed=self._closed, stream=self._name)
        return self._config

    # --- keys -------------------------------------------------------------------------------------------------------

    def _key(self, key: Key) -> tuple[TableKey, bytes]:
        """Returns the key in parts and as its partition stores it. Raises EntryRefused."""
        parts = key if isinstance(key, TableKey) else TableKey(key)
        config = self.config
        for part, name, length in (
            (parts.primary, "primary", config.primary_key_bytes),
            (parts.secondary, "secondary", config.secondary_key_bytes),
        ):
            if len(part) != length:
                raise EntryRefused(
                    f"a {name} key of {len(part)} bytes for table {self._name}, whose {name} keys have {length}",
                    stream=self._name,
                    limit=length,
                    actual=len(part),
                )
        return parts, parts.primary + parts.secondary

    def _split(self, data: bytes, segment: str) -> TableKey:
        size = self.config.primary_key_bytes
        if len(data) != size + self.config.secondary_key_bytes:
            raise ProtocolViolation(f"{segment} holds a key of {len(data)} bytes", segment=segment, actual=len(data))
        return TableKey(data[:size], data[size:])

    def _partition(self, key: TableKey) -> SegmentRange:
        assert self._router is not None
        return self._router.route(position_of_key(key.primary))

    def _segment(self, partition: SegmentRange) -> TableSegment:
        return TableSegment(self._requests, partition.name)

    def _expected(self, version: Version | None, partition: SegmentRange) -> int:
        if version is None:
            return NO_VERSION
        if version.segment_id not in (_ANY, partition.segment_id):
            raise BadKeyVersion(
                f"version {version} belongs to another partition than {partition.name}",
                segment=partition.name,
                stream=self._name,
            )
        return version.number

    def _one_partition(self, keys: Sequence[TableKey]) -> SegmentRange:
        """Returns the common partition of keys that are changed together. Raises EntryRefused."""
        if len({key.primary for key in keys}) != 1:
            raise EntryRefused(f"keys of {self._name} changed together must share a primary key", stream=self._name)
        return self._partition(keys[0])

    # --- changing ---------------------------------------------------------------------------------------------------

    async def put(self, key: Key, value: bytes, *, version: Version | None = None) -> Version:
        """Sets a value; returns its new version. version: the version that the entry must have now, None for any.

        Raises BadKeyVersion, EntryRefused, NoSuchTable, and the errors of requests.
        """
        return (await self.put_all([(key, value, version)]))[0]

    async def put_if_absent(self, key: Key, value: bytes) -> Version:
        """Sets the value of a new key. Raises BadKeyVersion if the key exists, and as `put`."""
        return await self.put(key, value, version=NEW)

    async def put_all(self, entries: Iterable[tuple[Key, bytes] | tuple[Key, bytes, Version | None]]) -> list[Version]:
        """Sets several values of one primary key atomically; returns their versions. Raises as `put`."""
        items = [(*self._key(entry[0]), entry[1], entry[2] if len(entry) == 3 else None) for entry in entries]
        if not items:
            return []
        partition = self._one_partition([key for key, _, _, _ in items])
        for _, _, value, _ in items:
            if len(value) > MAX_VALUE_BYTES:
                raise EntryRefused(
                    f"a value of {len(value)} bytes for table {self._name}, the limit is {MAX_VALUE_BYTES}",
                    stream=self._name,
                    limit=MAX_VALUE_BYTES,
                    actual=len(value),
                )
        update = [Item(data, self._expected(version, partition), value) for _, data, value, version in items]
        with self._missing_as_gone():
            numbers = await self._segment(partition).update(update)
        return [Version(partition.segment_id, number) for number in numbers]

    async def remove(self, key: Key, *, version: Version | None = None) -> None:
        """Removes an entry; a no-op if it does not exist and no version is given. Raises as `put`."""
        await self.remove_all([(key, version)])

    async def remove_all(self, keys: Iterable[tuple[Key, Version | None]]) -> None:
        """Removes several entries of one primary key atomically. Raises as `put`."""
        items = [(*self._key(key), version) for key, version in keys]
        if not items:
            return
        partition = self._one_partition([key for key, _, _ in items])
        removal = [(data, self._expected(version, partition)) for _, data, version in items]
        with self._missing_as_gone():
            await self._segment(partition).remove(removal)

    @contextmanager
    def _missing_as_gone(self) -> Iterator[None]:
        try:
            yield
        except SegmentMissing as error:
            text = f"table {self._name} is gone: {error}"
            raise NoSuchTable(text, **error.facts() | {"stream": self._name}) from error

    # --- reading ----------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> TableEntry | None:
        """Returns the entry, or None. Raises EntryRefused, NoSuchTable, and the errors of requests."""
        return (await self.get_all([key]))[0]

    async def get_all(self, keys: Iterable[Key]) -> list[TableEntry | None]:
        """Returns the entries of any keys, in the order given. They are not read at a single point in time."""
        parts = [self._key(key) for key in keys]
        entries: list[TableEntry | None] = [None] * len(parts)
        by_partition: dict[SegmentRange, list[int]] = {}
        for at, (key, _) in enumerate(parts):
            by_partition.setdefault(self._partition(key), []).append(at)

        few = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(partition: SegmentRange, places: Sequence[int]) -> None:
            async with few:
                items = await self._segment(partition).get([parts[at][1] for at in places])
            for at, item in zip(places, items, strict=True):
                if item is not None:
                    entries[at] = TableEntry(parts[at][0], item.value, Version(partition.segment_id, item.version))

        reads: list[Coroutine[Any, Any, None]] = [
            read(partition, places[start : start + _READ_AT_ONCE])
            for partition, places in by_partition.items()
            for start in range(0, len(places), _READ_AT_ONCE)
        ]
        with self._missing_as_gone():
            await all_of(reads)
        return entries

    async def exists(self, key: Key) -> bool:
        """Returns whether a key exists, without fetching its value."""
        try:
            await self.remove(key, version=NEW)
        except ConditionFailed:
            return True
        return False

    # --- iterating --------------------------------------------------------------------------------------------------

    def entries(self, **chosen: Unpack[IterationOptions]) -> TableIterator[TableEntry]:
        """Iterates over entries in key order.

        primary: restricts the iteration to one primary key; `from_`, `to` (inclusive) and `prefix` then apply to
        secondary keys, else to primary keys. after: the `token` of an earlier iteration to continue. page: number of
        entries per request, 100 by default. Raises EntryRefused.
        """

        def entry(partition: SegmentRange, item: Item) -> TableEntry:
            key = self._split(item.key, partition.name)
            return TableEntry(key, item.value, Version(partition.segment_id, item.version))

        return self._iterate(entry, True, **chosen)

    def keys(self, **chosen: Unpack[IterationOptions]) -> TableIterator[TableKey]:
        """Like `entries`, without values."""
        return self._iterate(lambda partition, item: self._split(item.key, partition.name), False, **chosen)

    def _iterate(
        self,
        make: Callable[[SegmentRange, Item], T],
        with_values: bool,
        *,
        primary: bytes | None = None,
        from_: bytes | None = None,
        to: bytes | None = None,
        prefix: bytes | None = None,
        after: bytes | None = None,
        page: int = 100,
    ) -> TableIterator[T]:
        config, router = self.config, self._router
        assert router is not None
        if primary is not None and len(primary) != config.primary_key_bytes:
            self._key(TableKey(primary, bytes(config.secondary_key_bytes)))
        if prefix is not None and (from_ is not None or to is not None):
            raise EntryRefused(f"an iteration over {self._name} takes a prefix or a range, not both", stream=self._name)
        length = config.primary_key_bytes if primary is None else config.secondary_key_bytes
        for bound, exact in ((from_, True), (to, True), (prefix, False)):
            if bound is not None and (len(bound) > length or (exact and len(bound) != length)):
                raise EntryRefused(
                    f"a bound of {len(bound)} bytes for an iteration over keys of {length} bytes of {self._name}",
                    stream=self._name,
                    limit=length,
                    actual=len(bound),
                )
        key_bytes = config.primary_key_bytes + config.secondary_key_bytes
        first = (primary or b"") + (prefix or from_ or b"")
        last = (primary or b"") + (prefix or to or b"")
        bounds = Bounds(first.ljust(key_bytes, b"\0"), last.ljust(key_bytes, b"\xff"))
        if after:
            if len(after) != key_bytes:
                raise EntryRefused(f"{after!r} is not a token of an iteration over {self._name}", stream=self._name)
            bounds = bounds.behind(after)
        partitions = router.segments if primary is None else [self._partition(TableKey(primary))]
        return TableIterator(
            self._requests, partitions, bounds, page, make, self._missing_as_gone, with_values=with_values
        )

    # --- shutdown ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the table; pending requests fail. Can be called twice."""
        self._closed = True
        self._requests.close()
