"""Configuration values from clients: scaling and retention policies, reader groups, key-value tables.

Values are immutable. Numbers of the enums are those on the wire. A retention maximum of 0 means no maximum, as in
Pravega's `RetentionPolicy`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from uuid import UUID

import msgspec

from segstore.server.controller.errors import InvalidArgument

Cut = dict[int, int]
"""A stream cut: segment id to offset."""

NO_ID: Final = "00000000-0000-0000-0000-000000000000"
"""The id that a client sends for a new reader group."""


class ScalingType(IntEnum):
    """The quantity that determines the number of segments."""

    FIXED = 0
    KBYTES_PER_S = 1
    EVENTS_PER_S = 2


class ScalingPolicy(msgspec.Struct, frozen=True):
    """Scaling policy: `target_rate` per segment, in the type's unit; a split creates up to `factor` segments."""

    kind: ScalingType = ScalingType.FIXED
    target_rate: int = 0
    factor: int = 0
    min_segments: int = 1


class RetentionType(IntEnum):
    """The unit of a retention limit."""

    TIME = 1
    SIZE = 2


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Keeps at least `limit` milliseconds or bytes; if subscribers lag, at most `maximum` (0: no maximum)."""

    kind: RetentionType
    limit: int
    maximum: int = 0


class StreamConfig(msgspec.Struct, frozen=True):
    """The configuration of a stream."""

    scaling: ScalingPolicy = ScalingPolicy()
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0


class SubscriberRetention(IntEnum):
    """Whether a reader group's position delays the retention of its streams."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC = 2


class ReaderGroupConfig(msgspec.Struct, frozen=True):
    """A reader group's configuration; cuts by "scope/stream", an empty cut means unbounded."""

    group_id: str = NO_ID
    generation: int = 0
    refresh_ms: int = 0
    checkpoint_interval_ms: int = 0
    max_outstanding_checkpoints: int = 0
    retention: SubscriberRetention = SubscriberRetention.NONE
    starting_cuts: dict[str, Cut] = {}
    ending_cuts: dict[str, Cut] = {}
    rollover_bytes: int = 0


def parse_group_id(text: str) -> UUID:
    """Returns a reader group's id. Raises `InvalidArgument`."""
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidArgument(f"{text[:80]!r} is not the id of a reader group") from error


class TableConfig(msgspec.Struct, frozen=True):
    """A key-value table's configuration; key lengths in bytes."""

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int = 0
    rollover_bytes: int = 0

    @property
    def key_bytes(self) -> int:
        """The length of a whole key: the primary key and the secondary key behind it."""
        return self.primary_key_bytes + self.secondary_key_bytes
