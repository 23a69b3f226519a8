"""One table segment and its entries, by wire requests. Key-value tables and reader groups are built on it.

Invariant: requests keep to the batch limits; a reply that does not match its request is a ProtocolViolation. Returned
keys and values are copies. Follows `TableSegmentImpl` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from segstore.client.connection import SegmentRequests
from segstore.client.errors import EntryRefused, ProtocolViolation
from segstore.wire import (
    MAX_FRAME_BYTES,
    NO_VERSION,
    NOT_EXISTS,
    Command,
    CreateTableSegment,
    DeleteTableSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentCreated,
    SegmentDeleted,
    TableEntries,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableValue,
    UpdateTableEntries,
)

R = TypeVar("R", bound=Command)

MAX_KEY_BYTES: Final = 8192
MAX_VALUE_BYTES: Final = 1024 * 1024 - MAX_KEY_BYTES
MAX_BATCH_KEYS: Final = 256
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES - 8192
_KEY_OVERHEAD: Final = 16
_VALUE_OVERHEAD: Final = 8


class Item(NamedTuple):
    """A table entry. version: its version, or for an update the version it must have now; NO_VERSION for any."""

    key: bytes
    version: int = NO_VERSION
    value: bytes = b""


class Delta(NamedTuple):
    """Changes since a position. position: the next position. clear: whether to discard all earlier state."""

    items: list[Item]
    clear: bool
    reached_end: bool
    position: int


@dataclass(slots=True, eq=False)
class TableSegment:
    """Requests about one table segment. They raise the errors of `SegmentRequests.ask`.

    Attributes:
        name: the segment's name.
    """

    _requests: SegmentRequests
    name: str

    async def _ask(self, expected: type[R], make: Callable[[int, str], Command]) -> R:
        return await self._requests.ask(self.name, expected, make)

    async def create(self, *, key_bytes: int = 0) -> None:
        """Creates the segment. key_bytes: length of all keys, 0 for variable. Raises SegmentExists."""
        await self._ask(SegmentCreated, lambda id_, token: CreateTableSegment(id_, self.name, False, key_bytes, token))

    async def delete(self) -> None:
        """Deletes the segment. Raises SegmentMissing."""
        await self._ask(SegmentDeleted, lambda id_, token: DeleteTableSegment(id_, self.name, False, token))

    async def update(self, items: Sequence[Item]) -> list[int]:
        """Sets entries atomically; returns their versions. Raises BadKeyVersion, NoSuchKey, EntryRefused."""
        self._check(len(items), sum(len(item.key) + len(item.value) + _VALUE_OVERHEAD for item in items))
        entries = TableEntries([TableEntry(TableKey(key, version), TableValue(value)) for key, version, value in items])
        reply = await self._ask(
            TableEntriesUpdated, lambda id_, token: UpdateTableEntries(id_, self.name, token, entries)
        )
        self._expect(len(items), len(reply.updated_versions))
        return list(reply.updated_versions)

    async def remove(self, keys: Sequence[tuple[bytes, int]]) -> None:
        """Removes keys with the given versions atomically. Raises BadKeyVersion, NoSuchKey, EntryRefused."""
        self._check(len(keys), sum(len(key) for key, _ in keys))
        table_keys = [TableKey(key, version) for key, version in keys]
        await self._ask(TableKeysRemoved, lambda id_, token: RemoveTableKeys(id_, self.name, token, table_keys))

    async def get(self, keys: Sequence[bytes]) -> list[Item | None]:
        """Returns the entries of some keys, None where missing. All values together must fit into one frame."""
        self._check(len(keys), sum(map(len, keys)))
        table_keys = [TableKey(key) for key in keys]
        reply = await self._ask(TableRead, lambda id_, token: ReadTable(id_, self.name, token, table_keys))
        items = _items(reply.entries)
        self._expect(len(keys), len(items))
        for asked, item in zip(keys, items, strict=True):
            if item.key != asked:
                raise ProtocolViolation(f"{self.name} returned a key that was not requested", segment=self.name)
        return [None if item.version == NOT_EXISTS else item for item in items]

    async def keys(self, count: int, first: bytes, last: bytes) -> list[Item]:
        """Returns the first keys, of fixed length, between two bounds."""
        args = TableIteratorArgs(b"", b"", first, last)
        reply = await self._ask(TableKeysRead, lambda id_, token: ReadTableKeys(id_, self.name, token, count, args))
        return [Item(bytes(key.data), key.key_version) for key in reply.keys]

    async def entries(self, count: int, first: bytes, last: bytes) -> list[Item]:
        """Like `keys`, with values."""
        args = TableIteratorArgs(b"", b"", first, last)
        reply = await self._ask(
            TableEntriesRead, lambda id_, token: ReadTableEntries(id_, self.name, token, count, args)
        )
        return _items(reply.entries)

    async def delta(self, position: int, count: int) -> Delta:
        """Returns up to `count` changes from a position."""
        reply = await self._ask(
            TableEntriesDeltaRead, lambda id_, token: ReadTableEntriesDelta(id_, self.name, token, position, count)
        )
        return Delta(_items(reply.entries), reply.should_clear, reply.reached_end, reply.last_position)

    def _check(self, count: int, size: int) -> None:
        for limit, actual, what in (
            (MAX_BATCH_KEYS, count, "keys"),
            (MAX_BATCH_BYTES, size + count * _KEY_OVERHEAD, "bytes"),
        ):
            if actual > limit:
                raise EntryRefused(
                    f"{actual} {what} in one request about {self.name}, the limit is {limit}",
                    segment=self.name,
                    limit=limit,
                    actual=actual,
                )

    def _expect(self, expected: int, actual: int) -> None:
        if expected != actual:
            raise ProtocolViolation(
                f"{self.name} returned {actual} entries where {expected} were requested",
                segment=self.name,
                limit=expected,
                actual=actual,
            )


def _items(entries: TableEntries) -> list[Item]:
    return [Item(bytes(entry.key.data), entry.key.key_version, bytes(entry.value.data)) for entry in entries.entries]
