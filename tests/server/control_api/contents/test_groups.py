"""Reader groups over HTTP: readers, positions and lag, of groups that real clients run."""

import asyncio
from typing import Any

import pytest

from segstore.client import connect
from segstore.server.controller.policies import ReaderGroupConfig
from segstore.wire.names import segment_name
from segstore.wire.reader_groups import encode_key
from segstore.wire.reader_groups.table import UNASSIGNED, encode_offset, encode_value
from tests.looped import looped
from tests.server.control_api.support import asking_cluster, done, refusal

pytestmark = pytest.mark.usefixtures("grpc_runs")
STREAM = "/v1/streams/shop/orders"
EVENT = 8 + 4
PATIENCE_S = 60


async def until(http: Any, path: str, is_so: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so(found := await done(http, "GET", path)):  # noqa: ASYNC110 — HTTP has no event
            await asyncio.sleep(0.02)
    return found


async def test_a_group_of_two_readers_has_their_positions_and_lag() -> None:
    async with asking_cluster(stores=2) as (mock, http):
        await done(http, "PUT", STREAM, {"segments": 2})
        async with connect(mock.controller_uri) as pravega:
            async with pravega.event_writer("shop", "orders") as writer:
                for number in range(40):
                    await writer.write(f"{number:04}".encode(), routing_key=str(number))
            async with (
                pravega.reader_group("shop", "group", streams=["orders"], refresh_ms=50) as group,
                group.reader("one") as one,
                group.reader("two") as two,
            ):
                path = "/v1/groups/shop/group"
                found = await until(http, path, lambda it: [each["segments"] for each in it["readers"]] == [1, 1])
                assert found["lag_bytes"] == 40 * EVENT
                assert (found["kind"], found["streams"], found["reader_count"]) == ("stream", ["shop/orders"], 2)
                for _ in range(4):  # the last of them is not handled
                    await one.read()
                await two.read()
                found = await until(http, path, lambda it: it["lag_bytes"] == 37 * EVENT)
                by_reader = {each["reader"]: each for each in found["segments"]}
                lags = {each["reader"]: each["lag_bytes"] for each in found["readers"]}
                assert by_reader["one"]["offset"] == 3 * EVENT
                assert by_reader["two"]["offset"] == 0
                for each in by_reader.values():
                    assert each["status"] == "assigned"
                    assert each["lag_bytes"] == each["length"] - each["offset"] == lags[each["reader"]]
                # successors that no reader has reached count, too
                await done(http, "POST", f"{STREAM}/scale", {"segments": 3})
                await done(http, "POST", f"{STREAM}/events", {"events": [{"text": "late"}]})
                found = await done(http, "GET", path)
                assert found["lag_bytes"] == 38 * EVENT
                assert [each["status"] for each in found["segments"]] == ["assigned"] * 2 + ["later"] * 3
                assert found["segment_count"] == 5
        found = await done(http, "GET", "/v1/groups/shop")
        assert found == {"groups": [{"scope": "shop", "group": "group", "kind": "stream"}], "next": None}


async def test_the_lag_of_a_group_with_an_end_is_what_lies_before_it() -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", STREAM)
        await done(http, "POST", f"{STREAM}/events", {"events": [{"text": "four"}] * 5})
        async with (
            connect(mock.controller_uri) as pravega,
            pravega.reader_group("shop", "group", streams=["orders"], to={"orders": {0: 3 * EVENT}}),
        ):
            await done(http, "POST", f"{STREAM}/scale", {"segments": 2})
            found = await done(http, "GET", "/v1/groups/shop/group")
            assert (found["lag_bytes"], found["segment_count"]) == (3 * EVENT, 1)


async def test_groups_come_in_pages_and_tables_are_none() -> None:
    async with asking_cluster(stores=2) as (mock, http):
        await done(http, "PUT", STREAM)
        await done(http, "PUT", "/v1/tables/shop/table", {"primary_key_bytes": 2})
        for name in ("b", "d"):
            await mock.controller.reader_groups.create(
                "shop", name, ReaderGroupConfig(starting_cuts={"shop/orders": {}})
            )
        unassigned = encode_key(UNASSIGNED, "shop/orders/0.#epoch.0"), encode_value("offset", encode_offset(0))
        for name in ("a", "c"):
            table = segment_name("shop", f"{name}_kvtable", 0, 0)
            await mock.controller.segments.create_table(table, 0, 0)
            await mock.controller.segments.update_table(table, dict([unassigned]))
            found = await done(http, "GET", f"/v1/groups/shop/{name}")
            assert [(each["status"], each["offset"]) for each in found["segments"]] == [("unassigned", 0)]
        for limit in (1, 2, 3, 4):
            groups: list[Any] = []
            after: str | None = ""
            while after is not None:
                page = await done(http, "GET", "/v1/groups/shop", limit=limit, after=after)
                groups += [(each["group"], each["kind"]) for each in page["groups"]]
                after = page["next"]
            assert groups == [("a", "table"), ("b", "stream"), ("c", "table"), ("d", "stream")]
        assert refusal(await http.get("/v1/groups/shop/table"))[0] == 404


@looped(
    ("key", "value", "why"),
    [
        (b"\xff", b"", "starts no supported type"),
        (encode_key("config", "default"), b"x", "bytes expected"),
        (encode_key("unassigned_segments", "<b>"), b"\xa0", "no type_id"),
    ],
)
async def test_a_table_that_no_group_has_written_is_refused(key: bytes, value: bytes, why: str) -> None:
    async with asking_cluster() as (mock, http):
        await done(http, "PUT", "/v1/scopes/shop")
        segments, name = mock.controller.segments, segment_name("shop", "odd_kvtable", 0, 0)
        await segments.create_table(name, 0, 0)
        await segments.update_table(name, {key: value})
        status, said, _ = refusal(await http.get("/v1/groups/shop/odd"))
        assert (status, why in said) == (409, True), said
        assert (await done(http, "GET", "/v1/groups/shop"))["groups"][0]["group"] == "odd"
