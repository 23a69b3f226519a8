"""Controller calls of a trace that are made to another controller: order, ids, differences."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from segstore.client import Basic, ClientSettings, connect
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from segstore.server.replay import of_clients
from segstore.tap import Tap
from segstore.testing import ServerThread
from segstore.traces import Access, Drive, drive, report
from segstore.wire import ReadTableKeys
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, Direction, Record, RecordKind
from tests.looped import looped
from tests.server.certificates import write_certificate
from tests.server.replay.test_calls import FIRST, STREAM, ask, one_by_one, reply, scope, trace, txn
from tests.server.traffic import read_all
from tests.test_tapping import before, make_stream, read_events

pytestmark = pytest.mark.usefixtures("grpc_runs")

EVENTS = 9


async def program(uri: str) -> None:
    """Writes events, scales the stream, and commits two transactions."""
    async with connect(uri) as pravega:
        await make_stream(pravega, 1)
        async with pravega.event_writer("shop", "orders") as writer:
            for number in range(5):
                await writer.write(b"tea %d" % number, routing_key=f"table {number}")
        await pravega.controller.scale("shop", "orders", [0], [(0, 0.5), (0.5, 1)], wait_ms=10_000)
        async with pravega.transaction_writer("shop", "orders") as writer:
            for number in range(2):
                async with writer.begin() as transaction:
                    await transaction.write(b"coffee %d" % number, routing_key=f"table {number}")
                    await transaction.write(b"cake %d" % number, routing_key=f"room {number}")


async def replayed(records: list[Record], cluster: MockCluster, **options: Any) -> Drive:
    (store,), controller = cluster.stores, Endpoint.parse(cluster.controller_uri)
    return await drive(records, *store.address, controller=controller, all_differences=True, **options)


@asynccontextmanager
async def fresh() -> AsyncIterator[MockCluster]:
    async with MockCluster(1) as cluster:
        yield cluster


async def written(cluster: MockCluster) -> list[bytes]:
    async with connect(cluster.controller_uri) as pravega:
        return sorted(await read_events(pravega, EVENTS))


def calls_in(records: list[Record], direction: Direction = Direction.REQUEST) -> list[Call]:
    calls = (
        Call.unpack(record.data)
        for record in records
        if record.kind is RecordKind.CALL and record.direction is direction
    )
    return [call for call in calls if call is not None]


def transactions(records: list[Record]) -> list[m.TxnId]:
    answers = calls_in(records, Direction.REPLY)
    return [
        answer.content.txnId for answer in answers if answer.rpc == "createTransaction" and answer.content is not None
    ]


async def test_a_recording_of_a_tap_replays_whole_against_a_fresh_cluster(tmp_path: Path) -> None:
    async with fresh() as cluster, before(cluster, record=tmp_path / "run.wtrace") as tap:
        await program(tap.controller_uri)
        expected = await written(cluster)
    records = read_all(tmp_path / "run.wtrace")
    async with fresh() as cluster:
        found = await replayed(records, cluster)
        assert [str(difference) for difference in found.differences] == []
        assert await written(cluster) == expected
    assert (found.calls, found.left_out) == (len(calls_in(records)), [])
    assert [each.rpc for each in calls_in(found.records)] == [each.rpc for each in calls_in(records)]
    assert len(transactions(found.records)) == 2
    assert not [transaction for transaction in transactions(found.records) if transaction in transactions(records)]


async def test_a_recording_of_a_server_replays_without_what_its_controller_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    with ServerThread() as thread:
        server = thread.serve(record=path)
        await program(server.controller_uri)
        server.stop()
    records = read_all(path)
    assert len(list(of_clients(records))) < len(records)
    async with fresh() as cluster:
        found = await replayed(records, cluster)
        assert [str(difference) for difference in found.differences] == []
        assert len(await written(cluster)) == EVENTS


async def test_a_secured_cluster_is_reached_with_tls_credentials_and_the_tokens_that_it_gives(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = {"tls_cert": certificate, "tls_key": key}
    settings = ClientSettings(tls_ca_file=certificate, username="ann", password="secret")

    def secured(signed_with: str) -> MockCluster:
        authority = Authority(Accounts(["ann:secret"]), signed_with, now_s=time.time)
        return MockCluster(1, authority=authority, auth_key=signed_with, **tls)

    path = tmp_path / "run.wtrace"
    async with secured("k" * 64) as cluster:
        tap = Tap(f"tls://{cluster.controller_uri}", ca=certificate, record=path, **tls)
        async with tap, connect(f"tls://{tap.controller_uri}", settings) as pravega:
            await make_stream(pravega)
            async with pravega.event_writer("shop", "orders") as writer:
                await writer.write(b"tea", routing_key="table 7")
    records = read_all(path)
    authorization = await Basic("ann", "secret").authorization()
    async with secured("l" * 64) as cluster:  # which refuses the tokens of the other
        found = await replayed(records, cluster, access=Access.over_tls(certificate, authorization=authorization))
        assert [str(difference) for difference in found.differences] == []
        async with connect(f"tls://{cluster.controller_uri}", settings) as pravega:
            assert await read_events(pravega, 1) == [b"tea"]
    async with secured("l" * 64) as cluster:
        found = await replayed(records, cluster, access=Access.over_tls(certificate), timeout_s=0.5)
        assert "createScope: UNAUTHENTICATED came instead of OK" in str(found.differences[0])
        with pytest.raises(ConnectionError, match=r"no connection to the store at .*: .*certificate verify failed"):
            await drive(records, *cluster.stores[0].address, access=Access.over_tls(None))


@looped(
    ("rpc", "request_", "answer", "segment"),
    [
        ("getDelegationToken", m.StreamInfo(scope="a", stream="b"), m.DelegationToken, "a/b/0.#epoch.0"),
        ("getDelegationToken", m.StreamInfo(scope="a", stream="b"), m.DelegationToken, "a/b_kvtable/0.#epoch.0"),
        (
            "getCurrentSegmentsKeyValueTable",
            m.KeyValueTableInfo(scope="a", kvtName="b"),
            m.SegmentRanges,
            "a/b_kvtable/0.#epoch.0",
        ),
    ],
)
def test_a_token_of_the_controller_is_that_of_the_stream_or_the_table(
    rpc: str, request_: Any, answer: Any, segment: str
) -> None:
    access = Access()
    answered = answer(delegationToken="secret").SerializeToString()
    access.learn(Call(1, rpc, request_.SerializeToString()), Call(1, rpc, answered, status="OK"))
    assert access.fields(ReadTableKeys(1, segment, "", 1, b"")) == {"delegation_token": "secret"}
    assert access.fields(ReadTableKeys(1, "a/c/0.#epoch.0", "", 1, b"")) == {}
    assert "secret" not in repr(access)
    assert "secret" not in repr(Access(authorization="secret", token="secret"))


async def test_another_outcome_is_a_difference_with_both_answers() -> None:
    records = one_by_one((ask("createScope", scope("a")), reply("createScope")))
    async with fresh() as cluster:
        assert (await replayed(records, cluster)).differences == []
        (difference,) = (await replayed(records, cluster)).differences
    said = "record 2, the controller, the reply to createScope: SCOPE_EXISTS came instead of OK"
    assert list(report(difference, left="in the trace", right="here")) == [
        f"{said}; a store is to be empty at the start, or it answers so",
        "in the trace:",
        "  createScope OK",
        "here:",
        '  createScope SCOPE_EXISTS status="SCOPE_EXISTS"',
    ]


async def test_another_status_and_other_fields_are_differences_unless_they_are_ignored() -> None:
    there = m.ExistsResponse(exists=True)
    records = one_by_one(
        (ask("checkScopeExists", scope("a")), reply("checkScopeExists", there)),
        (ask("createScope", scope("a")), reply("createScope", status="UNAVAILABLE", details="gone")),
        (ask("createScope", scope("b")), reply("createScope")),
    )
    async with fresh() as cluster:
        cluster.faults.add("rpc = createScope", nth=2, do={"status": "ABORTED", "details": "no"})
        found = await replayed(records, cluster)
    assert [str(difference) for difference in found.differences] == [
        "record 2, the controller, the reply to checkScopeExists, OK: exists is missing instead of true",
        "record 4, the controller, the reply to createScope: OK came instead of UNAVAILABLE",
        "record 6, the controller, the reply to createScope: ABORTED came instead of OK",
    ]
    async with fresh() as cluster:
        assert (await replayed(records[:2], cluster, ignore=frozenset({"exists"}))).differences == []


def state_polls(*states: int) -> list[Record]:
    request = m.TxnRequest(streamInfo=STREAM, txnId=txn(FIRST))
    answers = [reply("checkTransactionState", m.TxnState(state=state)) for state in states]
    return one_by_one(*((ask("checkTransactionState", request), answer) for answer in answers))


async def test_a_state_that_is_passed_through_is_polled_and_not_compared() -> None:
    state = m.TxnState
    async with fresh() as cluster:
        cluster.faults.add("rpc = checkTransactionState", every=1, do={"answer": {"state": "COMMITTED"}}, name="late")
        cluster.faults.add("rpc = checkTransactionState", nth=(2, 3), do={"answer": {"state": "COMMITTING"}})
        # The first is quicker than in the trace; the second is asked three times.
        found = await replayed(state_polls(state.COMMITTING, state.COMMITTED), cluster)
        assert [str(difference) for difference in found.differences] == []
        decided = [decision.rule for decision in cluster.faults.decisions]
        assert decided[-1] == "late"
        cluster.faults.clear()
        cluster.faults.add("rpc = checkTransactionState", do={"answer": {"state": "COMMITTING"}})
        found = await replayed(state_polls(state.COMMITTED), cluster, timeout_s=2)
    assert [str(each) for each in found.differences] == [
        "record 2, the controller, the reply to checkTransactionState: COMMITTING came instead of COMMITTED"
    ]


@looped("answer", [(), (reply("createScope", status="CANCELLED"),)])
async def test_a_call_without_an_answer_in_the_trace_is_made_and_given_up(answer: tuple[Call, ...]) -> None:
    async with fresh() as cluster:
        cluster.faults.add("rpc = createScope", do="drop")
        found = await replayed(trace(ask("createScope", scope("a")), *answer), cluster)
    assert (found.calls, found.differences) == (1, [])


def together(count: int) -> list[Record]:
    """Calls that are all made before the first answer."""
    numbers = range(1, count + 1)
    made = [ask("createScope", scope(f"scope-{number}"), number) for number in numbers]
    return trace(*made, *(reply("createScope", number=number) for number in reversed(numbers)))


async def test_calls_that_were_in_flight_together_are_so_again() -> None:
    async with fresh() as cluster:
        cluster.faults.add("rpc = createScope", do="hold", name="held")
        async with asyncio.TaskGroup() as tasks:
            replaying = tasks.create_task(replayed(together(3), cluster))
            await cluster.faults.wait_held("held", 3)
            cluster.faults.release("held")
        assert replaying.result().differences == []
