"""PDP-43A, ids 43.13 and 43.14: large events are whole, in order and there once, against a real store over sockets.

Most tests call events large from 1,000 bytes on, which is a setting.
"""

import asyncio
from random import Random
from typing import Any

import pytest

from segstore.client import Backoff, EventWriter, connect
from segstore.client.errors import ClientError
from segstore.server.cluster import MockCluster
from segstore.server.node import SegmentStoreServer
from segstore.wire import MergeSegments, SegmentAttributeUpdated
from tests.client.support import ScriptedPeer, all_events, make_stream, settings, until
from tests.seeds.large_events import (
    MIB,
    NINE_TIMES,
    NO_VALUE,
    ONCE,
    STEPS,
    Played,
    asked,
    big,
    cut_everywhere,
    held_at,
    played,
    scale,
    stream,
    transients,
)
from tests.server.support import SEGMENT


async def restart(mock: MockCluster) -> None:
    """The store ends with all its connections, and another takes its place: same port, what was stored, recovered."""
    old = mock.stores[0]
    await old.stop(drain_s=0)
    new = SegmentStoreServer(old.settings.model_copy(update={"port": old.address[1]}))
    new.store.containers.update(old.store.containers)
    for container in new.store.containers.values():
        container.recovered()
    await new.start()
    new.clean_transients(new.service.now_ms())
    mock.stores[0] = new  # it is stopped with the cluster


@pytest.mark.seed("43.13")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("seed", range(3))
async def test_small_and_large_events_of_a_key_are_read_once_and_in_order_whatever_happens(seed: int) -> None:
    random = Random(seed)
    more = {
        "append_batching": random.choice(["turn", "blocks"]),
        "max_connections_per_store": random.choice([1, 2, 10]),
        "retry": Backoff(initial_ms=1, max_ms=20, jitter=0, max_attempts=40),
    }
    async with stream(segments=2, stores=2, **more) as (mock, pravega):
        for kind in (*STEPS.values(), "type = APPEND_BLOCK_END", "type = READ_SEGMENT"):
            chance = 0.03 if "CONDITIONAL" in kind else 0.15
            mock.faults.add(kind, probability=chance, do=random.choice(["close before", "close after"]))
        written: dict[bytes, list[bytes]] = {b"k0": [], b"k1": [], b"k2": []}
        async with pravega.event_writer("a", "s") as writer:
            for step in range(60):
                key = random.choice(list(written))
                event = key + b":%d:" % step + bytes(random.choice([1, 10, 990, 1_100, 6_000]))
                written[key].append(event)
                await writer.submit(event, routing_key=key.decode())
                if step in (20, 40):
                    await scale(pravega, random.randrange(1, 4))
            await writer.flush()
            assert writer.large_events.exactly_once
        read: dict[bytes, list[bytes]] = {key: [] for key in written}
        for event in await all_events(pravega):
            read[event.partition(b":")[0]].append(event)
        assert read == written
        await pravega.aclose()
        await until(lambda: not transients(mock))


@pytest.mark.seed("43.13")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("step", STEPS)
async def test_order_holds_through_a_restart_of_the_store(step: str) -> None:
    async with stream() as (mock, pravega):
        async with held_at(step, mock, pravega):
            await restart(mock)
        await mock.stores[0].stop(drain_s=0)


@pytest.mark.seed("43.13")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_connection_that_is_cut_at_any_frame_leaves_the_event_whole_or_absent() -> None:
    """All frames of an event of four chunks, with no second try: what is there is what the first sequence left."""
    async with stream(retry=ONCE) as (mock, pravega):
        await pravega.controller.seal_stream("a", "s")
        await pravega.controller.delete_stream("a", "s")
        assert await cut_everywhere(mock, pravega, big(3_500), chunks=4) == 28
        await until(lambda: not transients(mock))


@pytest.mark.seed("43.13")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize(
    "fault", [("CONDITIONAL_APPEND", 2, "close before"), ("MERGE_SEGMENTS", 1, "close after")], ids=str
)
async def test_an_event_of_24_mebibytes_is_written_once_though_it_is_cut(fault: tuple[str, int, Any]) -> None:
    event = big(24 * MIB)
    config = settings(retry=NINE_TIMES)
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}", config) as pravega:
        await make_stream(pravega)
        mock.faults.add(STEPS[fault[0]], nth=fault[1], do=fault[2])
        async with pravega.event_writer("a", "s") as writer:
            done = [await writer.submit(each, routing_key="k") for each in (b"before", event, b"after")]
            await asyncio.gather(*done)
        read = await all_events(pravega)
        assert [len(each) for each in read] == [6, len(event), 5]
        assert read[1] == event


def counter(mock: MockCluster, writer: EventWriter, segment: str = "a/s/0.#epoch.0") -> int | None:
    return mock.stores[0].store.container_for(segment).get_attribute(segment, writer.large_events.counter_id)


@pytest.mark.seed("43.14")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_merge_whose_reply_was_lost_is_not_made_twice() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", every=2, do="close after")
        async with pravega.event_writer("a", "s") as writer:
            sent = [big(1_500, number) for number in range(6)]
            for number, event in enumerate(sent, start=1):
                await writer.write(event)
                assert counter(mock, writer) == number
            assert writer.large_events.restarts == 3
            assert (writer.large_events.exactly_once, writer.large_events.unsure) == (True, 0)
        assert asked(mock, "MERGE_SEGMENTS") == 6
        assert await all_events(pravega) == sent


@pytest.mark.seed("43.14")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_merge_that_comes_through_after_it_was_given_up_counts_and_the_second_one_does_not() -> None:
    """The first merge waits in the store while the client, whose patience is at its end, merges a second segment."""
    async with stream(request_timeout_ms=1_000, max_connections_per_store=10) as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", nth=1, do={"hold": "before", "overtake": True}, name="first")
        mock.faults.add("type = MERGE_SEGMENTS", nth=2, do={"hold": "before", "overtake": True}, name="second")
        async with pravega.event_writer("a", "s") as writer:
            writing = asyncio.create_task(writer.write(big(3_500)))
            await mock.faults.wait_held("first")
            await mock.faults.wait_held("second")
            mock.faults.release("first")
            await until(lambda: counter(mock, writer) == 1)
            mock.faults.release("second")
            await writing
        assert await all_events(pravega) == [big(3_500)]


@pytest.mark.seed("43.14")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_merge_that_was_stored_before_the_target_was_sealed_is_found_in_the_sealed_target() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", nth=1, do="close after")
        mock.faults.add("type = GET_SEGMENT_ATTRIBUTE", nth=1, do="hold", name="looks")
        async with pravega.event_writer("a", "s") as writer:
            done = [await writer.submit(event, routing_key="k") for event in (big(3_500), b"after")]
            await mock.faults.wait_held("looks")
            await scale(pravega, 2)
            mock.faults.release("looks")
            await asyncio.gather(*done)
        assert await all_events(pravega) == [big(3_500), b"after"]


@pytest.mark.seed("43.14")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize(
    "refusal",
    [
        "OperationUnsupported",
        {"error": "ErrorMessage", "fields": {"error_code": "ILLEGAL_ARGUMENT_EXCEPTION"}},
        {"error": "SegmentAttributeUpdated", "fields": {"success": False}},
    ],
    ids=["unsupported", "illegal", "not fulfilled"],
)
async def test_a_store_that_refuses_the_counter_is_written_to_at_least_once_and_it_is_said(
    refusal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", nth=1, do=refusal)
        async with pravega.event_writer("a", "s") as writer:
            await writer.write(big(1_500))
            assert not writer.large_events.exactly_once
            assert writer.large_events.unsure == 0
            assert sum("at least once" in each.message for each in caplog.records) == 1
            await writer.write(big(1_500, 2))
            assert counter(mock, writer) in (None, NO_VALUE)
            mock.faults.add("type = MERGE_SEGMENTS", nth=1, do="close after")
            await writer.write(big(1_500, 3))
            assert writer.large_events.unsure == 1
            assert any("twice" in record.message for record in caplog.records)
        assert await all_events(pravega) == [big(1_500), big(1_500, 2), big(1_500, 3), big(1_500, 3)]


@pytest.mark.seed("43.14")
async def test_the_condition_is_the_value_that_the_counter_must_have() -> None:
    script = Played()
    async with played(script) as large:
        for _ in range(3):
            await large.write(SEGMENT, bytes(1_500))
    updates = [merge.attribute_updates for merge in script.merges]
    assert [(each.new_value, each.old_value) for (each,) in updates] == [(1, NO_VALUE), (2, 1), (3, 2)]
    assert {(each.attribute_id, each.attribute_update_type) for (each,) in updates} == {(large.counter_id, 4)}


@pytest.mark.seed("43.14")
async def test_a_store_that_never_merges_is_not_asked_without_end() -> None:
    def never(peer: ScriptedPeer, command: MergeSegments) -> bool:
        peer.send(SegmentAttributeUpdated(command.request_id, False))
        return True

    async with played(Played(MergeSegments=never)) as large:
        with pytest.raises(ClientError, match="SEGMENT_ATTRIBUTE_UPDATED"):
            await large.write(SEGMENT, bytes(1_500))
        assert not large.exactly_once
