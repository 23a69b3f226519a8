"""Configurations of streams and of reader groups: scaling and retention policies, tags, and the controller's messages.

Values are immutable. The methods that create policies check them; a configuration is checked before it is sent. Other
clients' configurations are returned as they are. Names and limits follow `StreamConfiguration`, `ScalingPolicy` and
`RetentionPolicy`, messages `ModelHelper` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, Self
from uuid import UUID

from segstore.wire.controller_api import messages as m
from segstore.wire.names import MAX_INT32, MAX_INT64
from segstore.wire.reader_groups import RETENTIONS, Cuts, GroupConfig

_MAX_TAGS: Final = 127
_MAX_TAG_CHARACTERS: Final = 255


class ScaleType(IntEnum):
    """What determines the number of segments, with the values of the controller's API."""

    FIXED = 0
    DATA_RATE = 1
    EVENT_RATE = 2


@dataclass(frozen=True)
class ScalingPolicy:
    """How the number of a stream's segments changes. Created by `fixed`, `by_event_rate` or `by_data_rate`.

    kind: what determines it. target_rate: rate per segment, in events/s or KB/s (1,024 bytes); 0 if fixed. factor: most
    segments that replace one at a split; 0 if fixed. minimum: the fewest segments, also at the start.
    """

    kind: ScaleType = ScaleType.FIXED
    target_rate: int = 0
    factor: int = 0
    minimum: int = 1

    @classmethod
    def fixed(cls, segments: int) -> Self:
        """Never scales by itself. Raises ValueError for fewer than 1 segment."""
        return cls(ScaleType.FIXED, 0, 0, *_at_least_1(segments=segments))

    @classmethod
    def by_event_rate(cls, events_per_s: int, *, factor: int = 2, minimum: int = 1) -> Self:
        """Splits segments with more events per second, and merges segments with much fewer. Raises ValueError."""
        return cls(ScaleType.EVENT_RATE, *_at_least_1(rate=events_per_s, factor=factor, minimum=minimum))

    @classmethod
    def by_data_rate(cls, kbytes_per_s: int, *, factor: int = 2, minimum: int = 1) -> Self:
        """Splits segments with more KB per second, and merges segments with much fewer. Raises ValueError."""
        return cls(ScaleType.DATA_RATE, *_at_least_1(rate=kbytes_per_s, factor=factor, minimum=minimum))


class RetentionType(IntEnum):
    """What a retention policy limits, with the values of the controller's API."""

    TIME = 1
    SIZE = 2


_UNITS: Final = {RetentionType.TIME: "ms", RetentionType.SIZE: "bytes"}


@dataclass(frozen=True)
class RetentionPolicy:
    """When a stream is truncated automatically. Created by `by_time` or `by_size`.

    kind: the limited quantity. minimum, maximum: milliseconds or bytes that are kept at least, and at most even if
    subscribers lag; None for no maximum.
    """

    kind: RetentionType
    minimum: int
    maximum: int | None = None

    @classmethod
    def by_time(cls, minimum: timedelta, maximum: timedelta | None = None) -> Self:
        """Keeps events for at least `minimum`, and at most `maximum`. Raises ValueError."""
        most = None if maximum is None else _milliseconds(maximum)
        return cls._checked(RetentionType.TIME, _milliseconds(minimum), most)

    @classmethod
    def by_size(cls, minimum_bytes: int, maximum_bytes: int | None = None) -> Self:
        """Keeps at least `minimum_bytes`, and at most `maximum_bytes`. Raises ValueError."""
        return cls._checked(RetentionType.SIZE, minimum_bytes, maximum_bytes)

    @classmethod
    def _checked(cls, kind: RetentionType, minimum: int, maximum: int | None) -> Self:
        limit = MAX_INT64 if maximum is None else maximum
        for size, most in ((limit, MAX_INT64), (minimum, limit)):
            if not 1 <= size <= most:
                raise ValueError(f"what is kept must be from 1 to {most} {_UNITS[kind]}, not {size}")
        return cls(kind, minimum, maximum)


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """The configuration of a stream.

    tags: at most 127, of at most 255 characters; kept as a sorted tuple without duplicates.
    timestamp_aggregation_timeout_ms: how long a watermark waits for a writer that notes no newer time.
    rollover_bytes: rollover size of the segments' storage; 0 for the server's default.
    """

    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    retention: RetentionPolicy | None = None
    tags: Sequence[str] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.tags, str):
            raise ValueError(f"tags are several texts, not the text {self.tags[:80]!r}")
        object.__setattr__(self, "tags", tuple(sorted(set(self.tags))))

    def check(self) -> None:
        """Raises ValueError if a controller would refuse it, which reports only a failure."""
        _at_least_1(segments=self.scaling.minimum)
        if len(self.tags) > _MAX_TAGS:
            raise ValueError(f"a stream has at most {_MAX_TAGS} tags, not {len(self.tags)}")
        for tag in self.tags:
            if len(tag) > _MAX_TAG_CHARACTERS:
                raise ValueError(f"a tag has at most {_MAX_TAG_CHARACTERS} characters, not {len(tag)}: {tag[:80]!r}…")
        if self.rollover_bytes < 0:
            raise ValueError(f"the rollover size of {self.rollover_bytes} bytes is negative")


def to_message(scope: str, stream: str, config: StreamConfig) -> Any:
    """Returns a configuration as the controller's message. Raises ValueError if a controller would refuse it."""
    config.check()
    scaling, retention = config.scaling, config.retention
    message = m.StreamConfig(
        streamInfo=m.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=m.ScalingPolicy(
            scaleType=scaling.kind.value,
            targetRate=scaling.target_rate,
            scaleFactor=scaling.factor,
            minNumSegments=scaling.minimum,
        ),
        tags=m.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )
    if retention is not None:
        message.retentionPolicy.retentionType = retention.kind.value
        message.retentionPolicy.retentionParam = retention.minimum
        message.retentionPolicy.retentionMax = MAX_INT64 if retention.maximum is None else retention.maximum
    return message


def from_message(message: Any) -> StreamConfig:
    """Returns the configuration in a controller's message. Raises ValueError for an unknown kind of policy."""
    scaling, retention = message.scalingPolicy, message.retentionPolicy
    policy = None
    if retention.retentionType:
        maximum = None if retention.retentionMax in (0, MAX_INT64) else retention.retentionMax
        policy = RetentionPolicy(RetentionType(retention.retentionType), retention.retentionParam, maximum)
    return StreamConfig(
        scaling=ScalingPolicy(
            ScaleType(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments
        ),
        retention=policy,
        tags=tuple(message.tags.tag),
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )


def _at_least_1(**numbers: int) -> tuple[int, ...]:
    """Returns the numbers of a scaling policy. Raises ValueError, which names the number that is out of range."""
    for name, number in numbers.items():
        if not 1 <= number <= MAX_INT32:
            if name == "segments":
                raise ValueError(f"a stream has from 1 to {MAX_INT32} segments, not {number}")
            raise ValueError(f"the {name} of a scaling policy must be from 1 to {MAX_INT32}, not {number}")
    return tuple(numbers.values())


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


# --- reader groups ----------------------------------------------------------------------------------------------------


def group_to_message(scope: str, group: str, config: GroupConfig) -> Any:
    return m.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_ms,
        maxOutstandingCheckpointRequest=config.most_checkpoints,
        retentionType=RETENTIONS.index(config.retention),
        generation=config.generation,
        readerGroupId=str(config.id),
        startingStreamCuts=[_cut(*item) for item in config.starts.items()],
        endingStreamCuts=[_cut(*item) for item in config.ends.items()],
    )


def group_from_message(message: Any) -> GroupConfig:
    """Raises ValueError for values that no group's configuration has."""
    if not 0 <= message.retentionType < len(RETENTIONS):
        raise ValueError(f"{message.retentionType} is no type of retention")
    return GroupConfig(
        _cuts(message.startingStreamCuts),
        _cuts(message.endingStreamCuts),
        message.groupRefreshTimeMillis,
        message.automaticCheckpointIntervalMillis,
        message.maxOutstandingCheckpointRequest,
        RETENTIONS[message.retentionType],
        message.generation,
        UUID(message.readerGroupId),
    )


def _cut(name: str, cut: Mapping[int, int]) -> Any:
    scope, _, stream = name.partition("/")
    return m.StreamCut(streamInfo=m.StreamInfo(scope=scope, stream=stream), cut=cut)


def _cuts(messages: Iterable[Any]) -> Cuts:
    return {f"{message.streamInfo.scope}/{message.streamInfo.stream}": dict(message.cut) for message in messages}
