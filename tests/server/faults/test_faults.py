"""Faults over real sockets: each action does to a client what it says, and nothing else."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from segstore.server import FaultSettings, Rule, StoreSettings
from segstore.server.cluster import Cluster, ClusterSettings
from segstore.server.faults import Faults, FaultWaits, Observer
from segstore.server.faults.decisions import NoSuchRule, Wait
from segstore.server.faults.rules import reply_class
from segstore.wire import (
    AppendSetup,
    DataAppended,
    Hello,
    NoSuchSegment,
    SegmentCreated,
    SegmentIsSealed,
    SegmentRead,
    WrongHost,
    encode,
)
from segstore.wire.names import container_of
from tests.looped import looped
from tests.server.faults.traffic import APPENDS, PONG, Host, HostName, acknowledged, hosted, stored, writer_of
from tests.server.support import HELLO, SEGMENT, WRITER, FakeClock, Peer, append, create, read, set_up


@pytest.mark.parametrize(("at", "in_store"), [("before", 2), ("after", 3)])
async def test_a_connection_closed_at_the_third_append_acknowledges_two_and_stores_the_third_only_if_closed_after_it(
    at: str, in_store: int, mock: Host, peer: Peer
) -> None:
    mock.faults.add(APPENDS, nth=3, do=f"close {at}")
    peer.send(append(1), append(2), append(3), append(4))
    assert acknowledged(await peer.receive(5)) == [1, 2]
    assert stored(mock) == 4 * in_store
    assert [decision.action for decision in mock.faults.decisions] == [f"close {at}"]
    async with await Peer.connect(mock) as again:
        answers = await again.ask(HELLO, set_up())
        assert answers[1] == AppendSetup(2, SEGMENT, WRITER, in_store), "the writer learns what was stored"


async def test_a_connection_can_end_in_the_middle_of_a_reply(mock: Host, peer: Peer) -> None:
    mock.faults.add(APPENDS, do={"close": "after", "reply_bytes": 11})
    peer.send(append(1))
    whole = encode(DataAppended(3, WRITER, 1, -(2**63), 4))
    assert await peer.closed() == whole[:11]
    assert stored(mock) == 4


async def test_a_reset_is_felt_as_one(kind: HostName) -> None:
    async with hosted(kind) as mock:
        peer = await writer_of(mock)
        mock.faults.add(APPENDS, do={"close": "before", "reset": True})
        peer.send(append(1))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(peer.reader.read(1), 60)
        await peer.close()
        assert stored(mock) == 0


async def test_an_error_takes_the_place_of_the_store(mock: Host, peer: Peer) -> None:
    mock.faults.add("type = READ_SEGMENT", nth=1, do={"error": "WrongHost", "fields": {"correct_host": "other:1"}})
    peer.send(append(1), read(0), read(0, request_id=5))
    _, refused, served = await peer.receive(3)
    assert refused == WrongHost(4, SEGMENT, "other:1", "")
    assert isinstance(served, SegmentRead)
    (seen,) = mock.requests("failure", stage="refused")
    assert (seen.reply, seen.faults) == ("WRONG_HOST", ("rule 1: error WRONG_HOST",))


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("error", ["SegmentIsSealed", "WrongHost"])
async def test_appends_that_came_with_one_that_a_rule_refuses_are_refused_as_it_is(
    kind: HostName, error: str, at: str, mock: Host, peer: Peer
) -> None:
    mock.faults.add(APPENDS, nth=2, do={"error": error, "at": at})
    other = UUID(int=77)
    await peer.ask(set_up(writer_id=other))
    peer.send(append(1), append(2), append(3), PONG, append(4), append(1, writer_id=other))
    answers = await peer.receive(6)
    refusal = reply_class(error).type_name
    names = [answer.type_name for answer in answers]
    assert names == ["DATA_APPENDED", refusal, refusal, "KEEP_ALIVE", refusal, "DATA_APPENDED"]
    if error == "SegmentIsSealed":
        assert [each.offset for each in answers if isinstance(each, SegmentIsSealed)] == [2, 3, 4]
    # A tap forwards the appends behind the second before its reply comes: the store has applied them.
    applied = {"before": 2, "after": 3 if kind == "store" else 5}[at]
    assert stored(mock) == 4 * applied
    refused = {"before": 3, "after": 2 if kind == "store" else 0}[at]
    assert len(mock.requests(APPENDS, stage="refused")) == refused
    again = await peer.ask(set_up(), append(5))
    assert [each.type_name for each in again] == ["APPEND_SETUP", "DATA_APPENDED"]
    peer.send(append(6))
    assert acknowledged(await peer.receive(1)) == [6]


@pytest.mark.parametrize(("do", "applied"), [("drop", 0), ("drop reply", 1)])
async def test_a_dropped_request_is_not_executed_and_one_whose_reply_is_dropped_was(
    do: str, applied: int, mock: Host, peer: Peer
) -> None:
    mock.faults.add(APPENDS, do=do)
    peer.send(append(1), PONG)
    assert await peer.receive(1) == [PONG]
    assert stored(mock) == 4 * applied
    assert len(mock.requests(APPENDS, stage="applied")) == applied
    assert mock.requests(APPENDS, stage="replied") == []


async def test_a_byte_of_a_reply_can_be_changed(kind: HostName) -> None:
    async with hosted(kind) as mock, await Peer.connect(mock) as peer:
        mock.faults.add("type = CREATE_SEGMENT", nth=1, do={"corrupt": 15, "xor": 3})
        mock.faults.add("type = CREATE_SEGMENT", nth=1, do={"corrupt": -1, "xor": 1})
        mock.faults.add("type = HELLO", do={"corrupt": 500})
        answers = await peer.ask(HELLO, create(request_id=4), create("scope/stream/1.#epoch.0"))
        assert answers[0] == Hello(17, 5), "a reply that has no such byte is as it was"
        assert answers[1] == SegmentCreated(4 ^ 3, SEGMENT)
        assert answers[2] == SegmentCreated(1, "scope/stream/1.#epoch.1")


async def test_a_delayed_request_keeps_back_what_is_behind_it_by_the_clock_of_the_store(kind: HostName) -> None:
    clock = FakeClock()
    async with hosted(kind, clock=clock) as mock, await writer_of(mock) as peer:
        mock.faults.add(APPENDS, nth=1, do={"delay_ms": 250})
        peer.send(append(1), append(2), PONG)
        await mock.wait_for(APPENDS, stage="received")
        clock.advance(0.2)
        assert mock.requests(APPENDS, stage="applied") == []
        assert stored(mock) == 0
        clock.advance(0.05)
        assert acknowledged(await peer.receive(2)) == [1, 2]
        assert await peer.receive(1) == [PONG]
        assert mock.requests(APPENDS)[0].latency_ns == 250_000_000


async def test_a_round_trip_takes_its_time_without_slowing_the_store(kind: HostName) -> None:
    clock = FakeClock()
    async with hosted(kind, clock=clock) as mock, await Peer.connect(mock) as peer:
        mock.faults.round_trip_ms = 40
        peer.send(HELLO, create(), set_up(), append(1))
        await mock.wait_for(APPENDS)
        assert mock.requests(stage="replied") == []
        clock.advance(0.04)
        assert [each.type_name for each in await peer.receive(4)][-1] == "DATA_APPENDED"
        assert {request.latency_ns for request in mock.requests()} == {40_000_000}


async def test_held_traffic_continues_when_it_is_released(mock: Host, peer: Peer) -> None:
    mock.faults.add(APPENDS, nth=2, do="hold", name="second")
    peer.send(append(1), append(2), append(3))
    await mock.faults.wait_held("second")
    assert acknowledged(await peer.receive(1)) == [1]
    assert stored(mock) == 4
    assert mock.faults.release("second") == 1
    assert acknowledged(await peer.receive(2)) == [2, 3]
    assert mock.faults.held("second") == 0


async def test_disabling_a_rule_releases_what_it_holds_and_enabling_it_holds_again(mock: Host, peer: Peer) -> None:
    mock.faults.add(APPENDS, do="hold", name="held")
    peer.send(append(1))
    await mock.faults.wait_held("held")
    mock.faults.disable("held")
    assert acknowledged(await peer.receive(1)) == [1]
    assert acknowledged(await peer.ask(append(2))) == [2]
    mock.faults.enable("held")
    peer.send(append(3))
    await mock.faults.wait_held("held")
    assert stored(mock) == 8


async def test_a_store_that_stops_does_not_wait_for_what_is_held(kind: HostName) -> None:
    async with hosted(kind) as mock:
        peer = await writer_of(mock)
        mock.faults.add(APPENDS, do="hold", name="held")
        peer.send(append(1), append(2))
        await mock.faults.wait_held("held")
    assert await peer.receive(1) == []
    await peer.close()


async def test_a_wait_for_held_traffic_that_times_out_names_the_count(kind: HostName) -> None:
    async with hosted(kind) as mock, await Peer.connect(mock) as peer:
        mock.faults.add('type = CREATE_SEGMENT and segment ~ "shop/*"', do="hold", name="x")
        await peer.ask(HELLO, create())
        with pytest.raises(TimeoutError) as caught:
            await mock.faults.wait_held("x", timeout_s=0.01)
        said, near = str(caught.value).splitlines()
        assert said.startswith("'x' held 0 and not 1 within 0.01 s")
        assert near.endswith(' ms: not segment ~ "shop/*"')
        with pytest.raises(NoSuchRule, match="no rule has the name 'y'; there are 'x'"):
            await mock.faults.wait_held("y")


async def test_a_rule_on_replies_acts_on_the_reply_that_fits(kind: HostName) -> None:
    async with hosted(kind) as mock, await Peer.connect(mock) as peer:
        mock.faults.add("type = SEGMENT_ALREADY_EXISTS", on="reply", do="drop", name="a")
        mock.faults.add("type = SEGMENT_CREATED and segment ~ '*/0.*'", on="reply", do="NoSuchSegment", name="b")
        peer.send(HELLO, create(), create(), PONG)
        assert await peer.receive(3) == [Hello(17, 5), NoSuchSegment(1, SEGMENT, "", -1), PONG]
        assert SEGMENT in mock.segments
        assert [(decision.rule, decision.direction, decision.type_name) for decision in mock.faults.decisions] == [
            ("b", "reply", "SEGMENT_CREATED"),
            ("a", "reply", "SEGMENT_ALREADY_EXISTS"),
        ]


async def test_the_answer_of_a_read_that_waited_is_a_reply_too(mock: Host, peer: Peer) -> None:
    mock.faults.add("type = SEGMENT_READ and latency >= 0s", on="reply", do="WrongHost")
    peer.send(read(0))
    await mock.wait_for("type = READ_SEGMENT", stage="received")
    peer.send(append(1))
    answers = await peer.receive(2)
    assert {answer.type_name for answer in answers} == {"WRONG_HOST", "DATA_APPENDED"}


async def test_the_same_workload_gives_the_same_log_twice(kind: HostName) -> None:
    async def run() -> list[str]:
        settings = FaultSettings(seed=5, rules=(Rule(match=APPENDS, probability=0.5, do="drop reply", name="lossy"),))
        async with hosted(kind, faults=settings) as mock, await writer_of(mock) as peer:
            peer.send(*(append(number) for number in range(1, 60)), PONG)
            while (await peer.receive(1))[0] != PONG:
                pass
            return [str(decision) for decision in mock.faults.decisions]

    first = await run()
    assert 10 < len(first) < 50
    assert await run() == first


async def test_the_stores_of_a_cluster_have_their_own_rules_and_round_trips() -> None:
    clock = FakeClock()
    settings = ClusterSettings(store=StoreSettings(port=0, containers=2), stores=2)
    async with Cluster(settings, clock=clock, faults=Faults(clock, observer=Observer())) as mock:
        segments = {container_of(name, 2): name for name in (f"scope/stream/{n}.#epoch.0" for n in range(20))}
        mock.faults.add("type = CREATE_SEGMENT", store=1, do="WrongHost")
        mock.faults.round_trip_ms = {0: 30}
        answers = []
        for number, store in enumerate(mock.stores):
            async with Peer(*await asyncio.open_connection(*store.address)) as peer:
                peer.send(HELLO, create(segments[number]))
                await mock.wait_for(f"type = CREATE_SEGMENT and segment = '{segments[number]}'", stage="received")
                clock.advance(0.03)
                answers += await peer.receive(2)
        assert [answer.type_name for answer in answers] == ["HELLO", "SEGMENT_CREATED", "HELLO", "WRONG_HOST"]
        assert [request.store for request in mock.requests("type = HELLO")] == [0, 1]
        latencies = [each.latency_ns for each in mock.requests("type = CREATE_SEGMENT")]
        assert latencies == [30_000_000, 0]


async def test_a_rule_that_matched_nothing_is_reported_when_the_store_stops(
    kind: HostName, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosted(kind) as mock, await Peer.connect(mock) as peer:
        mock.faults.add("type = MERGE_SEGMENTS", do="close", name="never")
        mock.faults.add("type = HELLO", nth=2, do="close", name="idle")
        await peer.ask(HELLO)
    said = [record.message for record in caplog.records if record.name == "segstore.server.faults.faults"]
    assert [each.partition(":")[0] for each in said] == [
        "fault 'never' has matched nothing",
        "fault 'idle' has matched, but never fired",
    ]


def test_a_rule_that_is_not_there_is_named_with_those_that_are() -> None:
    faults = Faults(FakeClock())
    with pytest.raises(NoSuchRule, match="no rule has the name 'x'; there are no rules") as caught:
        faults.clear("x")
    assert (caught.value.name, caught.value.known) == ("x", ())
    faults.add("failure", do="ok", name="one", on="reply")
    faults.add("size > 1GB", do="ok")
    for ask in (faults.clear, faults.disable, faults.enable, faults.release):
        with pytest.raises(NoSuchRule, match="'x'; there are 'one', 'rule 2'") as caught:
            ask("x")
        assert caught.value.known == ("one", "rule 2") == tuple(faults.rules)


def test_each_store_has_the_round_trip_that_is_set_for_it_or_for_all() -> None:
    faults = Faults(FakeClock(), FaultSettings(seed=1, round_trip_ms=5, rules=(Rule(name="a", do="ok"),)))
    assert (faults.round_trip_s(0), faults.round_trip_s(3)) == (0.005, 0.005)
    faults.round_trip_ms = {3: 20}
    assert (faults.round_trip_s(0), faults.round_trip_s(3)) == (0.0, 0.02)
    faults.load(FaultSettings(seed=9, round_trip_ms=1, rules=(Rule(name="b", do="ok"),)))
    assert (faults.seed, faults.rules, faults.round_trip_s(3)) == (9, ["a", "b"], 0.001)


@looped(("wrong", "said"), [(-1, "round_trip_ms"), ({0: "fast"}, "round_trip_ms.0"), ({-1: 5}, "round_trip_ms.-1")])
def test_a_round_trip_that_no_fault_file_could_have_is_refused(wrong: Any, said: str) -> None:
    faults = Faults(FakeClock(), FaultSettings(round_trip_ms=5))
    with pytest.raises(ValueError, match=said):
        faults.round_trip_ms = wrong
    assert faults.round_trip_ms == 5


async def test_a_wait_for_what_a_rule_never_holds_is_refused_at_once() -> None:
    faults = Faults(FakeClock())
    faults.add(do=["ok", "close"], name="served")
    with pytest.raises(ValueError, match="rule 'served' holds nothing: its action is ok and close before"):
        await faults.wait_held("served")
    faults.add(do="hold", name="held")
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, not 0"):
        await faults.wait_held("held", 0)


async def test_a_wait_for_a_number_of_held_ends_with_that_number() -> None:
    faults = Faults(FakeClock())
    waits = FaultWaits(faults)
    faults.add("size > 1GB", do="hold", name="held")
    waiting = asyncio.create_task(faults.wait_held("held", 2))
    for number in (1, 2):
        await asyncio.sleep(0)
        assert not waiting.done()
        waits.add(Wait(0.0, ("held",)), lambda: None)
        assert faults.held("held") == number
    await waiting
    await faults.wait_held("held", 2)
    with pytest.raises(TimeoutError, match="'held' held 2 and not 3 within 0 s"):
        await faults.wait_held("held", 3, timeout_s=0)
