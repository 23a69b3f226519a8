"""Stream configurations as JSON, and what of them is impossible."""

from typing import Any

import msgspec
import pytest

from segstore.server.controller import Malformed
from segstore.server.rest import bodies
from segstore.wire.controller_api import messages as m
from tests.looped import looped

LONG_MAX = (1 << 63) - 1
DAY_MS = 86_400_000
RATE = {"type": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": 100, "scaleFactor": 2, "minSegments": 2}


def asked(**given: Any) -> bodies.StreamRequest:
    return bodies.read(msgspec.json.encode({"scalingPolicy": RATE, **given}), bodies.STREAM)


def shown(message: m.StreamConfig) -> Any:
    return msgspec.json.decode(bodies.encode(bodies.from_stream_config(message)))


@looped(
    ("kind", "number"), [("FIXED_NUM_SEGMENTS", 0), ("BY_RATE_IN_KBYTES_PER_SEC", 1), ("BY_RATE_IN_EVENTS_PER_SEC", 2)]
)
def test_scaling_policies(kind: str, number: int) -> None:
    message = bodies.to_stream_config("a", "s", asked(scalingPolicy={**RATE, "type": kind}))
    policy = message.scalingPolicy
    rates = (0, 0) if number == 0 else (100, 2)
    assert (policy.scaleType, policy.minNumSegments) == (number, 2)
    assert (policy.targetRate, policy.scaleFactor) == rates
    fixed = {"type": kind, "minSegments": 2}
    assert shown(message)["scalingPolicy"] == (fixed if number == 0 else {**RATE, "type": kind})


@looped(
    ("policy", "limit", "maximum"),
    [
        ({"value": 123}, 123 * DAY_MS, LONG_MAX),
        ({"value": 1, "timeBasedRetention": {"days": 9, "hours": 9, "minutes": 9}}, DAY_MS, LONG_MAX),
        ({"value": 0, "timeBasedRetention": {"days": 2, "hours": 3, "minutes": 5}}, 183_900_000, LONG_MAX),
        ({"value": 1, "maxValue": 2}, DAY_MS, 2 * DAY_MS),
        ({"value": 1, "maxTimeBasedRetention": {"days": 0, "hours": 30, "minutes": 0}}, DAY_MS, 108_000_000),
        ({"type": "LIMITED_SIZE_MB", "value": 3}, 3 << 20, LONG_MAX),
        ({"type": "LIMITED_SIZE_MB", "value": 3, "maxValue": 4}, 3 << 20, 4 << 20),
        ({"type": "LIMITED_SIZE_MB", "value": "3"}, 3 << 20, LONG_MAX),
    ],
)
def test_retention_policies(policy: dict[str, Any], limit: int, maximum: int) -> None:
    message = bodies.to_stream_config("a", "s", asked(retentionPolicy={"type": "LIMITED_DAYS", **policy}))
    assert (message.retentionPolicy.retentionParam, message.retentionPolicy.retentionMax) == (limit, maximum)


@looped(
    ("limit_ms", "value", "exact"),
    [(123 * DAY_MS, 123, (123, 0, 0)), (2 * DAY_MS + 11_100_000, 0, (2, 3, 5)), (123, 0, (0, 0, 0)), (0, 0, (0, 0, 0))],
)
def test_a_time_of_retention_is_shown_in_days_or_exactly(
    limit_ms: int, value: int, exact: tuple[int, int, int]
) -> None:
    message = m.StreamConfig()
    message.retentionPolicy.retentionType = m.RetentionPolicy.TIME
    message.retentionPolicy.retentionParam = limit_ms
    assert shown(message)["retentionPolicy"] == {
        "type": "LIMITED_DAYS",
        "value": value,
        "timeBasedRetention": dict(zip(("days", "hours", "minutes"), exact, strict=True)),
    }


def test_a_size_of_retention_is_shown_in_whole_mebibytes_and_none_is_left_out() -> None:
    message = bodies.to_stream_config("a", "s", asked(streamTags=["b", "a", "b"]))
    assert shown(message) == {
        "scopeName": "a",
        "streamName": "s",
        "scalingPolicy": RATE,
        "tags": ["a", "b"],
        "timestampAggregationTimeout": 0,
        "rolloverSizeBytes": 0,
    }
    message.retentionPolicy.retentionType = m.RetentionPolicy.SIZE
    message.retentionPolicy.retentionParam = (5 << 20) + 7
    assert shown(message)["retentionPolicy"] == {"type": "LIMITED_SIZE_MB", "value": 5}


@looped(
    ("given", "why"),
    [
        ({"scalingPolicy": None}, "needs scalingPolicy.type"),
        ({"scalingPolicy": {"minSegments": 1}}, "needs scalingPolicy.type"),
        ({"scalingPolicy": {**RATE, "minSegments": None}}, "minSegments must be at least 1, and is missing"),
        ({"scalingPolicy": {**RATE, "targetRate": 0}}, "targetRate must be at least 1"),
        ({"scalingPolicy": {**RATE, "scaleFactor": -1}}, "scaleFactor must be at least 1"),
        ({"retentionPolicy": {}}, r"needs retentionPolicy\.type"),
        ({"retentionPolicy": {"type": "LIMITED_DAYS"}}, r"and retentionPolicy\.value"),
        (
            {"retentionPolicy": {"type": "LIMITED_DAYS", "value": 0, "timeBasedRetention": {"days": 1}}},
            "needs days, hours and minutes",
        ),
        ({"retentionPolicy": {"type": "LIMITED_DAYS", "value": LONG_MAX}}, "too large for 64 bits"),
        ({"retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 1, "maxValue": LONG_MAX}}, "too large for 64 bits"),
    ],
)
def test_a_policy_that_lacks_a_value_or_is_impossible_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        bodies.to_stream_config("a", "s", asked(**given))
