"""The transactions of a stream over HTTP: their age, segments and sizes."""

import pytest

from tests.server.control_api.support import asking_cluster, done, refusal

pytestmark = pytest.mark.usefixtures("grpc_runs")
PATH = "/v1/streams/shop/orders/transactions"


async def test_open_transactions_are_listed_with_their_segments_and_bytes() -> None:
    async with asking_cluster(stores=2) as (_, http):
        await done(http, "PUT", "/v1/streams/shop/orders", {"segments": 3})
        begun = [(await done(http, "POST", PATH, {"lease_ms": 60_000}))["id"] for _ in range(5)]
        await done(http, "POST", f"{PATH}/{begun[2]}/events", {"events": [{"text": "a"}, {"text": "bc"}]})
        found, after = [], None
        while True:
            page = await done(http, "GET", PATH, limit=2, **({} if after is None else {"after": after}))
            found += page["transactions"]
            after = page["next"]
            if after is None:
                break
        assert [each["id"] for each in found] == sorted(begun)
        written = next(each for each in found if each["id"] == begun[2])
        assert (written["bytes"], written["segment_count"], written["epoch"]) == (8 + 1 + 8 + 2, 3, 0)
        assert sum(each["length"] for each in written["segments"]) == 19
        assert all(each["name"].endswith(begun[2].replace("-", "")) for each in written["segments"])
        assert all(each["status"] == "OPEN" and 0 <= each["age_ms"] < 60_000 for each in found)
        assert all(0 < each["lease_left_ms"] <= 60_000 for each in found)
        assert (await done(http, "GET", f"{PATH}/{begun[2]}"))["bytes"] == 19


async def test_a_transaction_that_has_ended_has_only_its_status() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", "/v1/streams/shop/orders")
        one = (await done(http, "POST", PATH))["id"]
        await done(http, "POST", f"{PATH}/{one}/commit")
        found = await done(http, "GET", f"{PATH}/{one}")
        assert (found["status"], found["opened_ms"]) == ("COMMITTED", None)
        assert (found["segments"], found["segment_count"]) == ([], 0)
        assert (await done(http, "GET", PATH))["transactions"] == []
        other = "00000000-0000-0000-0000-000000000009"
        status, said, where = refusal(await http.get(f"{PATH}/{other}"))
        assert (status, said, where) == (404, f"stream shop/orders has no transaction {other}", "path.transaction")
        assert refusal(await http.get(PATH, params={"after": "x"}))[0] == 422
