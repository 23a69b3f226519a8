"""Changes of the world at a request: what moves, scales, restarts or expires, and what cannot."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from segstore.client import connect
from segstore.explore import ExploredCluster, explore
from segstore.explore.world import CHANGES, Change
from segstore.wire import GetStreamSegmentInfo
from tests.explore.test_exploring import event, peer_of, writer
from tests.server.support import HELLO, SEGMENT, append, create, set_up

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def test_a_change_that_fails_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise KeyError("no such container") from None

    async def lasts(*_: Any) -> None:
        await asyncio.Event().wait()  # for ever

    for make, why in ((fails, "'no such container'"), (lasts, "the client ended before the change was complete")):
        monkeypatch.setitem(CHANGES, "store restarts", Change(make))

        async def impatient(mock: ExploredCluster) -> None:
            async with await peer_of(mock) as peer:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await peer.ask(HELLO)

        explored = await explore(impatient, failures=["store restarts"], timeout_s=3)
        (cell,) = explored.cells
        assert (cell.colour, cell.why, explored.findings) == ("unknown", why, [])
        assert explored.not_injected == {("store restarts", why): 1}


async def test_a_stream_is_not_scaled_at_a_request_that_is_about_no_stream_in_this_run() -> None:
    names = iter((SEGMENT, SEGMENT, "scope/_RGcooks/0.#epoch.0"))

    async def wanders(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            await peer.ask(HELLO, GetStreamSegmentInfo(1, next(names), ""))

    explored = await explore(wanders, prepare=writer, failures=["scale up"])
    why = "in this run, the request is about another kind of segment: reader group"
    assert (explored.findings, explored.not_injected) == ([], {("scale up", why): 1})


async def test_a_container_moves_to_the_next_of_several_stores() -> None:
    owners = []
    async with ExploredCluster(3) as mock:
        for _ in range(4):
            owners.append(mock.owner_of(SEGMENT))
            await CHANGES["container moves"].make(mock, SEGMENT, 0)
    assert None not in owners
    assert [((owner or 0) - (owners[0] or 0)) % 3 for owner in owners] == [0, 1, 2, 0]


async def test_a_restart_executes_the_request_or_loses_it() -> None:
    async def careless(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            await peer.ask(HELLO, create(), set_up())
            with suppress(ConnectionError):
                await peer.ask(append(1, event(1)))

    options: dict[str, Any] = {"match": "type = APPEND_BLOCK_END", "failures": ["store restarts*"]}
    explored = await explore(careless, **options)
    assert {finding.name: finding.kinds for finding in explored.findings} == {
        "store restarts, tail lost at APPEND_BLOCK_END 1": {"lost"}
    }
    assert explored.findings[0].rules == "", "a file of rules does not restart a store"
    explored = await explore(writer, **options)
    assert explored.findings == [], "its attempts end before the store is back"


async def test_a_token_that_has_expired_is_refused_until_it_is_renewed() -> None:
    async def keeps_its_token(mock: ExploredCluster) -> None:
        async with connect(f"tcp://{mock.controller_uri}") as client:
            await client.controller.create_scope("scope")
            await client.controller.create_stream("scope", "stream")
            token = await client.controller.delegation_token("scope", "stream", "READ_WRITE")
        async with await peer_of(mock) as peer:
            replies = await peer.ask(HELLO, set_up(token=token))
            if replies[-1].is_failure:
                raise ConnectionError(str(replies[-1]))

    options: dict[str, Any] = {"match": "type = SETUP_APPEND", "failures": ["tokens expire"], "timeout_s": 60}
    (finding,) = (await explore(keeps_its_token, **options, tokens=True)).findings
    assert (finding.kinds, "TOKEN_EXPIRED" in finding.broken[0]) == ({"gave up"}, True)
    assert finding.pytest.endswith("at SETUP_APPEND 1', timeout_s=60, tokens=True)")
    with pytest.raises(ValueError, match="no failure at any request"):
        await explore(keeps_its_token, **options)
