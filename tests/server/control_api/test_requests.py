"""The latest requests over HTTP: the list, the detail of one, and the trace of all."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.traces import TraceFile
from segstore.wire import AppendBlock, AppendBlockEnd, ReadSegment, SegmentCreated, SetupAppend
from segstore.wire.commands import (
    NO_VERSION,
    CreateTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    TableEntries,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableValue,
    UpdateTableEntries,
)
from segstore.wire.controller_api import METHODS, messages
from segstore.wire.trace import RecordKind
from tests.server.control_api.support import asking, asking_cluster, client_of, done, peer_of, refusal
from tests.server.support import SEGMENT, WRITER, Peer, append, create, event, set_up, until


async def test_requests_come_newest_first_with_what_has_become_of_them(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create(), set_up(), append(1, b"four"))
    mock.faults.add("type = APPEND_BLOCK_END", do="hold", name="held")
    peer.send(append(2))
    await mock.faults.wait_held("held")
    answer = (await http.get("/v1/requests")).json()
    assert (answer["last"], answer["forgotten"]) == (5, 0)
    numbers = [each["number"] for each in answer["requests"]]
    assert numbers == sorted(numbers, reverse=True)
    held, stored, *_, hello = answer["requests"]
    assert (held["type"], held["stage"], held["faults"]) == ("APPEND_BLOCK_END", "received", ["held: hold"])
    assert (held["reply"], held["latency_ms"]) == (None, None)
    assert (stored["stage"], stored["reply"], stored["failure"]) == ("replied", "DATA_APPENDED", False)
    assert (stored["segments"], stored["writer_id"], stored["request_id"]) == ([SEGMENT], str(WRITER), "3")
    assert stored["faults"] == []
    assert stored["latency_ms"] >= 0
    assert (hello["type"], hello["store"], hello["role"]) == ("HELLO", 0, "")
    (connection,) = (await http.get("/v1/connections")).json()["connections"]
    assert stored["connection"] == connection["number"]


async def test_a_read_at_the_tail_is_given_up_by_closing_the_connection(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    async def read() -> Any:
        (found,) = (await done(http, "GET", "/v1/requests", match="type = READ_SEGMENT"))["requests"]
        return found

    async with peer_of(mock) as peer:
        await peer.ask(create())
        peer.send(ReadSegment(SEGMENT, 0, 100, "", 9))
        await mock.wait_for("type = READ_SEGMENT", stage="received")
        assert (await read())["stage"] == "received"
    for _ in range(500):  # until the store has seen the end of the connection
        if (await read())["stage"] != "received":
            break
        await asyncio.sleep(0.01)
    assert (await read())["stage"] == "given up"
    detail = await done(http, "GET", f"/v1/requests/{(await read())['number']}")
    assert detail["timeline"][-1]["what"] == "given up: the client closed the connection"


@pytest.mark.usefixtures("grpc_runs")
async def test_calls_are_listed_with_the_scopes_and_streams_that_they_name() -> None:
    async with asking_cluster() as (mock, http), grpc.aio.insecure_channel(mock.controller_uri) as channel:
        for rpc, message in (
            ("createScope", messages.ScopeInfo(scope="s")),
            ("checkStreamExists", messages.StreamInfo(scope="s", stream="one")),
            ("getControllerServerList", messages.ServerRequest()),
        ):
            method = METHODS[rpc]
            await channel.unary_unary(method.path, method.request.SerializeToString)(message)
        listed = (await done(http, "GET", "/v1/requests", match="kind = call"))["requests"]
        assert [(each["type"], each["streams"], each["segments"]) for each in listed] == [
            ("getControllerServerList", [], []),
            ("checkStreamExists", ["s/one"], []),
            ("createScope", ["s"], []),
        ]
        detail = await done(http, "GET", f"/v1/requests/{listed[1]['number']}")
        assert {each["about"] for each in detail["neighbours"] if each["type"] == "checkStreamExists"} == {"s/one"}


async def test_what_a_client_sends_that_is_no_request_is_found_by_its_type(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    query = {"match": "type = SEGMENT_CREATED"}
    status, said, _ = refusal(await http.get("/v1/requests", params=query))
    assert (status, "no request can match this" in said) == (422, True)
    peer.send(SegmentCreated(1, SEGMENT))
    await until(lambda: not mock.server.hub.connections)
    (found,) = (await http.get("/v1/requests", params=query)).json()["requests"]
    assert found["type"] == "SEGMENT_CREATED"


async def test_requests_are_chosen_by_a_filter_by_number_and_by_how_many(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create(), create())

    async def numbers(**query: str | int) -> list[int]:
        return [each["number"] for each in (await http.get("/v1/requests", params=query)).json()["requests"]]

    first, second = sorted(await numbers(match="type = CREATE_SEGMENT"))
    assert await numbers(match="failure") == [second]
    assert await numbers(after=first) == [second]
    assert await numbers(limit=1) == [second]
    assert await numbers(match="latency > 1h") == []
    status, said, where = refusal(await http.get("/v1/requests", params={"match": "type ="}))
    assert (status, where) == (422, "query.match")
    assert "column 7" in said


async def test_an_append_in_detail_has_its_fields_its_events_its_timeline_and_its_neighbours() -> None:
    events = event(b'{"table": 7}') + event(b"text") + event(b"\xff\x00")
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), set_up())
        block, end = AppendBlock(WRITER, events), AppendBlockEnd(WRITER, len(events), b"", 3, 3, 9)
        peer.send(block)
        await peer.ask(end)
        mock.faults.add("type = READ_SEGMENT", do="WrongHost", name="lost")
        await peer.ask(ReadSegment(SEGMENT, 0, 100, "secret", 10))
        refused, stored = (await http.get("/v1/requests", params={"limit": 2})).json()["requests"]
        found = (await http.get(f"/v1/requests/{stored['number']}")).json()
        lost = (await http.get(f"/v1/requests/{refused['number']}")).json()
    assert [(each["part"], each["type"]) for each in found["frames"]] == [
        ("request", "APPEND_BLOCK"),
        ("request", "APPEND_BLOCK_END"),
        ("reply", "DATA_APPENDED"),
    ]
    fields = {each["name"]: each["value"] for each in found["frames"][1]["fields"]}
    assert (fields["num_events"], fields["last_event_number"]) == ("3", "3")
    assert bytes.fromhex(found["frames"][2]["hex"])[:4] == bytes((0, 0, 0, 7))
    assert [(each["kind"], each["form"], each["text"]) for each in found["payload"]] == [
        ("event", "json", '{\n  "table": 7\n}'),
        ("event", "text", "text"),
        ("event", "hex", "ff00"),
    ]
    assert [each["what"] for each in found["timeline"]][-3:] == ["received", "applied", "replied with DATA_APPENDED"]
    beside = found["neighbours"]
    assert [each["type"] for each in beside if each["itself"]] == ["APPEND_BLOCK_END"]
    assert "WRONG_HOST" in [each["type"] for each in beside]
    assert [json.loads(line)["type"] for line in found["fixture"]] == [each["type"] for each in found["frames"]]

    assert [each["what"] for each in lost["timeline"]] == [
        "received",
        "fault lost: error WRONG_HOST",
        "refused",
        "replied with WRONG_HOST",
    ]
    assert "secret" not in json.dumps(lost)
    assert "******" in [each["value"] for each in lost["frames"][0]["fields"]]


async def test_keys_and_values_of_table_commands_are_payloads() -> None:
    key, entries = (
        TableKey(b"key", NO_VERSION),
        [TableEntry(TableKey(b"key", NO_VERSION), TableValue(b'{"a":1}' + b" " * 64))],
    )
    of_entry = [("request", "key", "key", 3), ("request", "value", '{\n  "a": 1\n}', 71)]
    of_reply = [("reply", *each[1:]) for each in of_entry]
    many = [TableEntry(TableKey(b"%d" % at, NO_VERSION), TableValue(b"")) for at in range(60)]
    args = TableIteratorArgs(b"", b"", b"", b"")
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(CreateTableSegment(1, "scope/_tables/t", False, 0, ""))
        for command, expected in (
            (UpdateTableEntries(2, "scope/_tables/t", "", TableEntries(entries)), of_entry),
            (ReadTable(3, "scope/_tables/t", "", [key]), [of_entry[0], *of_reply]),
            (ReadTableKeys(4, "scope/_tables/t", "", 9, args), of_reply[:1]),
            (ReadTableEntries(5, "scope/_tables/t", "", 9, args), of_reply),
            (ReadTableEntriesDelta(6, "scope/_tables/t", "", 0, 9), of_reply),
            (RemoveTableKeys(7, "scope/_tables/t", "", [key]), of_entry[:1]),
            (GetTableSegmentInfo(8, "scope/_tables/t", ""), []),
        ):
            await peer.ask(command)
            number = (await http.get("/v1/requests", params={"limit": 1})).json()["requests"][0]["number"]
            found = (await http.get(f"/v1/requests/{number}")).json()["payload"]
            shown = [(each["part"], each["kind"], each["text"], each["size"]) for each in found]
            assert shown == expected, command.type_name
        await peer.ask(UpdateTableEntries(9, "scope/_tables/t", "", TableEntries(many)))
        number = (await http.get("/v1/requests", params={"limit": 1})).json()["requests"][0]["number"]
        assert len((await http.get(f"/v1/requests/{number}")).json()["payload"]) == 50


async def test_a_request_that_was_discarded_or_is_none_is_not_found(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create())
    for number in (3, 77, 10**30):
        status, _, where = refusal(await http.get(f"/v1/requests/{number}"))
        assert (status, where) == (404, "path.number")


@pytest.mark.parametrize("form", ["wtrace", "jsonl"])
async def test_what_is_kept_is_downloaded_as_a_trace(tmp_path: Path, form: str) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), SetupAppend(2, WRITER, SEGMENT, "secret"))
        answer = await http.get("/v1/trace", params={"form": form})
        assert f'filename="segstore.{form}"' in answer.headers["content-disposition"]
    file = tmp_path / f"it.{form}"
    file.write_bytes(answer.content)
    with TraceFile(file) as trace:
        records = list(trace.records())
    assert [record.kind for record in records] == [RecordKind.OPEN, *[RecordKind.FRAME] * 6]
    assert b"secret" not in answer.content


@pytest.mark.usefixtures("grpc_runs")
async def test_a_cluster_keeps_the_requests_of_all_its_stores_also_of_one_that_is_restarted() -> None:
    async with MockCluster(stores=2, containers=2, http_port=0) as mock, client_of(mock) as http:
        await mock.stop_store(1)
        await mock.start_store(1)
        assert {store.hub.recorder for store in mock.stores} == {mock.traffic}
        assert (await http.get("/v1/requests")).status_code == 200
