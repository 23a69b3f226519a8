"""Configurations of streams: what is created is returned, updated and listed; what no stream can have is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from segstore.client import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig, connect
from segstore.client.controller import Controller, ControllerChannels
from segstore.client.controller.policies import from_message, to_message
from segstore.client.errors import NoSuchStream, ProtocolViolation, StreamSealed
from segstore.server.cluster import MockCluster
from segstore.wire.controller_api import messages as m
from tests.client.controller.test_controller import Scripted
from tests.client.support import settings

FULL = StreamConfig(
    scaling=ScalingPolicy.by_event_rate(100, factor=3, minimum=2),
    retention=RetentionPolicy.by_time(timedelta(hours=1), timedelta(days=1)),
    tags=["eu", "billing", "eu"],
    timestamp_aggregation_timeout_ms=9_000,
    rollover_bytes=1 << 20,
)


@pytest.mark.parametrize(
    "config",
    [
        FULL,
        StreamConfig(),
        StreamConfig(scaling=ScalingPolicy.fixed(7), retention=RetentionPolicy.by_size(10, 20)),
        StreamConfig(scaling=ScalingPolicy.by_data_rate(5), retention=RetentionPolicy.by_size(10)),
        StreamConfig(retention=RetentionPolicy.by_time(timedelta(milliseconds=1))),
    ],
)
def test_a_configuration_survives_the_message(config: StreamConfig) -> None:
    assert from_message(m.StreamConfig.FromString(to_message("a", "s", config).SerializeToString())) == config


def test_the_message_is_what_the_java_client_sends() -> None:
    """`ModelHelper.decode` of Pravega's client: a policy without a maximum has the largest long."""
    config = StreamConfig(
        scaling=ScalingPolicy.by_data_rate(20, factor=2, minimum=3),
        retention=RetentionPolicy.by_size(1_000),
        tags=["x"],
    )
    assert to_message("a", "s", config) == m.StreamConfig(
        streamInfo=m.StreamInfo(scope="a", stream="s"),
        scalingPolicy=m.ScalingPolicy(
            scaleType=m.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC, targetRate=20, scaleFactor=2, minNumSegments=3
        ),
        retentionPolicy=m.RetentionPolicy(
            retentionType=m.RetentionPolicy.SIZE, retentionParam=1_000, retentionMax=2**63 - 1
        ),
        tags=m.Tags(tag=["x"]),
    )


def test_values_are_those_of_the_api() -> None:
    scaling, retention = m.ScalingPolicy, m.RetentionPolicy
    api = [scaling.FIXED_NUM_SEGMENTS, scaling.BY_RATE_IN_KBYTES_PER_SEC, scaling.BY_RATE_IN_EVENTS_PER_SEC]
    assert [each.value for each in ScaleType] == api
    assert [each.value for each in RetentionType] == [retention.TIME, retention.SIZE]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ScalingPolicy.fixed(0), "at least 1 segment, not 0"),
        (lambda: ScalingPolicy(target_rate=1), "no target rate"),
        (lambda: ScalingPolicy.by_event_rate(0), "the target rate, 0"),
        (lambda: ScalingPolicy.by_data_rate(1, factor=0), "the factor, 0"),
        (lambda: ScalingPolicy.by_data_rate(2**31), "above 2147483647"),
        (lambda: RetentionPolicy.by_size(0), "at least 1"),
        (lambda: RetentionPolicy.by_size(2, 1), "at most the maximum: 2, 1"),
        (lambda: RetentionPolicy.by_time(timedelta(days=-1)), "at least 1"),
        (lambda: StreamConfig(tags="eu"), "not the text 'eu'"),
        (lambda: StreamConfig(tags=[str(number) for number in range(128)]), "at most 127 tags, not 128"),
        (lambda: StreamConfig(tags=["x" * 256]), "at most 255 characters, not 256"),
        (lambda: StreamConfig(rollover_bytes=-1), "-1 is not a number"),
    ],
)
def test_what_no_stream_can_have_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.usefixtures("grpc_runs")
async def test_a_stream_has_the_configuration_that_it_was_created_and_updated_with() -> None:
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        controller = pravega.controller
        await controller.create_scope("a")
        assert await controller.create_stream("a", "s", FULL)
        assert not await controller.create_stream("a", "s")
        assert await controller.create_stream("a", "t", segments=3)
        assert await controller.stream_config("a", "s") == FULL
        assert len(await controller.current_segments("a", "s")) == 2
        assert (await controller.stream_config("a", "t")).scaling == ScalingPolicy.fixed(3)
        changed = replace(FULL, tags=("us",), retention=None)
        await controller.update_stream("a", "s", changed)
        assert await controller.stream_config("a", "s") == changed
        assert [name async for name in controller.list_streams("a", tag="us")] == ["s"]
        assert [name async for name in controller.list_streams("a", tag="eu")] == []
        with pytest.raises(ValueError, match="scaling policy"):
            await controller.create_stream("a", "u", FULL, segments=2)
        with pytest.raises(NoSuchStream):
            await controller.update_stream("a", "none", FULL)
        with pytest.raises(NoSuchStream):
            await controller.stream_config("a", "none")
        await controller.seal_stream("a", "s")
        with pytest.raises(StreamSealed):
            await controller.update_stream("a", "s", FULL)


async def test_a_configuration_that_no_stream_can_have_names_who_sent_it() -> None:
    answer = m.StreamConfig(scalingPolicy=m.ScalingPolicy(minNumSegments=0))
    controller = Controller(cast("ControllerChannels", Scripted(getStreamConfiguration=[answer])))
    with pytest.raises(ProtocolViolation, match="configuration of a/s: a stream needs at least 1 segment") as found:
        await controller.stream_config("a", "s")
    assert found.value.endpoint == "127.0.0.1:9090"
