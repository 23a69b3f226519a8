"""A cluster of several stores in one process: containers are moved, stores stopped and started, sessions expired."""

import asyncio
from random import Random
from typing import Any

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.server.coordination import OwnershipSettings
from segstore.wire.names import container_of
from tests.looped import looped
from tests.server.support import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("grpc_runs")

RECONNECT = OwnershipSettings(
    session_timeout_ms=150, session_expired_policy="reconnect", takeover_delay_ms=50, load_report_interval_ms=200
)
SEGMENT = "scope/stream/0.#epoch.0"


def shares(mock: MockCluster) -> list[set[int]]:
    return [set(store.store.containers) for store in mock.stores]


async def test_each_store_serves_its_share_from_the_start() -> None:
    patient = OwnershipSettings(takeover_delay_ms=30_000)
    async with MockCluster(stores=3, containers=6, ownership=patient) as mock:
        assert shares(mock) == [{0, 3}, {1, 4}, {2, 5}]


async def test_a_container_is_moved_with_its_segments_and_its_waiting_readers_are_answered() -> None:
    async with MockCluster(stores=2) as mock:
        container = container_of(SEGMENT, 4)
        owner = mock.owner_of(SEGMENT)
        assert owner is not None
        mock.stores[owner].store.create_segment(SEGMENT, now_ms=0)
        await mock.move(container, to=1 - owner)
        assert mock.owner_of(SEGMENT) == 1 - owner
        assert mock.stores[1 - owner].store.segment_info(SEGMENT).length == 0
        assert container not in mock.stores[owner].store.containers


async def test_the_containers_of_a_stopped_store_are_taken_and_given_back_when_it_is_started() -> None:
    async with MockCluster(stores=3, containers=6) as mock:
        before = mock.stores[0].address
        await mock.stop_store(0)
        await until(lambda: len(shares(mock)[1] | shares(mock)[2]) == 6)
        await mock.start_store(0)
        await until(lambda: [len(share) for share in shares(mock)] == [2, 2, 2])
        assert mock.stores[0].address == before


async def test_a_store_whose_session_expires_is_stopped_with_the_default_policy() -> None:
    async with MockCluster(stores=2) as mock:
        mock.expire_session(0)
        await until(lambda: shares(mock) == [set(), {0, 1, 2, 3}])
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection(*(mock.stores[0].address or ("", 0)))
        await mock.start_store(0)
        await until(lambda: [len(share) for share in shares(mock)] == [2, 2])


@looped(
    ("given", "said"),
    [
        ({"stores": 0}, "stores: it must be greater than or equal to 1"),
        ({"stores": True}, "stores is a number, not True"),
        ({"controller": 3}, "controller: an object is needed"),
        ({"controller": {"lease_cap": 1}}, r"controller\.lease_cap: there is no such option \(lease_cap_ms\?\)"),
        ({"rest_port": 70000}, "rest_port: it must be less than or equal to 65535"),
    ],
)
def test_a_setting_that_no_cluster_has_is_refused_in_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        MockCluster(**given)


async def test_what_is_asked_of_one_store_or_without_a_session_is_refused_in_words() -> None:
    async with MockCluster() as mock:
        with pytest.raises(RuntimeError, match="give stores=2"):
            mock.expire_session(0)
    async with MockCluster(stores=2) as mock:
        await mock.stop_store(1)
        with pytest.raises(RuntimeError, match="store 1 has no session"):
            mock.cut_session(1)
        with pytest.raises(RuntimeError, match="store 1 is stopped"):
            await mock.move(0, to=1)


@pytest.mark.seed("57.8")
@looped("policy", ["reconnect", "shutdown"])
async def test_a_client_writes_and_reads_in_order_while_sessions_expire_and_containers_move(policy: str) -> None:
    settings = RECONNECT.model_copy(update={"session_expired_policy": policy})
    async with MockCluster(stores=3, ownership=settings) as mock, connect(f"tcp://{mock.controller_uri}") as pravega:
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", "stream", segments=3)
        async with asyncio.timeout(PATIENCE_S), pravega.event_writer("scope", "stream") as writer:
            for number in range(300):
                await writer.submit(b"%d" % number, routing_key=str(number % 5))
                if number % 60 == 20:
                    mock.expire_session(number // 60 % 3)
                if number % 60 == 40:
                    await writer.flush()
                    await mock.move(number % 4, to=1) if policy == "reconnect" else await mock.start_store(
                        number // 60 % 3
                    )
        by_key: dict[int, list[int]] = {key: [] for key in range(5)}
        async with asyncio.timeout(PATIENCE_S), pravega.event_reader("scope", "stream", from_="head") as events:
            read = 0
            async for event in events:
                by_key[int(event.data) % 5].append(int(event.data))
                read += 1
                if read == 300:
                    break
        assert by_key == {key: list(range(key, 300, 5)) for key in range(5)}


@looped("seed", [1, 2])
async def test_containers_can_be_moved_whatever_happened_before(seed: int) -> None:
    random, down = Random(seed), set[int]()
    async with MockCluster(stores=3, containers=6, ownership=RECONNECT) as mock:
        for _ in range(25):
            up = [number for number in range(3) if number not in down]
            number, container = random.choice(up), random.randrange(6)
            match random.randrange(4):
                case 0 if len(up) > 1:
                    await mock.stop_store(number)
                    down.add(number)
                case 1 if down:
                    await mock.start_store(down.pop())
                case 2 if not mock.members.session(number).expired:
                    mock.expire_session(number)
                case _:
                    async with asyncio.timeout(PATIENCE_S):
                        await mock.move(container, to=number)
                    assert container in mock.stores[number].store.containers
