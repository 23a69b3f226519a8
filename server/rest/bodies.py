"""The JSON bodies of the REST API, and their conversion from and to the controller's messages.

Refused with 400: a body that is not JSON, or has a value of another type. Refused as `Malformed`, with 500 as in the
reference: a body that lacks a required value, or has an impossible policy. Unknown keys are ignored. Follows
`ModelHelper`. Deliberate differences: an unknown type of a policy is refused, where the reference scales by kilobytes;
an update may set the maximum of a retention policy, which is ignored there.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from segstore.server.controller import Malformed
from segstore.server.rest.asking import Refused
from segstore.wire.controller_api import messages as m
from segstore.wire.names import MAX_INT32, MAX_INT64

T = TypeVar("T")

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1 << 20

Int = Annotated[int, msgspec.Meta(ge=-MAX_INT32 - 1, le=MAX_INT32)]
Long = Annotated[int, msgspec.Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
_ScalingKind = Literal["FIXED_NUM_SEGMENTS", "BY_RATE_IN_KBYTES_PER_SEC", "BY_RATE_IN_EVENTS_PER_SEC"]
_FIXED: Final = "FIXED_NUM_SEGMENTS"


class _Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """A JSON object. Absent and null values are the same, and absent in answers."""


class ScopeProperty(_Body):
    scope_name: str | None = None


class ScalingConfig(_Body):
    type: _ScalingKind | None = None
    target_rate: Int | None = None
    scale_factor: Int | None = None
    min_segments: Int | None = None


class TimeBasedRetention(_Body):
    days: Long | None = None
    hours: Long | None = None
    minutes: Long | None = None


class RetentionConfig(_Body):
    type: Literal["LIMITED_DAYS", "LIMITED_SIZE_MB"] | None = None
    value: Long | None = None
    time_based_retention: TimeBasedRetention | None = None
    max_value: Long | None = None
    max_time_based_retention: TimeBasedRetention | None = None


class StreamRequest(_Body):
    """Creates or updates a stream; for an update, the name is in the path."""

    stream_name: str | None = None
    scaling_policy: ScalingConfig | None = None
    retention_policy: RetentionConfig | None = None
    stream_tags: list[str] | None = None
    timestamp_aggregation_timeout: Long | None = None
    rollover_size_bytes: Long | None = None


class StreamProperty(_Body):
    scope_name: str
    stream_name: str
    scaling_policy: ScalingConfig
    tags: list[str]
    timestamp_aggregation_timeout: Long
    rollover_size_bytes: Long
    retention_policy: RetentionConfig | None = None


class StreamState(_Body):
    stream_state: Literal["SEALED"] | None = None


class ScaleSegment(_Body):
    """A segment of an epoch; start is its creation time in milliseconds since 1970."""

    number: int
    epoch: int
    start: int
    key_start: float
    key_end: float


class ScaleMetadata(_Body):
    """An epoch: its beginning in milliseconds since 1970, its segments, and how many were split and merged for it."""

    timestamp: int
    segments: list[ScaleSegment]
    splits: int
    merges: int


class ReaderGroupName(_Body):
    reader_group_name: str


class ReaderGroupProperty(_Body):
    """A reader group; streams are "scope/stream"."""

    scope_name: str
    reader_group_name: str
    stream_list: list[str]
    online_reader_ids: list[str]


encode = msgspec.json.Encoder().encode
SCOPE: Final = msgspec.json.Decoder(ScopeProperty, strict=False)
STREAM: Final = msgspec.json.Decoder(StreamRequest, strict=False)
STATE: Final = msgspec.json.Decoder(StreamState, strict=False)


def read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the body of a request. Raises `Refused`; `Malformed` for no body at all."""
    if not body:
        raise Malformed("the request has no body")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is not what it should be: {error}") from error


def to_stream_config(scope: str, stream: str, asked: StreamRequest) -> m.StreamConfig:
    """Returns a stream's configuration. Raises `Malformed`."""
    return m.StreamConfig(
        streamInfo=m.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=_scaling(asked.scaling_policy),
        retentionPolicy=None if asked.retention_policy is None else _retention(asked.retention_policy),
        tags=m.Tags(tag=asked.stream_tags or ()),
        timestampAggregationTimeout=asked.timestamp_aggregation_timeout or 0,
        rolloverSizeBytes=asked.rollover_size_bytes or 0,
    )


def _scaling(policy: ScalingConfig | None) -> m.ScalingPolicy:
    if policy is None or policy.type is None:
        raise Malformed("a stream needs scalingPolicy.type")
    rate, factor = 0, 0
    if policy.type != _FIXED:
        rate = _positive(policy.target_rate, "scalingPolicy.targetRate")
        factor = _positive(policy.scale_factor, "scalingPolicy.scaleFactor")
    return m.ScalingPolicy(
        scaleType=m.ScalingPolicy.ScalingPolicyType.Value(policy.type),
        targetRate=rate,
        scaleFactor=factor,
        minNumSegments=_positive(policy.min_segments, "scalingPolicy.minSegments"),
    )


def _positive(number: int | None, name: str) -> int:
    if number is None or number < 1:
        raise Malformed(f"{name} must be at least 1, and is {'missing' if number is None else number}")
    return number


def _retention(policy: RetentionConfig) -> m.RetentionPolicy:
    if policy.type is None or policy.value is None:
        raise Malformed("a retention policy needs retentionPolicy.type and retentionPolicy.value")
    limit, maximum = 0, MAX_INT64
    if policy.type == "LIMITED_SIZE_MB":
        kind, limit = m.RetentionPolicy.SIZE, policy.value * _MIB
        if policy.max_value is not None:
            maximum = policy.max_value * _MIB
    else:
        kind, limit = m.RetentionPolicy.TIME, _duration_ms(policy.value, policy.time_based_retention)
        if policy.max_value is not None or policy.max_time_based_retention is not None:
            maximum = _duration_ms(policy.max_value or 0, policy.max_time_based_retention)
    if not all(-MAX_INT64 <= number <= MAX_INT64 for number in (limit, maximum)):
        raise Malformed("a limit of the retention policy is too large for 64 bits")
    return m.RetentionPolicy(retentionType=kind, retentionParam=limit, retentionMax=maximum)


def _duration_ms(days: int, exact: TimeBasedRetention | None) -> int:
    """Returns a time; `exact` counts only without days."""
    if days or exact is None:
        return days * _DAY_MS
    if exact.days is None or exact.hours is None or exact.minutes is None:
        raise Malformed("the time of a retention policy needs days, hours and minutes")
    return exact.days * _DAY_MS + exact.hours * _HOUR_MS + exact.minutes * _MINUTE_MS


def from_stream_config(message: m.StreamConfig) -> StreamProperty:
    """Returns a stream's properties; the retention policy without its maximum, as in the reference."""
    policy = message.scalingPolicy
    kind: Any = m.ScalingPolicy.ScalingPolicyType.Name(policy.scaleType)
    scaling = ScalingConfig(type=kind, min_segments=policy.minNumSegments)
    if kind != _FIXED:
        scaling.target_rate, scaling.scale_factor = policy.targetRate, policy.scaleFactor
    return StreamProperty(
        scope_name=message.streamInfo.scope,
        stream_name=message.streamInfo.stream,
        scaling_policy=scaling,
        retention_policy=_retention_config(message.retentionPolicy),
        tags=sorted(set(message.tags.tag)),
        timestamp_aggregation_timeout=message.timestampAggregationTimeout,
        rollover_size_bytes=message.rolloverSizeBytes,
    )


def _retention_config(policy: m.RetentionPolicy) -> RetentionConfig | None:
    if policy.retentionType == m.RetentionPolicy.UNKNOWN:
        return None
    if policy.retentionType == m.RetentionPolicy.SIZE:
        return RetentionConfig(type="LIMITED_SIZE_MB", value=policy.retentionParam // _MIB)
    days, rest_ms = divmod(policy.retentionParam, _DAY_MS)
    hours, minutes = rest_ms // _HOUR_MS, rest_ms % _HOUR_MS // _MINUTE_MS
    exact = TimeBasedRetention(days=days, hours=hours, minutes=minutes)
    return RetentionConfig(type="LIMITED_DAYS", value=0 if rest_ms else days, time_based_retention=exact)
