"""The resources of the control API, asked over a real socket by a client that is not ours."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.faults import FaultRequest
from segstore.wire import WIRE_VERSION, SegmentCreated
from segstore.wire.names import is_index
from tests.looped import looped
from tests.server.control_api.support import asking, peer_of, refusal
from tests.server.support import SEGMENT, WRITER, Peer, append, create, set_up, until


async def get(http: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_health_and_version_are_reported(http: httpx.AsyncClient) -> None:
    assert await get(http, "/v1/health") == {"status": "ok", "stores": 1, "controller": False}
    version = await get(http, "/v1/version")
    assert version["wire_version"] == WIRE_VERSION
    assert version["oldest_compatible_version"] == 5


async def test_segments_are_listed_in_pages_and_described_by_name(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    names = sorted(f"scope/s{number}/0.#epoch.0" for number in range(5))
    for name in names:
        mock.store.create_segment(name, now_ms=7)
    first = await get(http, "/v1/segments", limit=3)
    assert [each["name"] for each in first["segments"]] == names[:3]
    rest = await get(http, "/v1/segments", limit=3, after=first["next"])
    assert [each["name"] for each in rest["segments"]] == names[3:]
    assert rest["next"] is None
    assert len((await get(http, "/v1/segments", prefix="scope/s2/", indexes=True))["segments"]) == 2
    one = await get(http, "/v1/segments/scope/s0/0.%23epoch.0")
    assert (one["name"], one["length"], one["sealed"], one["kind"]) == (names[0], 0, False, "stream")
    status, said, where = refusal(await http.get("/v1/segments/scope/s9/0.%23epoch.0"))
    assert (status, where) == (404, "path.name")
    assert "scope/s9/0.#epoch.0" in said


async def test_the_bytes_of_a_segment_are_read_from_an_offset(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create(), set_up(), append(0, b"0123456789"))
    mock.store.truncate_segment(SEGMENT, 2)
    url = f"/v1/bytes/{SEGMENT.replace('#', '%23')}"
    for query, expected in (({}, b"23456789"), ({"from": 4, "limit": 3}, b"456"), ({"from": 10}, b"")):
        answer = await http.get(url, params=query)
        assert (answer.status_code, answer.content) == (200, expected)
        assert answer.headers["content-type"] == "application/octet-stream"
    for offset in (1, 11):
        status, said, where = refusal(await http.get(url, params={"from": offset}))
        assert (status, where) == (422, "query.from")
        assert said == f"offset {offset} is not in the segment: the segment has the bytes from 2 to 10"
    assert refusal(await http.get("/v1/bytes/scope/none"))[::2] == (404, "path.name")


async def test_pages_have_every_name_once_where_utf8_cannot_carry_some(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    names = [f"s/{chr(0xD800 + number)}" for number in range(7)] + [f"s/{number}" for number in range(7)]
    for name in names:
        mock.store.create_segment(name, now_ms=0)
    found: list[str] = []
    after = ""
    for _ in names:
        page = await get(http, "/v1/segments", limit=1, after=after)
        (only,) = page["segments"]
        found.append(only["name"])
        after = page["next"]
    assert after is None
    assert found == sorted(name.encode("utf-8", "backslashreplace").decode() for name in names)
    assert (await get(http, "/v1/segments", contains="ud80", prefix="s/"))["total"] == 7
    mock.store.create_segment("s/\\ud800", now_ms=0)  # looks as another does
    assert len((await get(http, "/v1/segments", contains="ud800"))["segments"]) == 2


async def test_services_are_listed_with_their_addresses(tmp_path: Path) -> None:
    async with asking(admin_port=0) as (mock, http):
        served = await get(http, "/v1/server")
        addresses = {"address": f"127.0.0.1:{mock.port}", "admin_address": f"127.0.0.1:{mock.admin_port}"}
        assert served["stores"] == [{"store": 0, **addresses, "upstream": None, "serving": True}]
        assert (served["controller"], served["data"], served["tls"]) == (None, None, False)
        assert served["capabilities"] == [
            *("stores", "segments", "containers", "counters"),
            *("faults", "toxics", "requests", "send", "recordings", "snapshots"),
        ]
        object.__setattr__(mock._control_api.controlled, "data", tmp_path / "odd \udc80")
        assert (await get(http, "/v1/server"))["data"] == str(tmp_path / "odd ") + "\\udc80"


async def test_counters_are_plain_numbers_and_those_that_go_down_are_apart(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    first = await get(http, "/v1/counters")
    await peer.ask(create())
    second = await get(http, "/v1/counters")
    (before,), (after,) = first["stores"], second["stores"]
    assert second["time_s"] >= first["time_s"]
    assert after["totals"]["bytes_in"] > before["totals"]["bytes_in"] > 0
    indexes = sum(is_index(segment) for segment in mock.segments)
    here = {"segments": len(mock.segments) - indexes, "index_segments": indexes}
    assert indexes
    assert after["now"] == {"connections_open": 1, "outstanding_bytes": 0, **here}
    assert set(after["totals"]) & set(after["now"]) == set()


async def test_a_connection_is_closed_by_its_number_and_the_others_stay() -> None:
    async with asking() as (mock, http), peer_of(mock) as one, peer_of(mock) as other:
        found = (await get(http, "/v1/connections"))["connections"]
        assert [each["number"] for each in found] == [1, 2]
        assert all(each["bytes_in"] > 0 and each["bytes_out"] > 0 for each in found)
        answer = await http.delete("/v1/connections/1")
        assert answer.json() == {"peer": found[0]["peer"]}
        assert await one.closed() == b""
        assert refusal(await http.delete("/v1/connections/7"))[::2] == (404, "path.number")
        await until(lambda: len(mock.server.hub.connections) == 1)
        assert len(await other.ask(create())) == 1
        assert (await http.delete("/v1/connections/2", params={"drain": True})).status_code == 200
        assert await other.closed() == b""


async def test_appends_of_a_writer_are_counted_by_its_id_and_kept_when_it_disconnects(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    async with peer_of(mock) as peer:
        await peer.ask(create())
        await peer.ask(set_up())
        await peer.ask(append(0, b"abc"))
        await peer.ask(append(1, b"de"))
        (writer,) = (await get(http, "/v1/streams/scope/stream/stats"))["writers"]
        assert writer == {"name": None, "id": str(WRITER), "segments": 1, "connected": 1, "events": 2, "bytes": 5}
    await until(lambda: not mock.server.hub.connections)
    stats = await get(http, "/v1/streams/scope/stream/stats")
    assert stats["writers"][0]["connected"] == 0
    assert stats["writers"][0]["bytes"] == stats["bytes"] == 5
    assert (await get(http, f"/v1/segments/{SEGMENT.replace('#', '%23')}"))["writers"] == 1


async def test_a_rule_with_a_function_is_listed_by_its_name_and_cannot_be_added(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    @mock.fault("type = HELLO")
    def greeted(request: FaultRequest) -> None:
        """Decides nothing: the request is executed."""

    (rule,) = (await get(http, "/v1/faults"))["rules"]
    assert (rule["name"], rule["rule"]["do"]) == ("greeted", [{"call": "greeted"}])
    assert refusal(await http.post("/v1/faults", json={"do": {"call": "greeted"}}))[::2] == (422, "body.do[0]")
    assert "#/components/schemas/Call" not in (await http.get("/v1/openapi.json")).text


async def test_toxics_are_added_listed_and_removed(mock: MockSegmentStore, http: httpx.AsyncClient) -> None:
    async with peer_of(mock) as peer:
        made = await http.post("/v1/toxics", json={"type": "timeout", "timeout": 0, "stream": "upstream"})
        assert (made.status_code, made.json()) == (201, {"name": "timeout_upstream"})
        again = await http.post("/v1/toxics", json={"type": "timeout", "timeout": 5, "stream": "upstream"})
        assert refusal(again)[::2] == (409, "body.name")
        (toxic,) = (await get(http, "/v1/toxics"))["toxics"]
        assert (toxic["toxic"]["timeout"], toxic["connections"]) == (0, 1)
        assert (await http.delete("/v1/toxics/timeout_upstream")).status_code == 204
        assert await peer.closed() == b""
    assert refusal(await http.delete("/v1/toxics/timeout_upstream"))[::2] == (404, "path.name")
    await http.post("/v1/toxics", json={"type": "latency"})
    assert (await http.delete("/v1/toxics")).status_code == 204
    toxics = [{"type": "slicer", "average_size": 5}, {"type": "down", "toxicity": 0}]
    assert (await http.put("/v1/faults", json={"toxics": toxics})).status_code == 200
    assert [tally.name for tally in mock.faults.toxics.tallies()] == ["slicer_downstream", "down"]
    assert (await http.put("/v1/faults", json={})).status_code == 200
    assert mock.faults.toxics.tallies() == []


async def test_a_rule_is_disabled_and_enabled_and_keeps_its_counts(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await http.post("/v1/faults", json={"name": "no create", "match": "type = CREATE_SEGMENT", "do": "WrongHost"})
    await peer.ask(create())
    off = await http.post("/v1/faults/no%20create/disable")
    assert (off.json()["enabled"], off.json()["fired"]) == (False, 1)
    assert [type(each) for each in await peer.ask(create())] == [SegmentCreated]
    on = await http.post("/v1/faults/no%20create/enable")
    assert (on.json()["enabled"], on.json()["matched"]) == (True, 1)
    for word in ("disable", "enable"):
        assert refusal(await http.post(f"/v1/faults/other/{word}"))[::2] == (404, "path.name")


@looped("name", ["..", "a/b"])
async def test_a_name_that_a_path_cannot_have_is_refused(name: str) -> None:
    async with asking() as (mock, http):
        rule, toxic = {"name": name, "do": "close"}, {"name": name, "type": "down"}
        assert refusal(await http.post("/v1/faults", json=rule))[::2] == (422, "body.name")
        settings = {"rules": [], "toxics": [toxic]}
        assert refusal(await http.put("/v1/faults", json=settings))[::2] == (422, "body.toxics[0].name")
        assert (mock.faults.rules, mock.faults.toxics.tallies()) == ([], [])
        with pytest.raises(ValueError, match=r"no name|a name has no"):
            mock.faults.add("", "close", name=name)


async def test_a_rule_is_replaced_at_its_place(mock: MockSegmentStore, http: httpx.AsyncClient) -> None:
    for name in ("first", "a b"):
        await http.post("/v1/faults", json={"name": name, "do": "ok", "match": "type = CREATE_SEGMENT"})
    answer = await http.put("/v1/faults/first", json={"name": "first", "do": "close", "probability": 0.5})
    assert (answer.status_code, answer.json()["rule"]["probability"]) == (200, 0.5)
    assert (await http.put("/v1/faults/a%20b", json={"do": "drop"})).json()["name"] == "a b"
    assert mock.faults.rules == ["first", "a b"]
    for name, rule, expected in (
        ("first", {"name": "a b", "do": "ok"}, (409, "body.name")),
        ("first", {"do": {"delay_ms": -1}}, (422, "body.do[0].delay_ms")),
        ("other", {"do": "ok"}, (404, "path.name")),
    ):
        assert refusal(await http.put(f"/v1/faults/{name}", json=rule))[::2] == expected
    assert mock.faults.rules == ["first", "a b"]


async def test_a_fault_file_takes_the_place_of_all_rules_or_of_none(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    mock.faults.add("type = HELLO", do="ok", name="old")
    bad = await http.put("/v1/faults", json={"rules": [{"do": "ok"}, {"do": "close", "at": 3}]})
    assert refusal(bad)[::2] == (422, "body.rules[1].at")
    twice = await http.put("/v1/faults", json={"rules": [{"do": "ok", "name": "a"}, {"do": "ok", "name": "a"}]})
    assert refusal(twice)[0] == 422
    made_up = await http.put("/v1/faults", json={"rules": [{"do": "ok"}, {"do": "ok", "name": "rule 1"}]})
    assert refusal(made_up)[::2] == (422, "body.rules[1].name")
    assert mock.faults.rules == ["old"]
    rules = [{"match": "type = HELLO", "do": "ok", "name": "new"}]
    answer = await http.put("/v1/faults", json={"seed": 4, "round_trip_ms": {"0": 1.5}, "rules": rules})
    assert answer.status_code == 200
    assert (mock.faults.rules, mock.faults.seed, mock.faults.round_trip_ms) == (["new"], 4, {0: 1.5})
    assert (await http.delete("/v1/faults")).status_code == 204
    assert mock.faults.rules == []


JSON = {"content-type": "application/json"}


async def test_bad_input_is_refused_with_a_sentence_and_its_place(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    for method, path, sent, status, where in [
        ("POST", "/v1/faults", b"{", 400, "body"),
        ("POST", "/v1/faults", b"\xff\xfe", 400, "body"),
        ("POST", "/v1/faults", b"[" * 100_000, 400, "body"),
        ("POST", "/v1/faults", b"", 422, "body"),
        ("POST", "/v1/faults", b'{"do": "WrongHots"}', 422, "body.do[0]"),
        ("POST", "/v1/faults", b'{"do": "ok", "match": "type ="}', 422, "body.match"),
        ("POST", "/v1/faults", b'{"do": "ok", "probability": NaN}', 422, "body.probability"),
        ("POST", "/v1/faults", b'{"do": "ok", "skip": 1e999}', 422, "body.skip"),
        ("POST", "/v1/faults", b'{"do": {"error": "WrongHost", "fields": {"correct_host": "\\ud800"}}}', 422, "body"),
        ("POST", "/v1/faults", b'{"do": "ok", "nth": [1, 1' + b"0" * 5_000 + b"]}", 400, "body"),
        ("PUT", "/v1/faults", b'{"' + b"x" * 200_000 + b'": 1}', 422, f"body.{'x' * 100}…"),
        ("POST", "/v1/faults", b'{"do": "ok", "store": 1}', 422, "body.store"),
        ("PUT", "/v1/faults", b'{"rules": [{"do": "ok", "store": 1}]}', 422, "body.rules[0].store"),
        ("PUT", "/v1/faults", b'{"toxics": [{"type": "down", "store": 1}]}', 422, "body.toxics[0].store"),
        ("PUT", "/v1/faults", b'{"round_trip_ms": {"1": 5}}', 422, "body.round_trip_ms.1"),
        ("PUT", "/v1/round-trip", b'{"round_trip_ms": {"1": 5}}', 422, "body.round_trip_ms.1"),
        ("POST", "/v1/toxics", b'{"type": "down", "store": 1}', 422, "body.store"),
        ("POST", "/v1/toxics", b'{"type": "latency", "latency": -1}', 422, "body.latency"),
        ("POST", "/v1/toxics", b'{"type": "latency", "name": "\\ud800"}', 422, "body.name"),
        ("PUT", "/v1/faults", b'{"toxics": [{"type": "slicer"}]}', 422, "body.toxics[0].average_size"),
        ("POST", "/v1/writers", b'{"name": "\\ud800"}', 422, "body.name"),
        ("GET", "/v1/segments?limit=0", b"", 422, "query.limit"),
        ("GET", "/v1/segments/%FF", b"", 404, "path.name"),
        ("GET", "/v1/streams/a/b/stats", b"", 404, "path"),
        ("GET", "/v1/nothing", b"", 404, "path"),
        ("PATCH", "/v1/health", b"", 405, "method"),
        ("GET", "/docs", b"", 404, "path"),
    ]:
        answer = await http.request(method, path, content=sent, headers=JSON if sent else {})
        assert refusal(answer)[::2] == (status, where)
    assert mock.faults.rules == []
    assert (await http.get("/v1/health")).status_code == 200


async def test_all_errors_of_a_body_are_named(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/faults", json={"every": 0, "probability": 7, "match": "type =", "do": "ok"})
    assert {error["where"] for error in answer.json()["errors"]} == {"body.every", "body.probability", "body.match"}
    assert refusal(answer)[2] in {error["where"] for error in answer.json()["errors"]}
    assert "errors" not in (await http.post("/v1/faults", json={"every": 0, "do": "ok"})).json()


async def test_a_key_that_an_object_has_twice_is_refused(http: httpx.AsyncClient) -> None:
    for method, path, sent, key in [
        ("POST", "/v1/streams/a/s/events", b'{"events": [{"json": {"a": [{"c": 1, "c": 2}]}}]}', "c"),
        ("POST", "/v1/writers", b'{"name": "a", "name": "b"}', "name"),
        ("PUT", "/v1/faults", b'{"rules": [{"do": "ok", "do": "close"}]' + b" " * 5_000 + b"}", "do"),
    ]:
        answer = await http.request(method, path, content=sent, headers=JSON)
        assert refusal(answer) == (400, f"body: the key {key!r} appears twice", "body")


async def test_metrics_are_in_the_text_form_of_prometheus() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with asking() as (mock, http):
        mock.faults.add("type = HELLO", do="ok", name="greeted")
        async with peer_of(mock):
            answer = await http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        assert samples["segstore_connections_total", "0"] == 1
        assert samples["segstore_connections_open", "0"] == 1
        assert samples["segstore_fault_fired_total", "greeted"] == 1


async def test_without_prometheus_client_metrics_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with asking() as (_, http):
        status, said, _ = refusal(await http.get("/metrics"))
        assert status == 501
        assert "pip install" in said
