"""The controller's interface to the segment store, small enough to fake in tests.

Every call is idempotent, because the controller retries after failures: creating an existing segment, sealing a sealed
one and deleting a missing one succeed. A call that fails raises `SegmentStoreFailed`, and the caller keeps its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from segstore.server.controller.policies import ScalingPolicy

CONTROLLER_WRITER: Final = UUID("5e657365-0000-4000-8000-6d61726b6572")
"""The writer id of the controller's own events; its event numbers in a segment start at 1."""


class Endpoint(NamedTuple):
    """A store's address as published to clients; with TLS a name in its certificate."""

    host: str
    port: int


class Load(NamedTuple):
    """Totals of all writes to a segment."""

    events: int
    bytes: int


class SegmentAdmin(Protocol):
    """Operations on segments, executed by the store that owns each."""

    def owner_of(self, segment: str) -> Endpoint:
        """Return the store that owns the container of this segment, whether or not the segment exists."""
        ...

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        """Create a segment of a stream or a transaction."""
        ...

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        """Change the segment's scaling policy."""
        ...

    async def seal_segment(self, segment: str) -> int:
        """Seal the segment and return its length."""
        ...

    async def segment_length(self, segment: str) -> int:
        """Return the offset of the next byte to be written."""
        ...

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        """Append an event, with its header, as `CONTROLLER_WRITER`; no-op if this number was appended before."""
        ...

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """Truncate the segment at `offset`; no-op if it starts there or later."""
        ...

    async def delete_segment(self, segment: str) -> None:
        """Delete the segment."""
        ...

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        """Append the sources, at most 100, to the target, in order and atomically; a missing one was merged before."""
        ...

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        """Create a table segment whose keys have a fixed length; 0 for any length."""
        ...

    async def delete_table(self, segment: str) -> None:
        """Delete a table segment and its contents."""
        ...

    async def loads(self, segments: Sequence[str]) -> Mapping[str, Load]:
        """Return the totals of each segment; missing segments are left out."""
        ...
