"""The last events of streams: few of many, large ones, bytes that are no events."""

from typing import Any

import pytest

from segstore.client import connect
from segstore.wire.names import segment_name
from tests.server.control_api.support import asking_cluster, done, refusal

pytestmark = pytest.mark.usefixtures("grpc_runs")
STREAM = "/v1/streams/shop/orders"


async def write(http: Any, *events: dict[str, Any]) -> None:
    await done(http, "POST", f"{STREAM}/events", {"events": events})


async def test_the_last_events_are_json_text_or_hex() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        empty = await done(http, "GET", f"{STREAM}/tail")
        assert [(each["length"], each["events"], each["left_out"]) for each in empty["segments"]] == [(0, [], False)]
        await write(http, {"text": "first"}, {"json": {"a": 1}}, {"text": "\x1b[31m"}, {"text": "é" * 3_000})
        (segment,) = (await done(http, "GET", f"{STREAM}/tail", limit=3))["segments"]
        assert [(each["form"], each["size"], each["kind"]) for each in segment["events"]] == [
            ("json", 7, "event"),
            ("hex", 5, "event"),
            ("text", 6_000, "event"),
        ]
        assert [each["text"] for each in segment["events"]] == ['{\n  "a": 1\n}', "1b5b33316d", "é" * 2_048]
        assert [each["offset"] for each in segment["events"]] == [13, 28, 41]
        assert (segment["left_out"], segment["why"]) == (True, "")
        (segment,) = (await done(http, "GET", f"{STREAM}/tail", limit=4))["segments"]
        assert (len(segment["events"]), segment["left_out"]) == (4, False)


async def test_after_a_scale_the_last_events_are_those_of_the_epoch_before() -> None:
    async with asking_cluster(stores=2) as (_, http):
        await done(http, "PUT", STREAM)
        await write(http, {"text": "old"})
        await done(http, "POST", f"{STREAM}/scale", {"segments": 30})
        tail = await done(http, "GET", f"{STREAM}/tail")
        assert [[each["text"] for each in one["events"]] for one in tail["segments"]] == [["old"]]
        await write(http, *({"text": "new", "routing_key": str(number)} for number in range(200)))
        tail = await done(http, "GET", f"{STREAM}/tail", limit=1)
        assert (len(tail["segments"]), tail["segment_count"]) == (20, 30)
        assert {each["text"] for one in tail["segments"] for each in one["events"]} == {"new"}
        tail = await done(http, "GET", f"{STREAM}/tail", segment=0)
        assert [each["text"] for each in tail["segments"][0]["events"]] == ["old"]
        status, said, _ = refusal(await http.get(f"{STREAM}/tail", params={"segment": 77}))
        assert (status, "segment shop/orders/77.#epoch.0" in said) == (404, True)


async def test_bytes_without_headers_are_shown_as_data() -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", STREAM)
        async with connect(mock.controller_uri) as pravega, pravega.byte_writer("shop", "orders") as writer:
            await writer.append(b"\xff" * 100_000)
            await writer.flush()
        (segment,) = (await done(http, "GET", f"{STREAM}/tail"))["segments"]
        assert segment["name"] == segment_name("shop", "orders", 0, 0)
        (data,) = segment["events"]
        assert (data["kind"], data["form"], data["text"]) == ("data", "hex", "ff" * 4_096)
        assert 0 < data["size"] <= 100_000
