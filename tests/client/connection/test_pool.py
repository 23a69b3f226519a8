"""PDP-36, ids 36.1 to 36.13: request ids, flows, the pool and its dispatch, over real sockets."""

import asyncio
from functools import partial
from pathlib import Path
from random import Random

import pytest

from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, Flow
from segstore.client.connection.pool import FlowIds, choose
from segstore.client.errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    ConnectTimedOut,
    IncompatibleVersion,
    ProtocolViolation,
)
from segstore.client.retry import Backoff
from segstore.server import MockSegmentStore
from segstore.wire import (
    Command,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    NoSuchSegment,
    SealSegment,
    SegmentSealed,
    StreamSegmentInfo,
    encode,
)
from segstore.wire.request_id import MAX_FLOW, MAX_SEQUENCE, pack
from tests.client.support import FakeTimers, Recorder, ScriptedPeer, ScriptedStore, endpoint, settings, until
from tests.looped import looped
from tests.server.certificates import trusting, write_certificate

SEGMENT = "scope/stream/0.#epoch.0"
SPOKEN, NOT_SPOKEN = Hello(17, 5), Hello(4, 1)
A_MINUTE = Backoff(initial_ms=60_000, max_ms=600_000, jitter=0)


def info(flow: Flow, segment: str = SEGMENT) -> int:
    request_id = flow.next_request_id()
    flow.send(GetStreamSegmentInfo(request_id, segment, ""))
    return request_id


@pytest.mark.seed("36.1")
async def test_request_ids_are_flow_and_sequence_and_flows_of_a_pool_differ() -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        flows = [await pool.flow(endpoint(store), Recorder()) for _ in range(25)]
        assert [flow.flow_id for flow in flows] == list(range(1, 26))
        assert [flows[4].next_request_id() for _ in range(3)] == [pack(5, 0), pack(5, 1), pack(5, 2)]
        assert flows[4].next_request_id() == 5 << 32 | 3
        flows[4]._sequence = MAX_SEQUENCE
        assert flows[4].next_request_id() == pack(5, 0), "MAX is followed by 0"


@pytest.mark.seed("36.1")
def test_flow_numbers_wrap_to_one_and_skip_those_in_use() -> None:
    ids = FlowIds(last=MAX_FLOW - 2)
    assert [ids.take() for _ in range(3)] == [MAX_FLOW - 1, MAX_FLOW, 1]
    again = FlowIds()
    kept = [again.take() for _ in range(3)]
    again.give_back(2)
    again._last = MAX_FLOW
    assert kept == [1, 2, 3]
    assert again.take() == 2


@pytest.mark.seed("36.2")
async def test_without_flows_one_owner_gets_every_reply_and_closing_it_closes_the_socket() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        peer.send(SegmentSealed(pack(77, 5), SEGMENT), SegmentSealed(-1, SEGMENT))

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        owner = Recorder()
        flow = await pool.unpooled(store.endpoint, owner)
        assert flow.flow_id == 0
        assert info(flow) == 0
        await until(lambda: len(owner.replies) == 2)
        assert [reply.request_id for reply in owner.replies] == [pack(77, 5), -1]  # type: ignore[attr-defined]
        flow.close()
        await until(lambda: store.open_peers == 0)
        assert pool.metrics().connections == 0


@pytest.mark.seed("36.3")
async def test_a_flow_number_that_a_connection_has_is_refused(store: MockSegmentStore) -> None:
    async with ConnectionPool(settings(max_connections_per_store=1)) as pool:
        number = pool.lease()
        first = await pool.flow(endpoint(store), Recorder(), flow_id=number)
        with pytest.raises(ValueError, match=f"flow {number} exists"):
            await pool.flow(endpoint(store), Recorder(), flow_id=number)
        owner = Recorder()
        first.handler.replies.clear()  # type: ignore[attr-defined]
        info(first)
        await until(lambda: first.handler.replies)  # type: ignore[attr-defined]
        assert owner.replies == []


@pytest.mark.seed("36.5")
def test_ten_connections_per_store_are_the_default() -> None:
    assert ClientSettings().max_connections_per_store == 10


class Fake:
    def __init__(self, users: int, bytes_in_flight: int = 0, usable: bool = True) -> None:
        self.users = users
        self.bytes_in_flight = bytes_in_flight
        self.usable = usable


@pytest.mark.seed("36.6")
def test_the_choice_drops_what_ended_and_takes_the_fewest_flows_or_opens_another() -> None:
    ended = Fake(0, usable=False)
    assert choose([], 3) is None
    assert choose([ended], 3) is None
    assert choose([Fake(1)], 3) is None, "below the maximum, and it carries a flow"
    idle = Fake(0)
    assert choose([Fake(1), idle], 3) is idle
    few = Fake(2)
    assert choose([Fake(3), few, Fake(4)], 3) is few
    assert choose([Fake(3), few, ended], 3) is None, "what ended does not count"
    assert choose([Fake(3), few, Fake(4), Fake(1)], 3) is not few, "above the maximum the fewest still win"


@pytest.mark.seed("36.10")
def test_least_busy_looks_at_bytes_in_flight_first() -> None:
    quiet, busy = Fake(9, 10), Fake(1, 1_000_000)
    assert choose([busy, quiet], 2, "least_busy") is quiet
    assert choose([busy, quiet], 2, "fewest_flows") is busy
    assert choose([busy], 2, "least_busy") is None
    assert choose([Fake(2, 5), few := Fake(1, 5)], 2, "least_busy") is few


@pytest.mark.seed("36.10")
async def test_least_busy_sends_a_new_user_past_a_connection_with_bytes_in_flight() -> None:
    config = settings(max_connections_per_store=2, pool_policy="least_busy")
    async with ScriptedStore() as store, ConnectionPool(config) as pool:
        first = await pool.flow(store.endpoint, Recorder())
        second = await pool.flow(store.endpoint, Recorder())
        first.connection.outbox.bytes_in_flight = 5_000
        third = await pool.flow(store.endpoint, Recorder())
        fourth = await pool.flow(store.endpoint, Recorder())
        assert first.connection is not second.connection
        assert third.connection is fourth.connection is second.connection
        first.connection.outbox.bytes_in_flight = 0


@pytest.mark.seed("36.6")
@looped(("users", "maximum"), [(1, 10), (7, 10), (10, 10), (64, 10), (5, 1)])
async def test_first_users_at_once_open_as_many_connections_as_may_be(users: int, maximum: int) -> None:
    config = settings(max_connections_per_store=maximum)
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        joins = [asyncio.ensure_future(pool.flow(endpoint(store), Recorder())) for _ in range(users)]
        await asyncio.sleep(0)
        assert pool.connections_to(endpoint(store)) == min(users, maximum), "counted when chosen"
        flows = await asyncio.gather(*joins)
        assert pool.metrics().connections_opened == min(users, maximum)
        carried = [sum(flow.connection is each for flow in flows) for each in {flow.connection for flow in flows}]
        assert max(carried) - min(carried) <= 1


@pytest.mark.seed("36.7")
async def test_closing_a_flow_leaves_the_connection_and_sending_on_it_fails(store: MockSegmentStore) -> None:
    async with ConnectionPool(settings(max_connections_per_store=1)) as pool:
        one, other = Recorder(), Recorder()
        closing = await pool.flow(endpoint(store), one)
        staying = await pool.flow(endpoint(store), other)
        info(closing)
        closing.close()
        closing.close()
        with pytest.raises(Closed):
            info(closing)
        info(staying)
        await until(lambda: other.replies)
        assert one.replies == []
        assert one.lost == [], "closing a flow does not notify its own user"
        assert pool.metrics().dropped_replies == 1
        assert pool.metrics().connections == 1
        assert pool.metrics().flows == 1


@pytest.mark.seed("36.7")
async def test_closing_the_pool_fails_all_that_is_pending_once_and_can_be_done_twice() -> None:
    async with ScriptedStore() as store:
        pool = ConnectionPool(settings())
        users = [Recorder() for _ in range(12)]
        flows = [await pool.flow(store.endpoint, user) for user in users]
        unpooled = Recorder()
        flows.append(await pool.unpooled(store.endpoint, unpooled))
        await asyncio.gather(pool.aclose(), pool.aclose())
        await pool.aclose()
        assert [[type(error) for error in user.lost] for user in [*users, unpooled]] == [[Closed]] * 13
        assert all(flow.closed for flow in flows)
        with pytest.raises(Closed):
            await pool.flow(store.endpoint, Recorder())
        await until(lambda: store.open_peers == 0)


@pytest.mark.seed("36.8")
@looped("turns", range(14))
async def test_an_unpooled_set_up_ends_with_its_only_user(store: MockSegmentStore, turns: int) -> None:
    pool = ConnectionPool(settings())
    waiting = asyncio.create_task(pool.unpooled(endpoint(store), Recorder()))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await pool.aclose()
    await until(lambda: not store.server.hub.connections)
    assert pool.counters.connections_failed == 0


async def test_an_unpooled_connection_is_always_fresh_and_outside_the_pool(store: MockSegmentStore) -> None:
    async with ConnectionPool(settings(max_connections_per_store=1)) as pool:
        pooled = await pool.flow(endpoint(store), Recorder())
        singles = [await pool.unpooled(endpoint(store), Recorder()) for _ in range(3)]
        assert len({flow.connection for flow in [pooled, *singles]}) == 4
        assert pool.connections_to(endpoint(store)) == 1
        with pytest.raises(ValueError, match="has one user"):
            singles[0].connection.add_flow(Flow(9, singles[0].connection, Recorder(), lambda _: None))


@pytest.mark.seed("36.9")
def test_writers_are_pooled_unless_told_otherwise() -> None:
    assert ClientSettings().enable_connection_pooling


@pytest.mark.seed("36.11")
async def test_the_client_says_hello_first_and_flows_know_the_peers() -> None:
    async with ScriptedStore(hello=Hello(16, 3)) as store, ConnectionPool(settings()) as pool:
        first = await pool.flow(store.endpoint, Recorder())
        later = await pool.flow(store.endpoint, Recorder())
        assert store.peers[0].got == [Hello(17, 5)]
        assert first.hello == later.hello == Hello(16, 3)


@pytest.mark.seed("36.11")
@looped("theirs", [Hello(4, 1), Hello(30, 18)])
async def test_an_incompatible_version_fails_the_connection_and_names_both_ranges(theirs: Hello) -> None:
    async with ScriptedStore(hello=theirs) as store, ConnectionPool(settings()) as pool:
        with pytest.raises(IncompatibleVersion) as caught:
            await pool.flow(store.endpoint, Recorder())
        assert caught.value.details == {"theirs": (theirs.low_version, theirs.high_version), "ours": (5, 17)}
        assert f"{theirs.low_version} to {theirs.high_version}" in str(caught.value)
        assert "5 to 17" in str(caught.value)
        assert pool.metrics().connections == 0


@pytest.mark.seed("36.12")
async def test_keep_alives_are_swallowed_and_replies_for_no_flow_are_dropped_and_counted() -> None:
    def answer(peer: ScriptedPeer, command: GetStreamSegmentInfo) -> None:  # type: ignore[misc]
        peer.send(KeepAlive(), SegmentSealed(pack(99, 0), "x"), NoSuchSegment(-1, "x"), KeepAlive())
        peer.send(SegmentSealed(command.request_id, "x"))

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:  # type: ignore[arg-type]
        user = Recorder()
        flow = await pool.flow(store.endpoint, user)
        request_id = info(flow)
        await until(lambda: user.replies)
        assert user.replies == [SegmentSealed(request_id, "x")]
        assert user.lost == []
        assert pool.metrics().dropped_replies == 2
        assert pool.metrics().connections == 1


@pytest.mark.seed("36.12")
async def test_an_exception_in_one_flow_fails_that_flow_only() -> None:
    def fail(reply: Command) -> None:
        raise RuntimeError("no")

    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        bad, good = Recorder(fail), Recorder()
        failing = await pool.flow(endpoint(store), bad)
        working = await pool.flow(endpoint(store), good)
        info(failing)
        info(failing)
        info(working)
        await until(lambda: good.replies)
        assert len(bad.replies) == 1
        assert [type(error) for error in bad.lost] == [ProtocolViolation]
        assert isinstance(bad.lost[0].__cause__, RuntimeError)
        assert good.lost == []
        assert failing.closed
        assert pool.metrics().failed_flows == 1


@pytest.mark.seed("36.12")
async def test_a_lost_connection_tells_every_flow_exactly_once_even_if_one_of_them_fails() -> None:
    class Careless(Recorder):
        def on_lost(self, error: Exception) -> None:  # type: ignore[override]
            super().on_lost(error)  # type: ignore[arg-type]
            raise RuntimeError("no")

    async with ScriptedStore() as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        users = [Recorder(), Careless(), Recorder(), Recorder()]
        flows = [await pool.flow(store.endpoint, user) for user in users]
        flows[2].close()
        store.peers[0].close()
        await until(lambda: users[3].lost)
        assert [[type(error) for error in user.lost] for user in users] == [
            [ConnectionLost],
            [ConnectionLost],
            [],
            [ConnectionLost],
        ]
        assert pool.connections_to(store.endpoint) == 0
        await pool.flow(store.endpoint, Recorder())
        assert pool.metrics().reconnects == 1


@pytest.mark.seed("36.13")
async def test_a_keep_alive_goes_out_after_twenty_seconds_then_each_ten_unless_something_came() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, GetStreamSegmentInfo):
            peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, 0, 0))

    timers = FakeTimers()
    async with ScriptedStore(answer) as store, ConnectionPool(settings(), timers=timers) as pool:
        user = Recorder()
        flow = await pool.flow(store.endpoint, user)
        flow.connection._recent = False  # the peer's Hello was a message too

        def sent() -> int:
            return pool.metrics().keep_alives

        timers.advance(19.9)
        assert sent() == 0
        timers.advance(0.2)
        assert sent() == 1
        timers.advance(9.8)
        assert sent() == 1
        timers.advance(0.2)
        assert sent() == 2
        info(flow)
        await until(lambda: user.replies)
        timers.advance(10)
        assert sent() == 2, "a message came in since"
        timers.advance(10)
        assert sent() == 3
        await until(lambda: sum(isinstance(each, KeepAlive) for each in store.peers[0].got) == 3)


@pytest.mark.seed("36.13")
async def test_a_connection_whose_write_is_still_blocked_is_closed_by_the_next_keep_alive() -> None:
    timers = FakeTimers()
    async with ScriptedStore() as store, ConnectionPool(settings(), timers=timers) as pool:
        user = Recorder()
        flow = await pool.flow(store.endpoint, user)
        flow.connection._recent = False
        store.peers[0].writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(1500):
            flow.send(SealSegment(0, "x" * 60_000, ""))
        await until(lambda: flow.connection.outbox.paused)
        timers.advance(20)
        assert [type(error) for error in user.lost] == [ConnectionLost]
        assert "does not read" in str(user.lost[0])


async def test_a_connection_that_could_not_be_set_up_is_forgotten(pool: ConnectionPool) -> None:
    async with ScriptedStore() as gone:
        where = gone.endpoint
    with pytest.raises(ConnectFailed):
        await pool.flow(where, Recorder())
    assert list(pool._entries()) == []
    assert (pool.metrics().connecting, pool.metrics().connections_failed) == (0, 1)


async def test_a_connection_speaks_tls_and_checks_who_the_certificate_is_for(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with (
        MockSegmentStore(watched=False, tls_cert=certificate, tls_key=key) as store,
        MockSegmentStore(watched=False, tls_cert=certificate, tls_key=key, host="127.0.0.2") as other,
        ConnectionPool(settings(), tls=trusting()) as pool,
    ):
        flow = await pool.flow(Endpoint("localhost", store.port), Recorder())
        info(flow)
        await until(lambda: flow.handler.replies)  # type: ignore[attr-defined]
        with pytest.raises(ConnectFailed, match="certificate"):
            await pool.flow(Endpoint("127.0.0.2", other.port), Recorder())


async def test_nobody_connects_during_a_back_off_which_grows_only_while_failures_follow_each_other() -> None:
    timers = FakeTimers()
    config = settings(reconnect_backoff=A_MINUTE)
    async with ScriptedStore(hello=NOT_SPOKEN) as store, ConnectionPool(config, timers=timers) as pool:
        for backoff_s in (60, 120):
            with pytest.raises(IncompatibleVersion):
                await pool.flow(store.endpoint, Recorder())
            timers.advance(backoff_s - 1)
            tried = len(store.peers)
            waiting = asyncio.create_task(pool.flow(store.endpoint, Recorder()))
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(store.peers) == tried
            assert (pool.metrics().connections, pool.metrics().connecting) == (0, 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            next(iter(pool._entries())).task.cancel()  # type: ignore[union-attr]
            await until(lambda: not pool.metrics().connecting)
            timers.advance(1)
        store.hello = SPOKEN
        for number in (0, 1, 2):
            flow = await pool.flow(store.endpoint, Recorder())
            assert pool.metrics().reconnects == number
            store.peers[-1].close()
            await until(partial(getattr, flow, "closed"))
            timers.advance(60)  # the back-off after one failure
        assert pool.metrics().connections_lost == 3


@looped("hello", [None, SPOKEN])
async def test_what_fails_together_counts_once_towards_the_back_off(hello: Hello | None) -> None:
    timers = FakeTimers()
    config = settings(reconnect_backoff=A_MINUTE, max_connections_per_store=3)
    async with ScriptedStore(hello=hello) as store, ConnectionPool(config, timers=timers) as pool:
        joins = [asyncio.create_task(pool.flow(store.endpoint, Recorder())) for _ in range(3)]
        await until(lambda: len(store.peers) == 3)
        if hello is not None:
            await asyncio.gather(*joins)
        timers.advance(1)
        for peer in store.peers:
            peer.close()
        await until(lambda: not pool.connections_to(store.endpoint))
        failed = await asyncio.gather(*joins, return_exceptions=True)
        assert sum(isinstance(each, ConnectFailed) for each in failed) == (3 if hello is None else 0)
        counters = pool.metrics()
        assert (counters.connections_failed, counters.connections_lost) == ((3, 0) if hello is None else (0, 3))
        store.hello = SPOKEN
        timers.advance(60)  # the back-off after one failure
        await pool.flow(store.endpoint, Recorder())
        assert pool.metrics().reconnects == (0 if hello is None else 1)


async def test_the_time_for_a_set_up_doubles_with_each_failure_until_one_succeeds() -> None:
    class Middle(Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

    config = settings(socket_connection_setup_timeout_ms=60, socket_connection_setup_timeout_max_ms=1_000)
    async with ScriptedStore(hello=None) as store, ConnectionPool(config, random=Middle(), timers=FakeTimers()) as pool:

        async def limit() -> object:
            with pytest.raises(ConnectTimedOut) as caught:
                await pool.flow(store.endpoint, Recorder())
            assert caught.value.endpoint == str(store.endpoint)
            return caught.value.limit

        assert [await limit() for _ in range(3)] == [60, 120, 240]
        store.hello = SPOKEN
        kept = await pool.flow(store.endpoint, Recorder())
        store.hello = None
        assert [await limit() for _ in range(2)] == [60, 120]
        assert not kept.closed
        await until(lambda: store.open_peers == 1)


async def test_the_metrics_say_what_there_is_and_what_went_over_the_sockets(store: MockSegmentStore) -> None:
    async with ConnectionPool(settings(max_connections_per_store=2)) as pool:
        where = endpoint(store)
        flows = [await pool.flow(where, Recorder()) for _ in range(3)] + [await pool.unpooled(where, Recorder())]
        flows[0].connection.outbox.bytes_in_flight = 5
        flows[3].connection.outbox.bytes_in_flight = 7
        request_id = info(flows[0])
        await until(lambda: flows[0].handler.replies)  # type: ignore[attr-defined]
        now = pool.metrics()
        assert (now.connections, now.connecting, now.flows, now.bytes_in_flight) == (3, 0, 4, 12)
        assert (now.connections_opened, now.connections_failed, now.connections_lost) == (3, 0, 0)
        assert now.bytes_out == 3 * len(encode(SPOKEN)) + len(encode(GetStreamSegmentInfo(request_id, SEGMENT, "")))
        assert now.bytes_in == 3 * len(encode(SPOKEN)) + len(encode(flows[0].handler.replies[0]))  # type: ignore[attr-defined]


async def test_a_connection_is_pruned_when_it_has_been_idle_long_enough_and_its_socket_closes() -> None:
    timers = FakeTimers()
    config = settings(max_connections_per_store=3, idle_connection_s=60)
    async with ScriptedStore() as store, ConnectionPool(config, timers=timers) as pool:
        kept, first, second = [await pool.flow(store.endpoint, Recorder()) for _ in range(3)]
        first.close()
        timers.advance(30)
        second.close()
        timers.advance(29)
        assert pool.prune(60) == 0
        timers.advance(1)
        assert pool.connections_to(store.endpoint) == 2, "by the pool itself, after a minute"
        timers.advance(60)
        assert pool.connections_to(store.endpoint) == 1, "and again after another one"
        assert not kept.closed
        await until(lambda: store.open_peers == 1)
        assert pool.metrics().connections_lost == 0, "closed here, so nothing was lost"
        others = [await pool.flow(store.endpoint, Recorder()) for _ in range(2)]
        for each in others:
            each.close()
        assert pool.prune(0) == 2
        assert pool.prune(0) == 0
    assert timers.pending == []


async def test_a_flow_number_is_free_again_when_its_flow_is_closed_unless_it_is_leased(pool: ConnectionPool) -> None:
    async with ScriptedStore() as store:
        leased = pool.lease()
        (await pool.flow(store.endpoint, Recorder(), flow_id=leased)).close()
        assert len(pool._ids.in_use) == 1
        pool.release(leased)
        flow = await pool.flow(store.endpoint, Recorder())
        assert len(pool._ids.in_use) == 1
        flow.close()
        assert not pool._ids.in_use
        joining = asyncio.create_task(pool.flow(Endpoint("127.0.0.1", 1), Recorder()))
        with pytest.raises(ConnectFailed):
            await joining
        assert not pool._ids.in_use


@looped("ticks", range(5))
async def test_closing_the_pool_waits_for_nothing_that_is_still_being_set_up(ticks: int) -> None:
    async with ScriptedStore(hello=None) as store:
        pool = ConnectionPool(settings())
        joining = asyncio.create_task(pool.flow(store.endpoint, Recorder()))
        for _ in range(ticks):
            await asyncio.sleep(0)
        await pool.aclose(timeout_s=3_600)
        with pytest.raises(Closed):
            await joining
        await until(lambda: store.open_peers == 0)


async def test_closing_the_pool_cuts_what_its_users_closed_and_the_peer_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segstore.client.connection.transport._LINGER_S", 3_600.0)  # it is the pool that cuts
    async with ScriptedStore() as store:
        pool = ConnectionPool(settings())
        flow = await pool.unpooled(store.endpoint, Recorder())
        store.peers[0].writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not flow.connection.outbox.paused:
            for _ in range(100):
                flow.send(GetStreamSegmentInfo(0, "x" * 60_000, ""))
            await asyncio.sleep(0)
        flow.close()
        assert pool.metrics().connections == 0
        assert not flow.connection.gone.done()
        await pool.aclose(timeout_s=0.02)
        assert flow.connection.gone.done()


async def test_a_pool_whose_closing_is_cancelled_is_closed(store: MockSegmentStore) -> None:
    pool = ConnectionPool(settings())
    flow = await pool.flow(endpoint(store), Recorder())
    closing = asyncio.create_task(pool.aclose(timeout_s=3_600))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await pool.aclose()
    await flow.connection.gone
    with pytest.raises(Closed):
        await pool.unpooled(endpoint(store), Recorder())
