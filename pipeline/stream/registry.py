"""Records the sink's pending work in a table segment beside the stream.

Stores do not list a task's own segments, so a killed task would leak them. Therefore a segment's name is recorded here,
under the query's id, before it is created, and removed when it is merged or deleted. One more entry per query holds the
stream's epoch at its last commit: older segments cannot hold parts of the next batch.

Invariants: a segment is recorded before it exists; a recorded segment need not exist. The table is created on first
use; deleting it only loses the sweeper's records. A key is the id of the query and the id of the segment, 16 bytes per
id.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from segstore.client.errors import BadKeyVersion, ProtocolViolation, SegmentExists, SegmentMissing
from segstore.client.tables import MAX_BATCH_KEYS, Item, TableSegment
from segstore.pipeline.stream.segments import Segments
from segstore.wire import NO_VERSION, NOT_EXISTS
from segstore.wire.names import segment_name, transaction_name

_KEY_BYTES: Final = 32
_ZERO: Final = UUID(int=0)
_LAST: Final = UUID(int=(1 << 128) - 1)
_PAGE: Final = 200
_OURS: Final = uuid5(NAMESPACE_URL, "segstore:sink")


class Recorded(NamedTuple):
    """A recorded task segment: its query, batch, and creation time in seconds since 1970."""

    query: UUID
    part: UUID
    segment: str
    batch: int
    since_s: float

    @property
    def key(self) -> bytes:
        return self.query.bytes + self.part.bytes


def registry_name(scope: str, stream: str) -> str:
    """Returns the table segment's name, which belongs to the stream, so that the stream's tokens are valid for it."""
    return transaction_name(segment_name(scope, stream, 0, 0), _OURS)


class Registry:
    """The registry of one stream."""

    def __init__(self, segments: Segments) -> None:
        self._table = TableSegment(segments.requests, registry_name(segments.scope, segments.stream))

    # --- parts ------------------------------------------------------------------------------------------------------

    async def record(self, query: UUID, part: UUID, segment: str, batch: int) -> None:
        """Records a segment; must be called before it is created."""
        said = {"segment": segment, "batch": batch, "since_s": round(time.time(), 3)}
        await self._put(query.bytes + part.bytes, said)

    async def parts(self, query: UUID | None = None) -> list[Recorded]:
        """Returns the recorded segments of a query, or of all queries."""
        first = (_ZERO if query is None else query).bytes + _ZERO.bytes
        last = (_LAST if query is None else query).bytes + _LAST.bytes
        entries = [entry async for entry in self._entries(first, last)]
        return [recorded for entry in entries if (recorded := self._recorded(entry)) is not None]

    async def _entries(self, first: bytes, last: bytes) -> AsyncIterator[Item]:
        while True:  # continue after the last key: fixed-key tables have no other token
            try:
                page = await self._table.entries(_PAGE, first, last)
            except SegmentMissing:
                return
            if page and page[-1].key < first:
                raise ProtocolViolation(
                    f"{self._table.name} returned keys before the requested ones", segment=self._table.name
                )
            for entry in page:
                yield entry
            if not page or page[-1].key >= last:
                return
            first = (int.from_bytes(page[-1].key) + 1).to_bytes(_KEY_BYTES)

    def _recorded(self, item: Item) -> Recorded | None:
        try:
            query, part = UUID(bytes=item.key[:16]), UUID(bytes=item.key[16:])
            if part == _ZERO:
                return None
            entry = json.loads(item.value)
            return Recorded(query, part, str(entry["segment"]), int(entry["batch"]), float(entry["since_s"]))
        except (ValueError, KeyError, TypeError) as cause:
            raise self._foreign_entry(item) from cause

    def _foreign_entry(self, item: Item) -> ProtocolViolation:
        name = self._table.name
        return ProtocolViolation(f"{name} holds an entry that no sink wrote: {item.key[:40].hex()}", segment=name)

    async def forget(self, keys: Iterable[bytes]) -> None:
        """Removes entries; missing keys are ignored."""
        waiting = list(keys)
        while waiting:
            some, waiting = waiting[:MAX_BATCH_KEYS], waiting[MAX_BATCH_KEYS:]
            try:
                await self._table.remove([(key, NO_VERSION) for key in some])
            except SegmentMissing:
                return

    # --- queries ----------------------------------------------------------------------------------------------------

    async def epoch(self, query: UUID, now: int) -> int:
        """Returns the earliest epoch in which a query's unfinished batch can have started; `now` for a new query."""
        facts = await self._of_query(query)
        if facts is None:
            try:
                await self._put(query.bytes + _ZERO.bytes, {"epoch": now}, version=NOT_EXISTS)
            except BadKeyVersion:
                facts = await self._of_query(query)
        return now if facts is None else int(facts.get("epoch", now))

    async def _of_query(self, query: UUID) -> dict[str, float] | None:
        try:
            entry = (await self._table.get([query.bytes + _ZERO.bytes]))[0]
        except SegmentMissing:
            return None
        return None if entry is None else self._decoded(entry)

    def _decoded(self, item: Item) -> dict[str, float]:
        try:
            facts = json.loads(item.value)
            return {str(name): float(value) for name, value in facts.items()}
        except (ValueError, AttributeError, TypeError) as cause:
            raise self._foreign_entry(item) from cause

    async def committed(self, query: UUID, epoch: int) -> None:
        """Records that a batch of the query was committed in this epoch of the stream."""
        await self._put(query.bytes + _ZERO.bytes, {"epoch": epoch})

    async def finish(self, query: UUID) -> None:
        """Removes all entries of a finished query."""
        await self.forget([query.bytes + _ZERO.bytes])

    async def give_up(self, query: UUID) -> None:
        """Marks a query as abandoned: tasks still writing must delete their segments themselves."""
        await self._put(query.bytes + _ZERO.bytes, {"given_up_s": round(time.time(), 3)})

    async def is_given_up(self, query: UUID) -> bool:
        return "given_up_s" in (await self._of_query(query) or {})

    async def forget_given_up(self, before_s: float) -> None:
        """Removes queries that were abandoned before a time."""
        old = [
            entry.key
            async for entry in self._entries(_ZERO.bytes * 2, _LAST.bytes * 2)
            if entry.key[16:] == _ZERO.bytes and self._decoded(entry).get("given_up_s", before_s) < before_s
        ]
        await self.forget(old)

    async def _put(self, key: bytes, facts: dict[str, Any], *, version: int = NO_VERSION) -> None:
        item = Item(key, version, json.dumps(facts).encode())
        try:
            await self._table.update([item])
        except SegmentMissing:
            with suppress(SegmentExists):  # another task created it first
                await self._table.create(key_bytes=_KEY_BYTES)
            await self._table.update([item])
