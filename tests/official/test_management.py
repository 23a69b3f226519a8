"""Scopes, streams, tags and listings with the official client, and what it is told of what cannot be."""

from typing import Any

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from tests.official.client import run
from tests.official.support import MARKS, segment_names, uri

pytestmark = MARKS


def refused(outcome: dict[str, Any], with_words: str) -> bool:
    return outcome.get("fails") == "ValueError" and with_words in outcome["text"] and "tries: 1 " in outcome["text"]


async def test_scopes_are_made_listed_and_deleted() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "management.scopes")
    assert found["created"]
    assert not found["again"]
    assert all(refused(each, "Invalid scope") for each in found["refused names"]), found["refused names"]
    assert found["listed"] == ["a"]
    assert (found["deleted"], found["missing"], found["empty"]) == (True, False, [])


async def test_streams_go_through_their_life() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "management.streams")
        left = segment_names(cluster)
    assert (found["created"], found["again"]) == (True, False)
    assert refused(found["no scope"], "Not Found")
    assert all(refused(each, "Invalid Stream") for each in found["refused names"])
    assert found["policies"] == [True] * 4
    assert found["listed"] == ["by-bytes", "by-events", "by-size", "by-time", "s"]
    assert refused(found["scope in use"], "Scope not empty")
    assert refused(found["not sealed"], "Stream Not Sealed")
    assert found["sealed"] == [True, True]
    assert found["update of a sealed one"] == [True, []]
    assert (found["deleted"], found["deleted again"]) == (True, False)
    assert refused(found["seal of a missing one"], "Not Found")
    assert refused(found["update of a missing one"], "Not Found")
    assert found["listed at last"] == ["by-bytes", "by-events", "by-size", "by-time"]
    assert found["scope deleted"] is True
    assert left == []


async def test_tags_are_set_changed_and_removed() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "management.tags")
    assert found["plain"] == []
    assert sorted(found["tagged"]) == ["one", "two"]
    assert (found["updated"], found["after"]) == (True, ["three"])
    assert (found["removed"], found["at last"]) == (True, [])
    assert refused(found["missing"], "NotFound")


async def test_a_listing_of_several_pages_is_whole() -> None:
    for page_size in (3, 7):
        async with MockCluster(watched=False, controller=ControllerConfig(page_size=page_size)) as cluster:
            found = await run(uri(cluster), "management.listing", count=7)
        assert found["scopes"] == [f"scope{number}" for number in range(7)], page_size
        assert found["streams"] == [f"stream{number}" for number in range(7)], page_size
        assert found["none"] == []
        assert found["no scope"] == []


async def test_what_is_missing_is_refused_and_not_retried_without_limit() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "management.missing")
    for what in ("reader group", "byte stream"):
        assert found[what]["fails"] == "PanicException", found[what]
        assert "stream a/no does not exist" in found[what]["text"]
    assert "more than one segment" in found["byte stream of two segments"]["text"]
    assert "stream a/no does not exist" in found["transaction"]["text"]
    assert found["still serves"] is True
