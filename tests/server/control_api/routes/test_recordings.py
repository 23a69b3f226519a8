"""Recordings over HTTP: started, stopped, downloaded and deleted, on a store and on a tap."""

from pathlib import Path

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.wire.trace import Exchanges, Record
from tests.server.control_api.support import done, refusal
from tests.server.support import Peer, append, create, set_up
from tests.server.traffic import read_all


def names(records: list[Record]) -> list[str]:
    exchanges = Exchanges()
    return [exchanges.see(record).name for record in records]


@pytest.mark.parametrize("form", ["wtrace", "jsonl"])
async def test_what_passes_between_start_and_stop_is_downloaded(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer, tmp_path: Path, form: str
) -> None:
    await peer.ask(create())
    started = await done(http, "POST", "/v1/recordings", {"name": "one"})
    assert (started["running"], started["records"], started["stopped_ms"]) == (True, 0, None)
    await peer.ask(set_up(), append(1))
    stopped = await done(http, "POST", "/v1/recordings/one/stop")
    assert (stopped["running"], stopped["records"], stopped["problem"]) == (False, 4, "")
    await peer.ask(append(2))
    assert await done(http, "GET", "/v1/recordings") == {"recordings": [stopped]}
    assert await done(http, "GET", "/v1/recordings/one") == stopped
    answer = await http.get("/v1/recordings/one/trace", params={"form": form})
    assert answer.headers["content-disposition"] == f'attachment; filename="segstore.{form}"'
    path = tmp_path / f"one.{form}"
    path.write_bytes(answer.content)
    records = read_all(path)
    assert sorted(names(records)) == ["APPEND_BLOCK_END", "APPEND_SETUP", "DATA_APPENDED", "SETUP_APPEND"]
    await done(http, "DELETE", "/v1/recordings/one")
    assert refusal(await http.get("/v1/recordings/one"))[::2] == (404, "path.name")


async def test_one_that_is_at_its_limit_is_refused_when_it_is_stopped_and_can_be_downloaded(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await done(http, "POST", "/v1/recordings", {"name": "small", "max_bytes": 1000})
    await peer.ask(create(), set_up(), append(1, bytes(2000)))
    status, why, _ = refusal(await http.post("/v1/recordings/small/stop"))
    assert (status, "limit of 1,000 bytes" in why) == (409, True)
    found = await done(http, "GET", "/v1/recordings/small")
    assert (found["running"], "1,000 bytes" in found["problem"]) == (False, True)
    assert (await http.get("/v1/recordings/small/trace")).status_code == 200


async def test_what_is_no_recording_is_refused(http: httpx.AsyncClient) -> None:
    for body, where in [
        ({"name": "../a"}, "body.name"),
        ({"name": "a" * 101}, "body.name"),
        ({"max_bytes": 0}, "body.max_bytes"),
        ({"max_bytes": 1 << 60}, "body.max_bytes"),
        ({"file": "/etc/passwd"}, "body.file"),
    ]:
        assert refusal(await http.post("/v1/recordings", json=body))[::2] == (422, where)
        assert await done(http, "GET", "/v1/recordings") == {"recordings": []}


async def test_tokens_are_not_recorded(mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer) -> None:
    await done(http, "POST", "/v1/recordings", {"name": "one"})
    await peer.ask(create(), set_up(token="a secret token"))
    for form in ("wtrace", "jsonl"):
        answer = await http.get("/v1/recordings/one/trace", params={"form": form})
        assert b"scope/stream" in answer.content
        assert b"secret" not in answer.content
