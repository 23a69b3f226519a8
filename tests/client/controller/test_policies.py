"""Configurations of streams: what is created is returned, updated and listed; what no stream can have is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from google.protobuf import json_format

from segstore.client import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig, connect
from segstore.client.client import Client
from segstore.client.controller import Controller, ControllerChannels
from segstore.client.controller.policies import from_message, group_from_message, group_to_message, to_message
from segstore.client.errors import NoSuchReaderGroup, NoSuchStream, ProtocolViolation, RequestRejected, StreamSealed
from segstore.server.cluster import MockCluster
from segstore.wire.controller_api import messages as m
from segstore.wire.reader_groups import GroupConfig
from tests.client.controller.test_controller import Scripted
from tests.client.support import settings
from tests.looped import looped

ANSWERS = Path(__file__).parents[3] / "fixtures" / "controller" / "answers.ndjson"
FULL = StreamConfig(
    scaling=ScalingPolicy.by_event_rate(100, factor=3, minimum=2),
    retention=RetentionPolicy.by_time(timedelta(hours=1), timedelta(days=1)),
    tags=["eu", "billing", "eu"],
    timestamp_aggregation_timeout_ms=9_000,
    rollover_bytes=1 << 20,
)


@looped(
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


@looped(
    ("make", "says"),
    [
        (lambda: ScalingPolicy.fixed(0), "from 1 to 2147483647 segments, not 0"),
        (lambda: ScalingPolicy.by_event_rate(0), "the rate of a scaling policy must be from 1 to 2147483647, not 0"),
        (lambda: ScalingPolicy.by_data_rate(1, factor=0), "the factor of"),
        (lambda: ScalingPolicy.by_data_rate(2**31), "not 2147483648"),
        (lambda: ScalingPolicy.by_data_rate(1, minimum=0), "the minimum of"),
        (lambda: RetentionPolicy.by_size(0), "what is kept must be from 1 to 9223372036854775807 bytes, not 0"),
        (lambda: RetentionPolicy.by_size(2, 1), "from 1 to 1 bytes, not 2"),
        (lambda: RetentionPolicy.by_time(timedelta(days=-1)), "ms, not -86400000"),
        (lambda: StreamConfig(tags="eu"), "not the text 'eu'"),
        (StreamConfig(scaling=ScalingPolicy(minimum=0)).check, "from 1 to 2147483647 segments, not 0"),
        (StreamConfig(tags=[str(number) for number in range(128)]).check, "at most 127 tags, not 128"),
        (StreamConfig(tags=["x" * 256]).check, "at most 255 characters, not 256"),
        (StreamConfig(rollover_bytes=-1).check, "the rollover size of -1 bytes is negative"),
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


async def test_an_unknown_kind_of_policy_is_reported_with_who_sent_it() -> None:
    answer = m.StreamConfig.FromString(b"\x12\x02\x08\x07")
    controller = Controller(cast("ControllerChannels", Scripted(getStreamConfiguration=[answer])))
    with pytest.raises(ProtocolViolation, match="configuration of a/s: 7 is not a valid ScaleType") as found:
        await controller.stream_config("a", "s")
    assert found.value.endpoint == "127.0.0.1:9090"


def recorded() -> list[Any]:
    """What a real controller answered to getStreamConfiguration."""
    rows = [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]
    answers = [row[2] for row in rows if isinstance(row, list) and row[0] == "getStreamConfiguration"]
    return [
        json_format.ParseDict({**answer, "streamInfo": {"scope": "a", "stream": "s"}}, m.StreamConfig())
        for answer in answers
        if "code" not in answer
    ]


def test_configurations_of_a_real_controller_are_read_and_written_back() -> None:
    answers = recorded()
    assert len(answers) > 20
    for answer in answers:
        again = to_message("a", "s", from_message(answer))
        if answer.retentionPolicy.retentionType:  # a maximum of 0 means none
            answer.retentionPolicy.retentionMax = answer.retentionPolicy.retentionMax or 2**63 - 1
        else:
            answer.ClearField("retentionPolicy")
        answer.tags.SetInParent()
        answer.tags.tag.sort()
        assert again == answer


GROUP = GroupConfig(
    {"a/s": {0: 5}, "b/t": {}}, {"a/s": {0: 9}}, 1, 2, 3, "manual", generation=4, id=UUID(int=0x12345678 << 90)
)


def test_configurations_survive() -> None:
    message = group_to_message("a", "g", GROUP)
    assert (message.scope, message.readerGroupName) == ("a", "g")
    assert group_from_message(message) == GROUP
    message.retentionType = 3
    with pytest.raises(ValueError, match="3 is no type of retention"):
        group_from_message(message)


@pytest.mark.usefixtures("grpc_runs")
async def test_a_group_is_created_once_updated_and_deleted(pravega: Client) -> None:
    controller = pravega.controller
    with pytest.raises(NoSuchStream):
        await controller.create_reader_group("a", "g", GROUP)
    await controller.create_scope("a")
    await controller.create_stream("a", "s")
    config = GROUP._replace(starts={"a/s": {0: 0}})
    held = await controller.create_reader_group("a", "g", config)
    assert held == config._replace(generation=0)
    assert await controller.create_reader_group("a", "g", GROUP._replace(id=UUID(int=1))) == held
    assert await controller.reader_group_config("a", "g") == held
    assert await controller.update_reader_group("a", "g", held._replace(refresh_ms=7)) == 1
    with pytest.raises(RequestRejected, match="reader group a/g: the controller reports INVALID_CONFIG"):
        await controller.update_reader_group("a", "g", held)
    await controller.update_subscriber_cut("a", "s", "a/g", held._replace(generation=1), {0: 0})
    with pytest.raises(RequestRejected, match="GENERATION_MISMATCH"):
        await controller.update_subscriber_cut("a", "s", "a/g", held, {0: 0})
    await controller.delete_reader_group("a", "g", held.id)
    for call in (
        controller.reader_group_config("a", "g"),
        controller.update_reader_group("a", "g", held),
        controller.delete_reader_group("a", "g", held.id),
    ):
        with pytest.raises(NoSuchReaderGroup, match="reader group a/g does not exist"):
            await call
