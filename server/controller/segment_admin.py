"""The controller's requests to segment stores, as wire commands over one `ask`.

Every call is idempotent, because the controller may repeat it after a failure: creating an existing segment, sealing a
sealed segment and deleting a missing segment succeed. A call that fails raises `SegmentStoreFailed`, and the caller's
state stays unchanged.

Source: `SegmentHelper` (Pravega's controller).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from segstore.server.controller.errors import SegmentStoreFailed
from segstore.server.controller.policies import ScalingPolicy
from segstore.server.store import EVENT_COUNT, NULL_VALUE
from segstore.wire import Command
from segstore.wire import commands as c
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

CONTROLLER_WRITER: Final = UUID("5e657365-0000-4000-8000-6d61726b6572")
"""The writer id of the controller's own events; its event numbers in a segment start at 1."""


class Load(NamedTuple):
    """Totals of all writes to a segment."""

    events: int
    bytes: int


REPLIES: Final[Mapping[type[Command], tuple[type[Command], ...]]] = {
    c.AppendBlockEnd: (c.DataAppended,),
    c.CreateSegment: (c.SegmentCreated, c.SegmentAlreadyExists),
    c.CreateTableSegment: (c.SegmentCreated, c.SegmentAlreadyExists),
    c.DeleteSegment: (c.SegmentDeleted, c.NoSuchSegment),
    c.DeleteTableSegment: (c.SegmentDeleted, c.NoSuchSegment),
    c.GetSegmentAttribute: (c.SegmentAttribute,),
    c.GetStreamSegmentInfo: (c.StreamSegmentInfo,),
    c.GetTableSegmentInfo: (c.TableSegmentInfo,),
    c.LocateOffset: (c.OffsetLocated,),
    c.MergeSegmentsBatch: (c.SegmentsBatchMerged,),
    c.ReadSegment: (c.SegmentRead,),
    c.ReadTableEntries: (c.TableEntriesRead,),
    c.RemoveTableKeys: (c.TableKeysRemoved,),
    c.SealSegment: (c.SegmentSealed, c.SegmentIsSealed),
    c.SetupAppend: (c.AppendSetup,),
    c.TruncateSegment: (c.SegmentTruncated,),
    c.UpdateSegmentPolicy: (c.SegmentPolicyUpdated, c.SegmentIsSealed),
    c.UpdateTableEntries: (c.TableEntriesUpdated,),
}
"""The replies that mean success, by request: first that something was done, then that there was nothing to do."""


class StoreRefused(Exception):
    """A store did not execute a request. reply: its answer."""

    def __init__(self, reply: Command) -> None:
        super().__init__(f"the store answered {reply}")
        self.reply = reply


class SegmentAdmin(ABC):
    """One or more segment stores; a subclass is one way to reach them."""

    @abstractmethod
    def owner_of(self, segment: str) -> Endpoint:
        """Returns the address of the store that owns the segment's container, even if the segment does not exist.
        Raises NobodyOwns.
        """

    @abstractmethod
    async def ask(self, segment: str, did: str, request: Command) -> Command:
        """The reply of the segment's owner to a request, which may be a failure.

        request: without request id and delegation token, which are added where they are needed. did: the verb for an
        error. Raises SegmentStoreFailed if there is no reply, as NobodyOwns if a retry helps.
        """

    async def _done(self, segment: str, did: str, request: Command) -> Any:
        reply = await self.ask(segment, did, request)
        if isinstance(reply, REPLIES[type(request)]):
            return reply
        raise SegmentStoreFailed(segment, did) from StoreRefused(reply)

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        """Creates a segment of a stream, or of a transaction."""
        request = c.CreateSegment(0, segment, scaling.kind, scaling.target_rate, "", rollover_bytes)
        await self._done(segment, "create", request)

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        """Sets the segment's scaling policy; a sealed segment keeps its own."""
        request = c.UpdateSegmentPolicy(0, segment, scaling.kind, scaling.target_rate, "")
        await self._done(segment, "update", request)

    async def seal_segment(self, segment: str) -> int:
        """Seals a segment and returns its length."""
        await self._done(segment, "seal", c.SealSegment(0, segment, ""))
        return await self.segment_length(segment)

    async def segment_length(self, segment: str) -> int:
        """The offset at which the next byte would be written."""
        return (await self.segment_info(segment)).write_offset

    async def segment_info(self, segment: str, did: str = "measure") -> c.StreamSegmentInfo:
        """Its length, start offset, and whether it is sealed. did: the verb for an error."""
        info: c.StreamSegmentInfo = await self._done(segment, did, c.GetStreamSegmentInfo(0, segment, ""))
        return info

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        """Appends an event, with its header, as `CONTROLLER_WRITER`; a no-op if it has appended this number."""
        set_up = c.SetupAppend(0, CONTROLLER_WRITER, segment, "")
        if (await self._done(segment, "set up appends to", set_up)).last_event_number < number:
            append = c.AppendBlockEnd(CONTROLLER_WRITER, len(event), event, 1, number, 0)
            await self._done(segment, "append to", append)

    async def append_events(self, segment: str, writer: UUID, events: Sequence[bytes]) -> int | None:
        """Appends events, which have headers, at once and with the writer's next numbers.

        Returns the offset of the first; None if the segment is sealed and nothing was written.
        """
        last = (await self._done(segment, "set up appends to", c.SetupAppend(0, writer, segment, ""))).last_event_number
        data = b"".join(events)
        append = c.AppendBlockEnd(writer, len(data), data, len(events), max(last, 0) + len(events), 0)
        reply = await self.ask(segment, "append to", append)
        if isinstance(reply, c.SegmentIsSealed):
            return None
        if not isinstance(reply, c.DataAppended):
            raise SegmentStoreFailed(segment, "append to") from StoreRefused(reply)
        return reply.current_segment_write_offset - len(data)

    async def read_segment(self, segment: str, offset: int, size: int) -> bytes:
        """Reads `size` bytes from `offset`; all of them must exist."""
        parts = []
        while size > 0:
            request = c.ReadSegment(segment, offset, size, "")
            data = bytes((await self._done(segment, "read", request)).data)[:size]
            if not data:
                raise SegmentStoreFailed(segment, "read", f"it has no bytes at {offset}")
            parts.append(data)
            offset += len(data)
            size -= len(data)
        return b"".join(parts)

    async def locate_offset(self, segment: str, offset: int) -> int:
        """The smallest length that the segment's index records and that is at least `offset`: the end of an append."""
        return int((await self._done(segment, "locate an offset in", c.LocateOffset(0, segment, offset, ""))).offset)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """Discards the bytes before `offset`; a no-op if they are gone already."""
        if offset > (await self.segment_info(segment, "truncate")).start_offset:
            await self._done(segment, "truncate", c.TruncateSegment(0, segment, offset, ""))

    async def delete_segment(self, segment: str) -> None:
        await self._done(segment, "delete", c.DeleteSegment(0, segment, ""))

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        """Moves the sources, at most 100, in order and atomically to the end of the target.

        A missing source counts as merged before.
        """
        if (await self.segment_info(target, "merge into")).is_sealed:
            raise SegmentStoreFailed(target, "merge into")
        request = c.MergeSegmentsBatch(0, target, tuple(sources), "")
        await self._done(target, "merge into", request)

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        """Creates a table segment whose keys have a fixed length; 0: any length."""
        request = c.CreateTableSegment(0, segment, False, key_bytes, "", rollover_bytes)
        await self._done(segment, "create", request)

    async def delete_table(self, segment: str) -> None:
        """Deletes a table segment with all that is in it."""
        request = c.DeleteTableSegment(0, segment, False, "")
        await self._done(segment, "delete", request)

    async def update_table(self, segment: str, entries: Mapping[bytes, bytes]) -> None:
        """Writes all entries of a table segment atomically, by key and regardless of versions."""
        written = tuple(c.TableEntry(c.TableKey(key), c.TableValue(value)) for key, value in entries.items())
        await self._done(segment, "write entries to", c.UpdateTableEntries(0, segment, "", c.TableEntries(written)))

    async def remove_keys(self, segment: str, keys: Sequence[bytes]) -> None:
        """Removes keys of a table segment atomically; missing keys are ignored."""
        await self._done(segment, "remove keys from", c.RemoveTableKeys(0, segment, "", tuple(map(c.TableKey, keys))))

    async def read_table(self, segment: str, count: int, first: bytes = b"", last: bytes = b"") -> list[c.TableEntry]:
        """Reads about `count` entries of a table segment by key, from key `first` to `last`; b"" for any."""
        return (await self.read_entries(segment, count, first=first, last=last))[0]

    async def read_entries(
        self, segment: str, count: int, token: bytes = b"", *, first: bytes = b"", last: bytes = b""
    ) -> tuple[list[c.TableEntry], bytes]:
        """Reads about `count` entries of a table segment of any kind. Returns them with the token for the next call.

        The token is b"" at the start and at the end.
        """
        args = c.TableIteratorArgs(token, b"", first, last)
        reply: c.TableEntriesRead = await self._done(segment, "read", c.ReadTableEntries(0, segment, "", count, args))
        return list(reply.entries.entries), bytes(reply.continuation_token)

    async def count_entries(self, segment: str) -> int:
        """The number of entries of a table segment."""
        return int((await self._done(segment, "measure", c.GetTableSegmentInfo(0, segment, ""))).entry_count)

    async def attribute(self, segment: str, attribute: UUID) -> int | None:
        """Returns the value of a segment's attribute, or None."""
        asked = c.GetSegmentAttribute(0, segment, attribute, "")
        value = int((await self._done(segment, "read an attribute of", asked)).value)
        return None if value == NULL_VALUE else value

    async def load(self, segment: str) -> Load | None:
        """Returns the bytes and events ever written to a segment; None if the store does not tell."""
        try:
            length = await self.segment_length(segment)
            events = await self.attribute(segment, EVENT_COUNT)
        except SegmentStoreFailed as error:
            log.debug("no load of %s: %s", segment, error.__cause__)
            return None
        return Load(events or 0, length)
