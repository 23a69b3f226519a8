"""KIP-601, line by line. Pure state on a clock that stands still; what takes sockets is at the end."""

import asyncio
from random import Random

import pytest

from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, NodeState, NodeStates
from segstore.client.connection.nodes import TRANSITIONS
from segstore.client.controller import ControllerChannels
from segstore.client.errors import ConnectTimedOut, NoNodeAvailable
from segstore.client.retry import Backoff
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.wire import GetStreamSegmentInfo, Hello
from segstore.wire.controller_api import messages as m
from tests.client.support import Recorder, ScriptedStore, endpoint, settings, until
from tests.ports import held_port

TIMEOUTS = ClientSettings().setup_timeout
BACKOFF = ClientSettings().reconnect_backoff


def nodes(*names: str, jitter: bool = True, **more: bool) -> NodeStates[str]:
    still = {} if jitter else {"jitter": 0.0}
    return NodeStates(
        names,
        timeouts=TIMEOUTS.model_copy(update=still),
        backoff=BACKOFF.model_copy(update=still),
        random=Random(1),
        **more,
    )


@pytest.mark.seed("601.1")
def test_the_set_up_timeout_is_ten_seconds_and_answers_to_its_older_name() -> None:
    assert ClientSettings().socket_connection_setup_timeout_ms == 10_000
    assert ClientSettings.model_validate({"connections_setup_timeout_ms": 5}).socket_connection_setup_timeout_ms == 5


@pytest.mark.seed("601.2")
def test_the_set_up_timeout_doubles_with_jitter_and_never_passes_thirty_seconds() -> None:
    assert ClientSettings().socket_connection_setup_timeout_max_ms == 30_000
    exact = TIMEOUTS.model_copy(update={"jitter": 0.0})
    assert [exact.delay_ms(attempt, Random()) for attempt in (1, 2, 3, 9)] == [10_000, 20_000, 30_000, 30_000]
    random = Random(7)
    for attempt, middle in ((1, 10_000), (2, 20_000), (3, 30_000)):
        seen = [TIMEOUTS.delay_ms(attempt, random) for _ in range(300)]
        assert min(seen) >= middle * 0.8
        assert max(seen) <= min(middle * 1.2, 30_000)
        assert max(seen) - min(seen) > middle * 0.15


@pytest.mark.seed("601.3")
def test_only_failing_set_ups_raise_the_timeout() -> None:
    states = nodes("a", "b", jitter=False)
    assert states.connecting("a", 0) == 10_000
    states.disconnected("a", 10_000)
    assert states.connecting("a", 20_000) == 20_000
    states.ready("a")
    states.disconnected("a", 30_000)
    assert states.connecting("a", 40_000) == 10_000, "ready had reset it, and losing a ready node does not raise it"
    assert states.connecting("b", 40_000) == 10_000, "each node has its own"


@pytest.mark.seed("601.4")
def test_there_is_no_state_for_a_timeout() -> None:
    assert {state.name for state in NodeState} == {"DISCONNECTED", "CONNECTING", "READY"}
    states = nodes("a")
    states.connecting("a", 0)
    states.disconnected("a", 1)
    assert states["a"].state is NodeState.DISCONNECTED


@pytest.mark.seed("601.4")
def test_what_the_transition_table_lacks_is_refused() -> None:
    moves = {
        NodeState.CONNECTING: lambda states: states.connecting("a", 0),
        NodeState.READY: lambda states: states.ready("a"),
        NodeState.DISCONNECTED: lambda states: states.disconnected("a", 0),
    }
    for length, start in enumerate((NodeState.DISCONNECTED, NodeState.CONNECTING, NodeState.READY)):
        for target, move in moves.items():
            states = nodes("a")
            for earlier in list(moves.values())[:length]:
                earlier(states)
            assert states["a"].state is start
            if (start, target) in TRANSITIONS:
                move(states)
                assert states["a"].state is target
            else:
                with pytest.raises(ValueError, match="cannot become"):
                    move(states)


@pytest.mark.seed("601.5")
def test_a_connected_node_with_nothing_in_flight_wins_else_the_one_with_the_least() -> None:
    states = nodes("a", "b", "c")
    for node in "abc":
        states.connecting(node, 0)
        states.ready(node)
        states.sent(node)
        states.sent(node)
    states.answered("b")
    assert states.least_loaded(0) == "b"
    states.answered("c")
    states.answered("c")
    assert states.least_loaded(0) == "c"
    states.answered("b")
    assert states.least_loaded(0) == "b", "the first with none in flight"


@pytest.mark.seed("601.5")
def test_a_loaded_connected_node_goes_before_a_connecting_one() -> None:
    states = nodes("a", "b")
    states.connecting("a", 0)
    states.ready("a")
    states.sent("a")
    states.connecting("b", 0)
    assert states.least_loaded(0) == "a"


@pytest.mark.seed("601.5")
def test_without_a_connected_node_the_last_connecting_one_is_taken() -> None:
    states = nodes("a", "b", "c", "d")
    states.connecting("a", 0)
    states.connecting("c", 0)
    assert states.least_loaded(0) == "c"


@pytest.mark.seed("601.5")
def test_among_disconnected_nodes_the_fewest_failures_win_and_then_the_least_recently_tried() -> None:
    states = nodes("a", "b", "c")

    def fail(node: str, now_ms: float) -> None:
        states.connecting(node, now_ms)
        states.disconnected(node, now_ms)

    assert states.least_loaded(0) == "a"
    fail("a", 0)
    assert states.least_loaded(10_000) == "b"
    fail("b", 10_000)
    fail("c", 5_000)
    assert states.least_loaded(50_000) == "a", "one failure each: the one tried longest ago"
    fail("a", 50_000)
    assert states.least_loaded(90_000) == "c"


@pytest.mark.seed("601.5")
def test_the_switch_takes_the_least_recently_tried_whatever_its_failures() -> None:
    shipped = nodes("a", "b", least_recently_tried=True)
    text = nodes("a", "b")
    for states in (shipped, text):
        for now_ms in (0, 5_000, 10_000):
            states.connecting("a", now_ms)
            states.disconnected("a", now_ms)
        states.connecting("b", 20_000)
        states.disconnected("b", 20_000)
    assert shipped.least_loaded(60_000) == "a"
    assert text.least_loaded(60_000) == "b"


@pytest.mark.seed("601.5")
def test_with_every_node_in_its_back_off_or_no_node_at_all_there_is_none() -> None:
    states = nodes("a", jitter=False)
    states.connecting("a", 0)
    states.disconnected("a", 0)
    assert states.least_loaded(49) is None
    assert states.wait_ms(49) == 1
    assert states.least_loaded(50) == "a"
    assert nodes().least_loaded(0) is None


@pytest.mark.seed("601.6")
def test_the_reconnect_back_off_of_a_node_doubles_from_fifty_milliseconds_to_a_second() -> None:
    states = nodes("a", "b", jitter=False)
    now_ms, waits = 0.0, []
    for _ in range(7):
        states.connecting("a", now_ms)
        states.disconnected("a", now_ms)
        waits.append(states["a"].history.wait_ms(now_ms))
        assert not states.can_connect("a", now_ms + waits[-1] - 0.5)
        now_ms += waits[-1]
    assert waits == [50, 100, 200, 400, 800, 1000, 1000]
    assert states.can_connect("b", 0), "each node has its own"
    assert Backoff(initial_ms=50, multiplier=2, max_ms=1000, jitter=0.2) == BACKOFF
    states.connecting("a", now_ms)
    states.ready("a")
    states.disconnected("a", now_ms)
    assert states["a"].history.wait_ms(now_ms) == 50, "ready resets it"


@pytest.mark.seed("601.4")
async def test_an_attempt_that_takes_too_long_is_cancelled_and_its_socket_closed() -> None:
    config = settings(socket_connection_setup_timeout_ms=500)
    async with ScriptedStore(hello=None) as store, ConnectionPool(config) as pool:
        with pytest.raises(ConnectTimedOut) as caught:
            await pool.flow(store.endpoint, Recorder())
        assert caught.value.endpoint == str(store.endpoint)
        assert 400 <= (caught.value.limit or 0) <= 600
        await until(lambda: store.open_peers == 0)
        assert pool.connections_to(store.endpoint) == 0
        assert pool.metrics().connections_failed == 1
        store.hello = Hello(17, 5)
        await pool.flow(store.endpoint, Recorder())


@pytest.mark.seed("601.7")
async def test_a_slow_set_up_fails_nothing_that_is_bound_elsewhere() -> None:
    config = settings(socket_connection_setup_timeout_ms=10_000)
    async with (
        ScriptedStore(hello=None) as stuck,
        MockSegmentStore(watched=False) as store,
        ConnectionPool(config) as pool,
    ):
        waiting = asyncio.ensure_future(pool.flow(stuck.endpoint, Recorder()))
        await until(lambda: stuck.peers)
        user = Recorder()
        flow = await pool.flow(endpoint(store), user)
        for _ in range(20):
            flow.send(GetStreamSegmentInfo(flow.next_request_id(), "none", ""))
        await until(lambda: len(user.replies) == 20)
        assert not waiting.done()
        assert user.lost == []
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.seed("601.1")
async def test_a_user_that_stops_waiting_leaves_the_set_up_to_the_others() -> None:
    config = settings(max_connections_per_store=1)
    async with ScriptedStore(hello=None) as store, ConnectionPool(config) as pool:
        impatient = asyncio.ensure_future(pool.flow(store.endpoint, Recorder()))
        patient = asyncio.ensure_future(pool.flow(store.endpoint, Recorder()))
        await until(lambda: store.peers)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        store.peers[0].send(Hello(17, 5))
        flow = await patient
        assert len(store.peers) == 1
        assert pool._stores[store.endpoint].pooled[0].users == 1
        flow.close()


def channels(*endpoints: Endpoint, **more: float | bool) -> ControllerChannels:
    return ControllerChannels(endpoints, settings(**more), random=Random(1))


@pytest.mark.seed("601.5")
@pytest.mark.usefixtures("grpc_runs")
async def test_calls_go_to_a_connected_node_and_to_another_when_it_is_gone() -> None:
    async with MockCluster(watched=False) as first, MockCluster(watched=False) as second:
        ends = [Endpoint(*mock.controller_address) for mock in (first, second) if mock.controller_address is not None]
        calls = channels(*ends)
        for _ in range(3):
            await calls.ask("checkScopeExists", m.ScopeInfo(scope="a"))
        assert [calls.states[end].state for end in ends] == [NodeState.READY, NodeState.DISCONNECTED]
        await first.stop()
        await asyncio.gather(*[calls.ask("checkScopeExists", m.ScopeInfo(scope="a")) for _ in range(5)])
        assert [calls.states[end].state for end in ends] == [NodeState.DISCONNECTED, NodeState.READY]
        assert calls.states[ends[0]].history.failures >= 1
        assert [calls.states[end].in_flight for end in ends] == [0, 0]
        await calls.aclose()
        await calls.aclose()


@pytest.mark.seed("601.5")
@pytest.mark.usefixtures("grpc_runs")
async def test_with_no_node_in_reach_the_call_ends_by_its_deadline_and_says_why() -> None:
    with held_port() as one, held_port() as two:
        calls = channels(*(Endpoint("127.0.0.1", port) for port in (one, two)))
        with pytest.raises(NoNodeAvailable, match="could not be connected to") as caught:
            await calls.ask("checkScopeExists", m.ScopeInfo(scope="a"), timeout_ms=1_000)
        assert caught.value.limit == 1_000
        await calls.aclose()


@pytest.mark.seed("601.8")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_node_that_never_completes_its_handshake_costs_one_set_up_timeout() -> None:
    async with ScriptedStore(hello=None) as stuck, MockCluster(watched=False) as one, MockCluster(watched=False) as two:
        working = [Endpoint(*mock.controller_address) for mock in (one, two) if mock.controller_address is not None]
        calls = channels(stuck.endpoint, *working, socket_connection_setup_timeout_ms=1_500)
        await calls.ask("checkScopeExists", m.ScopeInfo(scope="a"))
        assert calls.states[stuck.endpoint].history.failed_setups == 1
        assert calls.states[stuck.endpoint].state is NodeState.DISCONNECTED
        assert calls.states[working[0]].state is NodeState.READY
        await until(lambda: stuck.open_peers == 0)
        await calls.aclose()
        without = channels(stuck.endpoint, *working, socket_connection_setup_timeout_ms=60_000)
        with pytest.raises(NoNodeAvailable):
            await without.ask("checkScopeExists", m.ScopeInfo(scope="a"), timeout_ms=300)
        await without.aclose()
