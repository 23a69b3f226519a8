"""Requests are sent again over a connection of their own, as a client would send them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.wire import AppendBlock, AppendBlockEnd, GetStreamSegmentInfo, PartialEvent, encode
from tests.server.certificates import trusting, write_certificate
from tests.server.control_api.support import asking, asking_cluster, done, peer_of, refusal
from tests.server.support import SEGMENT, WRITER, Peer, create, set_up, until


async def newest(http: httpx.AsyncClient, match: str = "") -> dict[str, Any]:
    found: dict[str, Any] = (await done(http, "GET", "/v1/requests", match=match, limit=1))["requests"][0]
    return found


async def send(http: httpx.AsyncClient, match: str) -> dict[str, Any]:
    number = (await newest(http, match))["number"]
    found: dict[str, Any] = await done(http, "POST", f"/v1/requests/{number}/send")
    return found


def types(sent: dict[str, Any]) -> list[str]:
    return [each["type"] for each in sent["replies"]]


async def test_a_request_is_sent_again_on_a_new_connection_and_recorded(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create())
    before = await newest(http, "type = CREATE_SEGMENT")
    sent = await send(http, "type = CREATE_SEGMENT")
    assert (types(sent), sent["ended"]) == (["HELLO", "SEGMENT_ALREADY_EXISTS"], "")
    after = await newest(http, "type = CREATE_SEGMENT")
    assert after["number"] > before["number"]
    assert after["connection"] == sent["connection"] != before["connection"]
    assert after["request_id"] == before["request_id"]


async def test_an_append_is_set_up_first_and_stored_once_more_as_by_the_reference() -> None:
    events = bytes(4) + (4).to_bytes(4, "big") + b"text"
    async with asking(reuse_names=True) as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), set_up())
        peer.send(AppendBlock(WRITER, events))
        await peer.ask(AppendBlockEnd(WRITER, len(events), b"", 1, 1, 9))
        sent = await send(http, "type = APPEND_BLOCK_END")
        assert types(sent) == ["HELLO", "APPEND_SETUP", "KEEP_ALIVE"]
        assert "had its event number already" in sent["ended"]
        assert mock.store.segment_info(SEGMENT).length == 2 * len(events)
        mock.store.delete_segment(SEGMENT)
        mock.store.create_segment(SEGMENT, now_ms=0)
        sent = await send(http, "type = APPEND_BLOCK_END and not failure")
        assert (types(sent), sent["ended"]) == (["HELLO", "APPEND_SETUP", "DATA_APPENDED"], "")


async def test_an_append_of_one_frame_or_of_one_large_event_is_sent_whole() -> None:
    events = (bytes(4) + (4).to_bytes(4, "big") + b"text") * 2
    part, rest = bytes(4) + (9).to_bytes(4, "big") + b"large", b" one"
    async with asking(reuse_names=True) as (mock, http), peer_of(mock) as peer:
        for block, end in (
            (None, AppendBlockEnd(WRITER, len(events), events, 2, 2, 9)),
            (encode(PartialEvent(part)), AppendBlockEnd(WRITER, 0, rest, 1, 1, 9)),
        ):
            await peer.ask(create(), set_up())
            if block is not None:
                peer.send(AppendBlock(WRITER, block))
            await peer.ask(end)
            stored = mock.store.segment_info(SEGMENT).length
            mock.store.delete_segment(SEGMENT)
            mock.store.create_segment(SEGMENT, now_ms=0)
            sent = await send(http, "type = APPEND_BLOCK_END")
            assert (types(sent), sent["ended"]) == (["HELLO", "APPEND_SETUP", "DATA_APPENDED"], "")
            assert mock.store.segment_info(SEGMENT).length == stored
            mock.store.delete_segment(SEGMENT)


async def test_fault_rules_apply_and_a_missing_reply_is_explained(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create(), GetStreamSegmentInfo(2, SEGMENT, ""))
    mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="WrongHost", times=1)
    assert types(await send(http, "type = GET_STREAM_SEGMENT_INFO")) == ["HELLO", "WRONG_HOST"]
    mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="close")
    sent = await send(http, "type = GET_STREAM_SEGMENT_INFO")
    assert types(sent) == ["HELLO"]
    assert sent["ended"] == "the store closed the connection: fault 'rule 2': close before"
    assert types(await send(http, "type = HELLO")) == ["HELLO"]


async def test_a_request_that_is_held_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.control_api.routes.resending._PATIENCE_S", 0.5)
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), GetStreamSegmentInfo(2, SEGMENT, ""))
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="hold", name="held")
        sent = await send(http, "type = GET_STREAM_SEGMENT_INFO")
        assert sent["ended"] == "there was no reply within 0.5 s"
        mock.faults.release("held")
        await until(lambda: len(mock.server.hub.connections) == 1)


async def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    events = bytes(4) + (4).to_bytes(4, "big") + b"text"
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), set_up())
        await peer.ask(AppendBlockEnd(WRITER, len(events), b"", 1, 1, 9))
        number = (await newest(http, "type = APPEND_BLOCK_END"))["number"]
        status, said, where = refusal(await http.post(f"/v1/requests/{number}/send"))
        assert (status, where) == (409, "path.number")
        assert "events" in said
        assert refusal(await http.post("/v1/requests/77777/send"))[0] == 404
        assert refusal(await http.post("/v1/requests/0/send"))[0] == 422


@pytest.mark.usefixtures("grpc_runs")
async def test_requests_of_the_controller_go_to_the_owner_and_its_calls_nowhere() -> None:
    async with asking_cluster(stores=2, containers=4) as (mock, http):
        await done(http, "PUT", "/v1/streams/shop/orders", {"segments": 3})
        for each in (await done(http, "GET", "/v1/requests", match="type = CREATE_SEGMENT"))["requests"]:
            sent = await done(http, "POST", f"/v1/requests/{each['number']}/send")
            assert types(sent) == ["HELLO", "SEGMENT_ALREADY_EXISTS"]
        await mock.stop_store(0)
        await mock.stop_store(1)
        answer = await http.post(f"/v1/requests/{each['number']}/send")
        assert refusal(answer)[0] == 409
        assert "stopped" in answer.json()["detail"]


async def test_a_store_with_tls_is_asked_through_tls(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with asking(tls_cert=certificate, tls_key=key) as (mock, http):
        peer = await Peer.connect(mock, ssl=trusting())
        await peer.ask(create())
        assert types(await send(http, "type = CREATE_SEGMENT"))[1:] == ["SEGMENT_ALREADY_EXISTS"]
        mock.faults.add("type = CREATE_SEGMENT", do="close", name="ending")
        sent = await send(http, "type = CREATE_SEGMENT")
        assert sent["ended"] == "the store closed the connection: fault 'ending': close before"
        peer.abort()
