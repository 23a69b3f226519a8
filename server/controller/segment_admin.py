"""The controller's interface to the segment store, small enough to fake in tests.

Every call is idempotent, as the controller may ask again after a failure: creating what exists, sealing what is sealed
and deleting what is gone succeed. A call that could not be done raises `SegmentStoreFailed`, and the caller's state
stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from segstore.server.controller.policies import ScalingPolicy

CONTROLLER_WRITER: Final = UUID("5e657365-0000-4000-8000-6d61726b6572")
"""The id under which a controller writes events of its own; its numbers in a segment count from 1."""


class Endpoint(NamedTuple):
    """Where a store listens, as clients are told: under TLS a name that its certificate carries."""

    host: str
    port: int


class Load(NamedTuple):
    """What was ever written to a segment."""

    events: int
    bytes: int


class SegmentAdmin(Protocol):
    """The segment store, or several, behind their owners' names."""

    def owner_of(self, segment: str) -> Endpoint:
        """The store that owns the container of this segment, whether or not the segment exists."""
        ...

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        """Make a segment of a stream, or of a transaction."""
        ...

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        """The segment's scaling policy has changed."""
        ...

    async def seal_segment(self, segment: str) -> int:
        """Seal it and give its length."""
        ...

    async def segment_length(self, segment: str) -> int:
        """The offset at which the next byte would be written."""
        ...

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        """Append an event, with its header, as `CONTROLLER_WRITER`; nothing happens if it appended this number."""
        ...

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """Drop what lies before `offset`; nothing happens if that is gone already."""
        ...

    async def delete_segment(self, segment: str) -> None:
        """Delete it."""
        ...

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        """Move the sources, 100 at most, in order to the end of the target, all or none; one that is gone was merged
        before.
        """
        ...

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        """Make a table segment whose keys have a fixed length; 0: any length."""
        ...

    async def delete_table(self, segment: str) -> None:
        """Delete a table segment with all that is in it."""
        ...

    async def loads(self, segments: Sequence[str]) -> Mapping[str, Load]:
        """What was ever written to each; segments that are not there are left out."""
        ...
