"""What the state takes is charged and given back, and growth is refused where memory is full."""

import grpc
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.config import LimitSettings
from segstore.server.controller import Controller, ControllerServer, ScalingPolicy, StreamConfig
from segstore.server.controller.policies import ReaderGroupConfig, SubscriberRetention
from segstore.server.controller.state import Core, State
from segstore.server.store import MemoryAccount
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import Client, S, group, stream_config
from tests.server.controller.fake_store import FakeStore

pytestmark = pytest.mark.usefixtures("grpc_runs")

LIMIT = 1 << 18


@pytest.fixture
def account() -> MemoryAccount:
    return MemoryAccount(LIMIT)


@pytest.fixture
def controller(account: MemoryAccount) -> Controller:
    return Controller(Core(FakeStore(), memory=account))


def a_group(entries: int) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        starting_cuts={"a/s": dict.fromkeys(range(entries), 0)}, retention=SubscriberRetention.AUTOMATIC
    )


async def test_each_kind_of_thing_is_charged_and_given_back_when_it_is_deleted(
    controller: Controller, account: MemoryAccount
) -> None:
    used = [account.used]

    def charge_since() -> int:
        used.append(account.used)
        return used[-1] - used[-2]

    controller.scopes.create("a")
    assert charge_since() > 500
    await controller.create_stream("a", "s", StreamConfig(scaling=ScalingPolicy(min_segments=500)))
    assert charge_since() > 500 * 100
    await controller.reader_groups.create("a", "g", a_group(1_000))
    assert charge_since() > 1_000 * 10
    for number in range(20):
        controller.writers.note("a", "s", f"w{number}", number, dict.fromkeys(range(1_000), 0))
    assert charge_since() > 20 * 1_000 * 5
    await controller.scopes.delete_recursively("a")
    assert account.used < 1_000, "nothing is left but the names whose numbers are used up"


async def test_what_is_replaced_is_not_charged_again_and_again(controller: Controller, account: MemoryAccount) -> None:
    controller.scopes.create("a")
    await controller.create_stream("a", "s", StreamConfig())
    for number in range(1_000):
        controller.writers.note("a", "s", "w", number, dict.fromkeys(range(100), number))
    assert account.used < 200_000


async def test_a_state_to_start_from_is_charged_as_a_whole(controller: Controller, account: MemoryAccount) -> None:
    controller.scopes.create("a")
    await controller.create_stream("a", "s", StreamConfig(scaling=ScalingPolicy(min_segments=100)))
    await controller.create_stream("a", "t", StreamConfig())
    await controller.streams.seal("a", "t")
    await controller.streams.delete("a", "t")
    again = MemoryAccount()
    Controller(Core(FakeStore(), state=controller.state, memory=again))
    assert account.used // 2 < again.used <= account.used
    fresh = MemoryAccount()
    Controller(Core(FakeStore(), state=State(), memory=fresh))
    assert fresh.used == 0


async def test_growth_is_refused_where_memory_is_full_and_deleting_makes_room(controller: Controller) -> None:
    async with (
        await ControllerServer(controller).start() as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call = Client(channel)
        assert await call.status("createScope", m.ScopeInfo(scope="a")) == "SUCCESS"
        assert await call.status("createStream", stream_config("s")) == "SUCCESS"
        count = 0
        while await call.status("createScope", m.ScopeInfo(scope=f"a{count}")) == "SUCCESS":
            count += 1
        assert 50 < count < 200
        for name, request in (
            ("createStream", stream_config("t")),
            ("createReaderGroup", group("g")),
            (
                "createKeyValueTable",
                m.KeyValueTableConfig(scope="a", kvtName="t", partitionCount=1, primaryKeyLength=4),
            ),
            (
                "noteTimestampFromWriter",
                m.TimestampFromWriter(writer="w", timestamp=1, position=m.StreamCut(streamInfo=S)),
            ),
        ):
            assert await call.status(name, request) == "RESOURCE_EXHAUSTED", name
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call("createScope", m.ScopeInfo(scope="b"))
        assert (refused.value.details() or "").startswith("memory is full: ")
        assert await call.status("sealStream", S) == "SUCCESS"
        assert await call.status("deleteStream", S) == "SUCCESS"
        for number in range(10):
            assert await call.status("deleteScope", m.ScopeInfo(scope=f"a{number}")) == "SUCCESS"
        assert await call.status("createScope", m.ScopeInfo(scope="b")) == "SUCCESS"


async def test_the_state_of_a_cluster_counts_for_what_its_stores_may_take() -> None:
    async with MockCluster(limits=LimitSettings(max_memory_bytes=LIMIT)) as mock:
        async with grpc.aio.insecure_channel(mock.controller_uri) as channel:
            call, count = Client(channel), 0
            while (said := await call.status("createScope", m.ScopeInfo(scope=f"a{count}"))) == "SUCCESS":
                count += 1
        assert said == "RESOURCE_EXHAUSTED"
        assert count < 200
