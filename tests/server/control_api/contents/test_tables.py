"""Key-value tables over HTTP: partitions and entries."""

import pytest

from tests.server.control_api.support import asking_cluster, done

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def test_tables_are_listed_with_their_partitions_and_entries() -> None:
    async with asking_cluster(stores=2) as (_, http):
        for name in ("kv", "other", "third"):
            settings = {"primary_key_bytes": 2, "secondary_key_bytes": 1, "partitions": 3}
            await done(http, "PUT", f"/v1/tables/shop/{name}", settings)
        page = await done(http, "GET", "/v1/tables/shop", limit=2)
        assert ([each["table"] for each in page["tables"]], page["next"]) == (["kv", "other"], "other")
        page = await done(http, "GET", "/v1/tables/shop", limit=2, after="other")
        assert ([each["table"] for each in page["tables"]], page["next"]) == (["third"], None)
        entries = [{"key": {"text": f"k{number:02}"}, "value": {"json": {"n": number}}} for number in range(10)]
        entries.append({"key": {"base64": "/wAB"}, "value": {"base64": "AAH/"}})
        await done(http, "POST", "/v1/tables/shop/kv/entries", {"entries": entries})
        found = await done(http, "GET", "/v1/tables/shop/kv")
        assert (found["entries"], found["partitions"], found["secondary_key_bytes"]) == (11, 3, 1)
        assert sum(each["entries"] for each in found["segments"]) == 11
        assert [each["low"] for each in found["segments"]] == [0.0, 1 / 3, 2 / 3]
        read = await done(http, "GET", "/v1/tables/shop/kv/entries", **{"as": "readable"})
        shown = [(each["key"], each["value"]) for each in read["entries"]]
        assert ({"hex": "ff0001"}, {"hex": "0001ff"}) in shown
        assert ({"text": "k03"}, {"text": '{\n  "n": 3\n}'}) in shown
