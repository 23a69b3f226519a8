"""One table segment and its entries, by wire requests. Key-value tables and reader groups are built on it.

Invariant: what is sent keeps to the limits of a batch; a reply that does not fit its request is a ProtocolViolation.
Payloads of what is read are copies. Follows `TableSegmentImpl` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from segstore.client.connection import SegmentRequests
from segstore.client.errors import EntryRefused, ProtocolViolation
from segstore.wire import (
    MAX_FRAME_BYTES,
    NO_VERSION,
    NOT_EXISTS,
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
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
    TableSegmentInfo,
    TableValue,
    UpdateTableEntries,
)

MAX_KEY_BYTES: Final = 8192
MAX_VALUE_BYTES: Final = 1024 * 1024 - MAX_KEY_BYTES
MAX_BATCH_KEYS: Final = 256
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES - 8192
_KEY_OVERHEAD: Final = 16
_VALUE_OVERHEAD: Final = 8


class Item(NamedTuple):
    """An entry. version: what it has, or for an update what it must have now: NO_VERSION for any."""

    key: bytes
    version: int = NO_VERSION
    value: bytes = b""


class Delta(NamedTuple):
    """What changed since a position: `position` is the next one; `clear` that all before it is to be forgotten."""

    items: list[Item]
    clear: bool
    reached_end: bool
    position: int


class TableSegment:
    """Requests about one table segment. Errors are those of `SegmentRequests.ask`.

    Attributes:
        name: of the segment.
    """

    __slots__ = ("_requests", "name")

    def __init__(self, requests: SegmentRequests, name: str) -> None:
        self.name = name
        self._requests = requests

    async def create(self, *, key_bytes: int = 0) -> None:
        """key_bytes: length of all keys; 0 for keys of any. Raises SegmentExists."""
        await self._requests.ask(
            self.name,
            SegmentCreated,
            lambda request_id, token: CreateTableSegment(request_id, self.name, False, key_bytes, token),
        )

    async def delete(self, *, must_be_empty: bool = False) -> None:
        """Raises ConditionFailed if it was to be empty and is not, SegmentMissing."""
        await self._requests.ask(
            self.name,
            SegmentDeleted,
            lambda request_id, token: DeleteTableSegment(request_id, self.name, must_be_empty, token),
        )

    async def info(self) -> TableSegmentInfo:
        return await self._requests.ask(
            self.name, TableSegmentInfo, lambda request_id, token: GetTableSegmentInfo(request_id, self.name, token)
        )

    async def update(self, items: Sequence[Item]) -> list[int]:
        """Sets entries, all or none; returns their versions. Raises BadKeyVersion, NoSuchKey, EntryRefused."""
        self._check(len(items), sum(len(each.key) + len(each.value) + _VALUE_OVERHEAD for each in items))
        entries = TableEntries([TableEntry(TableKey(key, version), TableValue(value)) for key, version, value in items])
        reply = await self._requests.ask(
            self.name,
            TableEntriesUpdated,
            lambda request_id, token: UpdateTableEntries(request_id, self.name, token, entries),
        )
        self._expect(len(items), len(reply.updated_versions))
        return list(reply.updated_versions)

    async def remove(self, keys: Sequence[tuple[bytes, int]]) -> None:
        """Removes keys that have these versions, all or none. Raises BadKeyVersion, NoSuchKey, EntryRefused."""
        self._check(len(keys), sum(len(key) for key, _ in keys))
        wanted = [TableKey(key, version) for key, version in keys]
        await self._requests.ask(
            self.name,
            TableKeysRemoved,
            lambda request_id, token: RemoveTableKeys(request_id, self.name, token, wanted),
        )

    async def get(self, keys: Sequence[bytes]) -> list[Item | None]:
        """The entries of some keys, None where there is none. All values together must fit into one frame."""
        self._check(len(keys), sum(map(len, keys)))
        wanted = [TableKey(key) for key in keys]
        reply = await self._requests.ask(
            self.name, TableRead, lambda request_id, token: ReadTable(request_id, self.name, token, wanted)
        )
        found = _items(reply.entries)
        self._expect(len(keys), len(found))
        for asked, item in zip(keys, found, strict=True):
            if item.key != asked:
                raise ProtocolViolation(f"{self.name} answers about a key that was not asked for", segment=self.name)
        return [None if item.version == NOT_EXISTS else item for item in found]

    async def keys(
        self, count: int, *, first: bytes = b"", last: bytes = b"", token: bytes = b""
    ) -> tuple[list[Item], bytes]:
        """A page of keys and the token of the next. first, last: bounds, of tables with keys of one length only."""
        args = TableIteratorArgs(token, b"", first, last)
        reply = await self._requests.ask(
            self.name,
            TableKeysRead,
            lambda request_id, security: ReadTableKeys(request_id, self.name, security, count, args),
        )
        return [Item(bytes(each.data), each.key_version) for each in reply.keys], bytes(reply.continuation_token)

    async def entries(
        self, count: int, *, first: bytes = b"", last: bytes = b"", token: bytes = b""
    ) -> tuple[list[Item], bytes]:
        """As `keys`, with the values."""
        args = TableIteratorArgs(token, b"", first, last)
        reply = await self._requests.ask(
            self.name,
            TableEntriesRead,
            lambda request_id, security: ReadTableEntries(request_id, self.name, security, count, args),
        )
        return _items(reply.entries), bytes(reply.continuation_token)

    async def delta(self, position: int, count: int) -> Delta:
        """What changed from a position on."""
        reply = await self._requests.ask(
            self.name,
            TableEntriesDeltaRead,
            lambda request_id, token: ReadTableEntriesDelta(request_id, self.name, token, position, count),
        )
        return Delta(_items(reply.entries), reply.should_clear, reply.reached_end, reply.last_position)

    def _check(self, count: int, size: int) -> None:
        for limit, actual, what in (
            (MAX_BATCH_KEYS, count, "keys"),
            (MAX_BATCH_BYTES, size + count * _KEY_OVERHEAD, "bytes"),
        ):
            if actual > limit:
                raise EntryRefused(
                    f"{actual} {what} in one request about {self.name}, {limit} are allowed",
                    segment=self.name,
                    limit=limit,
                    actual=actual,
                )

    def _expect(self, asked: int, got: int) -> None:
        if asked != got:
            raise ProtocolViolation(
                f"{self.name} answers with {got} entries where {asked} were asked for",
                segment=self.name,
                limit=asked,
                actual=got,
            )


def _items(entries: TableEntries) -> list[Item]:
    return [Item(bytes(each.key.data), each.key.key_version, bytes(each.value.data)) for each in entries.entries]
