"""Scopes, streams, transactions and tables, arranged over HTTP."""

import pytest

from segstore.client import connect
from tests.server.control_api.support import asking_cluster, done, refusal

pytestmark = pytest.mark.usefixtures("grpc_runs")
STREAM = "/v1/streams/shop/orders"


async def test_a_stream_is_created_scaled_sealed_and_deleted() -> None:
    async with asking_cluster(stores=2) as (_, http):
        made = await done(http, "PUT", STREAM, {"segments": 2})
        assert [(each["id"], each["low"], each["high"]) for each in made["segments"]] == [(0, 0, 0.5), (1, 0.5, 1)]
        scaled = await done(http, "POST", f"{STREAM}/scale", {"seal": [0], "ranges": [[0, 0.25], [0.25, 0.5]]})
        assert (scaled["epoch"], [each["high"] for each in scaled["segments"]]) == (1, [0.25, 0.5, 1])
        assert len((await done(http, "POST", f"{STREAM}/scale", {"segments": 4}))["segments"]) == 4
        assert refusal(await http.delete(STREAM))[:2] == (409, "stream shop/orders must be sealed before it is deleted")
        sealed = await done(http, "POST", f"{STREAM}/seal")
        assert (sealed["sealed"], sealed["segments"]) == (True, [])
        await done(http, "DELETE", STREAM)
        await done(http, "DELETE", "/v1/scopes/shop")
        assert await done(http, "GET", "/v1/scopes") == {"scopes": [], "next": None}


async def test_a_scope_is_deleted_with_what_is_in_it_on_request() -> None:
    async with asking_cluster() as (_, http):
        for _ in range(2):
            await done(http, "PUT", "/v1/scopes/shop")
        await done(http, "PUT", STREAM)
        assert refusal(await http.delete("/v1/scopes/shop"))[0] == 409
        await done(http, "DELETE", "/v1/scopes/shop", recursive=True)
        assert refusal(await http.delete("/v1/scopes/shop"))[:2] == (404, "scope shop does not exist")


async def test_the_events_of_a_transaction_appear_with_its_commit() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        for end, status, seen in (("abort", "ABORTED", []), ("commit", "COMMITTED", ["inside"])):
            begun = await done(http, "POST", f"{STREAM}/transactions")
            path = f"{STREAM}/transactions/{begun['id']}"
            await done(http, "POST", f"{path}/events", {"events": [{"text": "inside"}]})
            assert (await done(http, "GET", f"{STREAM}/events"))["events"] == []
            assert (await done(http, "POST", f"{path}/{end}"))["status"] == status
            assert (await done(http, "GET", path))["status"] == status
            page = await done(http, "GET", f"{STREAM}/events")
            assert [each["text"] for each in page["events"]] == seen
            late = await http.post(f"{path}/events", json={"events": [{"text": "late"}]})
            assert refusal(late)[:2] == (409, f"transaction {begun['id']} is {status}")


async def test_the_client_reads_what_was_arranged_and_is_read_here() -> None:
    async with asking_cluster(stores=2) as (mock, http):
        await done(http, "PUT", STREAM, {"segments": 2})
        await done(http, "POST", f"{STREAM}/events", {"events": [{"text": "a", "routing_key": "k"}]})
        async with connect(f"tcp://{mock.controller_uri}") as pravega:
            async with pravega.event_writer("shop", "orders") as writer:
                await writer.write(b"b", routing_key="k")
            page = await done(http, "GET", f"{STREAM}/events")
            assert [each["text"] for each in page["events"]] == ["a", "b"]
            assert len({each["segment"] for each in page["events"]}) == 1


async def test_a_refusal_by_the_controller_names_the_part_of_the_request() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        for method, path, given, status, where in [
            ("POST", f"{STREAM}/transactions", {"lease_ms": 10**20}, 422, "body"),
            ("POST", f"{STREAM}/scale", {"seal": [5], "ranges": [[0, 1]]}, 409, "body"),
            ("POST", f"{STREAM}/scale", {"seal": [0], "ranges": [[0, 0.3]]}, 422, "body"),
            ("GET", f"{STREAM}/events?from=99:5", None, 422, "query"),
            ("DELETE", STREAM, None, 409, "path"),
        ]:
            assert refusal(await http.request(method, path, json=given))[::2] == (status, where)


async def test_what_cannot_be_arranged_is_refused() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", STREAM)
        for method, path, body, status in [
            ("PUT", "/v1/streams/shop/bad%20name", {}, 422),
            ("PUT", "/v1/streams/shop/orders", {}, 409),
            ("PUT", "/v1/streams/shop/other", {"segments": 1_001}, 422),
            ("POST", f"{STREAM}/scale", {}, 422),
            ("POST", f"{STREAM}/scale", {"segments": 2, "seal": [0]}, 422),
            ("POST", f"{STREAM}/scale", {"seal": [0], "ranges": [[0, 0.5]]}, 422),
            ("POST", f"{STREAM}/truncate", {"position": "nowhere"}, 422),
            ("POST", "/v1/streams/shop/none/seal", None, 404),
            ("POST", f"{STREAM}/transactions", {"lease_ms": 1}, 422),
            ("GET", f"{STREAM}/transactions/00000000-0000-0000-0000-000000000001", None, 404),
            ("GET", f"{STREAM}/transactions/none", None, 422),
            ("PUT", "/v1/tables/shop/kv", {"primary_key_bytes": 200, "secondary_key_bytes": 57}, 422),
            ("DELETE", "/v1/tables/shop/kv", None, 404),
        ]:
            assert refusal(await http.request(method, path, json=body))[0] == status
