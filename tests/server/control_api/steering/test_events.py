"""Events and table entries over HTTP: forms of contents, positions, pages, hostile ones."""

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.control_api.steering.arranging import parse_position, position_text
from segstore.server.control_api.steering.events import ENCODER, shown_as
from segstore.server.control_api.steering.models import Content
from segstore.wire import SealSegment
from tests.looped import looped
from tests.server.control_api.support import asking_cluster, done, refusal
from tests.server.support import HELLO, Peer

pytestmark = pytest.mark.usefixtures("grpc_runs")
STREAM = "/v1/streams/shop/orders"
EVENTS = f"{STREAM}/events"
ENTRIES = "/v1/tables/shop/kv/entries"


def events(*texts: str, key: str = "") -> dict[str, Any]:
    return {"events": [{"text": text, "routing_key": key} for text in texts]}


async def test_events_are_written_and_read_in_three_forms() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        written = await done(
            http, "POST", EVENTS, {"events": [{"json": {"a": [1, None]}}, {"text": "ü"}, {"base64": "/wA="}]}
        )
        assert [each["offset"] for each in written["events"]] == [0, 8 + 14, 8 + 14 + 8 + 2]
        for form, shown in (
            ("json", [{"json": {"a": [1, None]}}, {"text": "ü"}, {"base64": "/wA="}]),
            ("text", [{"text": '{"a":[1,null]}'}, {"text": "ü"}, {"base64": "/wA="}]),
            ("base64", [{"base64": "eyJhIjpbMSxudWxsXX0="}, {"base64": "w7w="}, {"base64": "/wA="}]),
        ):
            page = await done(http, "GET", EVENTS, **{"as": form})
            assert [{k: each[k] for k in each if k in ("json", "text", "base64")} for each in page["events"]] == shown
            assert page["at_end"]


async def test_pages_follow_scales_and_keep_the_order_of_a_key() -> None:
    async with asking_cluster(stores=2) as (_, http):
        await done(http, "PUT", STREAM, {"segments": 2})
        expected: dict[str, list[str]] = {}
        for round_, segments in enumerate((3, 1, 4)):
            for key in ("a", "b", "c", "d"):
                texts = [f"{key}{round_}.{number}" for number in range(3)]
                await done(http, "POST", EVENTS, events(*texts, key=key))
                expected.setdefault(key, []).extend(texts)
            if segments >= 2:
                await done(http, "POST", f"{STREAM}/scale", {"segments": segments})
        for limit in (1, 5, 1_000):
            seen: list[str] = []
            position, at_end = "", False
            while not at_end:
                page = await done(http, "GET", EVENTS, limit=limit, **{"from": position})
                assert len(page["events"]) <= limit
                seen += [each["text"] for each in page["events"]]
                position, at_end = page["next"], page["at_end"]
            assert {key: [each for each in seen if each[0] == key] for key in expected} == expected
        await done(http, "POST", EVENTS, events("later"))
        page = await done(http, "GET", EVENTS, **{"from": position})
        assert [each["text"] for each in page["events"]] == ["later"]


async def test_a_position_before_a_truncation_or_beyond_the_end_is_refused() -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", STREAM)
        await done(http, "POST", EVENTS, events("a"))
        beyond = refusal(await http.get(EVENTS, params={"from": "0:99"}))
        said = "query.from: offset 99 of shop/orders/0.#epoch.0 is beyond its end, 9"
        assert beyond == (422, said, "query.from")
        state = await done(http, "POST", f"{STREAM}/scale", {"segments": 1})
        position = f"{state['segments'][0]['id']}:0"
        await done(http, "POST", f"{STREAM}/truncate", {"position": position})
        before = refusal(await http.get(EVENTS, params={"from": "0:0"}))
        said = "query.from: segment 0 was removed by a truncation; read from the beginning, without from"
        assert before == (422, said, "query.from")
        assert (await done(http, "GET", EVENTS))["events"] == []
        await mock.controller.streams.truncate("shop", "orders", {state["segments"][0]["id"]: 50})
        page = await done(http, "GET", EVENTS)
        assert await done(http, "GET", EVENTS, **{"from": page["next"]}) == page


async def test_a_position_beyond_the_end_of_a_segment_truncates_nothing() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM, {"segments": 2})
        await done(http, "POST", EVENTS, events("a"))
        end = await done(http, "GET", EVENTS)
        (name, offset), (other, _) = sorted(each.split(":") for each in end["next"].split(","))
        beyond = {"position": f"{name}:{offset},{other}:99"}
        said = f"body.position: offset 99 of shop/orders/{other}.#epoch.0 is beyond its end, 0"
        assert refusal(await http.post(f"{STREAM}/truncate", json=beyond)) == (422, said, "body.position")
        assert (await done(http, "GET", EVENTS))["events"] == end["events"]


@looped("data", [b"\x00\x00\x00\x01\x00\x00\x00\x00", b"\x00\x00\x00\x00\xff\xff\xff\xff", b"\x00\x00"])
async def test_bytes_that_are_no_event_are_named(data: bytes) -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", STREAM)
        name = "shop/orders/0.#epoch.0"
        segment = next(each for store in mock.stores if (each := store.store).owns(name)).segment(name)
        segment.write(data)
        status, said, _ = refusal(await http.get(EVENTS))
        assert status == 409
        assert said.startswith(name)
        assert said.endswith("event at offset 0")


async def test_a_content_that_is_none_is_refused() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        for content, where in [
            ({}, "body.events[0]"),
            ({"text": None}, "body.events[0]"),
            ({"text": "a", "json": 1}, "body.events[0]"),
            ({"text": "a", "other": 1}, "body.events[0].other"),
            ({"base64": "%%"}, "body.events[0].base64"),
            ({"text": "\ud800"}, "body.events[0]"),
            ({"json": float("nan")}, "body.events[0].json"),
        ]:
            body = json.dumps({"events": [content]}).encode()
            answer = await http.post(EVENTS, content=body, headers={"content-type": "application/json"})
            assert refusal(answer)[::2] == (422, where)
            assert (await done(http, "GET", EVENTS))["events"] == []


async def test_a_position_that_is_none_is_refused() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        for position in ["x", "0", "0:", "0:1,0:2", "9:0", "0:99999999999999999999", "0:0,"]:
            assert refusal(await http.get(EVENTS, params={"from": position}))[0] == 422


async def test_a_segment_that_a_client_has_sealed_holds_nobody() -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", "/v1/streams/s/t", {"segments": 1})
        async with Peer(*await asyncio.open_connection(*mock.address)) as peer:
            await peer.ask(HELLO, SealSegment(1, "s/t/0.#epoch.0", ""))
        status, said, _ = refusal(await http.post("/v1/streams/s/t/events", json={"events": [{"text": "a"}]}))
        assert (status, said) == (409, "a segment of stream s/t is sealed, and has no successor")


async def test_entries_of_a_table_are_written_read_in_pages_and_removed() -> None:
    async with asking_cluster(stores=2) as (_, http):
        await done(http, "PUT", "/v1/tables/shop/kv", {"partitions": 3, "primary_key_bytes": 2})
        entries = [{"key": {"text": f"k{number}"}, "value": {"json": number}} for number in range(10)]
        await done(http, "POST", ENTRIES, {"entries": entries})
        for limit in (1, 3, 1_000):
            found: list[Any] = []
            after: str | None = ""
            while after is not None:
                page = await done(http, "GET", ENTRIES, after=after, limit=limit, **{"as": "json"})
                found += page["entries"]
                after = page["next"]
            assert sorted((each["key"]["text"], each["value"]["json"]) for each in found) == [
                (f"k{number}", number) for number in range(10)
            ]
        await done(http, "DELETE", ENTRIES, key="k3")
        assert (await done(http, "GET", ENTRIES, key="k3"))["entries"] == []
        (kept,) = (await done(http, "GET", ENTRIES, key="k4"))["entries"]
        assert kept["value"] == {"text": "4"}
        status, said, _ = refusal(await http.get(ENTRIES, params={"key": "long"}))
        assert (status, said) == (422, "query.key: a key of table shop/kv has 2 bytes, not 4")
        for after in ("x", "0:%%", "0:a", "0:YQ==", "0:YWFh"):
            assert refusal(await http.get(ENTRIES, params={"after": after}))[0] == 422


@given(st.binary(), st.sampled_from(["json", "text", "base64"]))
def test_every_content_can_be_shown(data: bytes, form: Any) -> None:
    shown = json.loads(ENCODER.encode(shown_as(data, form)))
    ((kind, value),) = shown.items()
    if kind == "base64":
        assert base64.b64decode(value) == data
    elif kind == "text":
        assert value.encode() == data
    else:
        assert json.loads(data) == value


@given(st.dictionaries(st.integers(0, 2**62), st.integers(0, 2**62), min_size=1, max_size=5))
def test_a_position_is_read_as_it_was_written(cut: dict[int, int]) -> None:
    assert parse_position(position_text(cut), "query.from") == cut


def test_nested_json_is_refused_or_shown_as_text() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert shown_as(deep, "json") == {"text": deep.decode()}
    assert Content.model_validate({"json": None}).data("body") == b"null"
