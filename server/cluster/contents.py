"""Reads and changes a cluster's contents in tests: the operations of the control API as methods.

Each method calls the handler that answers the operation over HTTP, so both have the same effects and the same errors.
Results are the models of the API's description. Streams, groups and tables are named as "scope/name". Methods raise
ControllerError, StoreError, LookupError, ValueError, RuntimeError.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from segstore.server.control_api import (
        Controlled,
        GroupDetails,
        GroupSummary,
        Operations,
        SegmentOfStream,
        StreamDetails,
        StreamInfo,
        StreamSummary,
        TableDetails,
        TableSummary,
        TransactionDetails,
        TransactionState,
        WrittenEvent,
    )

T = TypeVar("T")

_PAGE: Final = 1_000


class WithContents(ABC):
    """A cluster whose scopes, streams, groups and tables can be read and written."""

    @property
    @abstractmethod
    def _controlled(self) -> Controlled:
        """The objects of the control API."""

    @cached_property
    def _operations(self) -> Operations:
        from segstore.server.control_api import Operations  # a web library

        return Operations(self._controlled)

    def _ask(self, operation: str, *path: object, **arguments: object) -> Coroutine[Any, Any, T]:
        return self._operations.call(operation, path, arguments)

    async def _all(self, operation: str, field: str, *path: object) -> list[Any]:
        """Returns the entries of all pages of a list."""
        entries: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            page: Any = await self._ask(operation, *path, **after)
            entries += getattr(page, field)
            if page.next is None:
                return entries
            after = {"after": UUID(page.next) if field == "transactions" else page.next}

    # --- streams ----------------------------------------------------------------------------------------------------

    async def scopes(self) -> list[str]:
        """The names of all scopes, sorted."""
        return await self._all("list_scopes", "scopes")

    async def streams(self, scope: str) -> list[StreamSummary]:
        """Returns the streams of a scope, without internal streams."""
        return await self._all("list_streams", "streams", scope)

    async def stream(self, stream: str) -> StreamDetails:
        """A stream with its configuration."""
        return await self._ask("get_stream", *_two(stream))

    async def stream_segments(self, stream: str) -> list[SegmentOfStream]:
        """The segments that a stream has and had, by epoch."""
        return await self._all("list_stream_segments", "segments", *_two(stream))

    async def create_stream(self, scope: str, stream: str, segments: int = 1) -> StreamInfo:
        """Creates a stream, and its scope if needed."""
        return await self._ask("create_stream", scope, stream, segments=segments)

    async def seal_stream(self, stream: str) -> StreamInfo:
        """Seals a stream."""
        return await self._ask("seal_stream", *_two(stream))

    async def scale_stream(self, stream: str, segments: int) -> StreamInfo:
        """Replaces all open segments of a stream by others with equal key ranges."""
        return await self._ask("scale_stream", *_two(stream), segments=segments)

    async def truncate_stream(self, stream: str, cut: Mapping[int, int]) -> StreamInfo:
        """Removes the events before a cut: segment id → offset."""
        position = ",".join(f"{segment}:{offset}" for segment, offset in cut.items())
        return await self._ask("truncate_stream", *_two(stream), position=position)

    async def delete_stream(self, stream: str) -> None:
        """Deletes a sealed stream."""
        await self._ask("delete_stream", *_two(stream))

    async def events(self, stream: str) -> list[bytes]:
        """All events of a stream; events of one routing key are in order."""
        events: list[bytes] = []
        position = ""
        while True:
            answer: Any = await self._ask("read_events", *_two(stream), start=position, limit=_PAGE, form="base64")
            page = json.loads(answer.body)
            events += map(_data, page["events"])
            if page["at_end"]:
                return events
            position = page["next"]

    async def write_events(
        self, stream: str, events: Iterable[bytes | str], *, routing_key: str = "", transaction: UUID | None = None
    ) -> list[WrittenEvent]:
        """Writes events, at most 10,000, to a stream or into a transaction; returns where."""
        path = _two(stream) if transaction is None else (*_two(stream), transaction)
        operation = "write_events" if transaction is None else "write_transaction"
        written: Any = await self._ask(
            operation, *path, events=[{**_content(event), "routing_key": routing_key} for event in events]
        )
        return list(written.events)

    # --- transactions and groups ------------------------------------------------------------------------------------

    async def transactions(self, stream: str) -> list[TransactionDetails]:
        """The transactions of a stream that have not ended."""
        return await self._all("list_transactions", "transactions", *_two(stream))

    async def transaction(self, stream: str, transaction: UUID) -> TransactionDetails:
        """Returns a transaction; ended transactions are found for a while."""
        return await self._ask("get_transaction", *_two(stream), transaction)

    async def begin_transaction(self, stream: str, lease_ms: int = 30_000) -> UUID:
        """Begins a transaction; returns its id."""
        begun: TransactionState = await self._ask("begin_transaction", *_two(stream), lease_ms=lease_ms)
        return begun.id

    async def commit_transaction(self, stream: str, transaction: UUID) -> TransactionState:
        """Commits a transaction."""
        return await self._ask("commit_transaction", *_two(stream), transaction)

    async def abort_transaction(self, stream: str, transaction: UUID) -> TransactionState:
        """Aborts a transaction."""
        return await self._ask("abort_transaction", *_two(stream), transaction)

    async def groups(self, scope: str) -> list[GroupSummary]:
        """The reader groups of a scope."""
        return await self._all("list_groups", "groups", scope)

    async def group(self, group: str) -> GroupDetails:
        """A reader group: its readers, their positions and lag."""
        return await self._ask("get_group", *_two(group))

    # --- tables -----------------------------------------------------------------------------------------------------

    async def tables(self, scope: str) -> list[TableSummary]:
        """The key-value tables of a scope."""
        return await self._all("list_tables", "tables", scope)

    async def table(self, table: str) -> TableDetails:
        """A key-value table and its partitions."""
        return await self._ask("get_table", *_two(table))

    async def create_table(
        self, table: str, *, primary_key_bytes: int, secondary_key_bytes: int = 0, partitions: int = 1
    ) -> None:
        """Creates a key-value table, and its scope if needed."""
        sizes = {"primary_key_bytes": primary_key_bytes, "secondary_key_bytes": secondary_key_bytes}
        await self._ask("create_table", *_two(table), partitions=partitions, **sizes)

    async def delete_table(self, table: str) -> None:
        """Deletes a key-value table."""
        await self._ask("delete_table", *_two(table))

    async def entries(self, table: str) -> dict[bytes, bytes]:
        """All entries of a table; a key is the primary key, followed by the secondary key."""
        entries: dict[bytes, bytes] = {}
        after: str | None = ""
        while after is not None:
            answer: Any = await self._ask("read_entries", *_two(table), after=after, limit=_PAGE, form="base64")
            page = json.loads(answer.body)
            entries |= {_data(entry["key"]): _data(entry["value"]) for entry in page["entries"]}
            after = page["next"]
        return entries

    async def write_entries(self, table: str, entries: Mapping[bytes | str, bytes | str]) -> None:
        """Writes table entries, at most 10,000."""
        contents = [{"key": _content(key), "value": _content(value)} for key, value in entries.items()]
        await self._ask("write_entries", *_two(table), entries=contents)

    async def remove_entry(self, table: str, key: str) -> None:
        """Removes the entry of a key."""
        await self._ask("remove_entry", *_two(table), key=key)


def _two(name: str) -> tuple[str, str]:
    """Returns the scope and the name in it. Raises ValueError."""
    scope, _, rest = str(name).partition("/")
    if not (scope and rest) or "/" in rest:
        raise ValueError(f"a name is SCOPE/NAME, not {name!r}")
    return scope, rest


def _content(data: bytes | str) -> dict[str, str]:
    return {"text": data} if isinstance(data, str) else {"base64": base64.b64encode(data).decode()}


def _data(content: Mapping[str, str]) -> bytes:
    return base64.b64decode(content["base64"]) if "base64" in content else content["text"].encode()
