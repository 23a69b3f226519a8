"""Containers over HTTP: whose they are, and moves between the stores of a process."""

import asyncio
import socket

import httpx
import pytest

from segstore.client import connect
from segstore.server.control_api.routes import containers
from segstore.server.coordination import OwnershipSettings
from segstore.wire.endpoint import Endpoint
from tests.server.control_api.support import asking, asking_cluster, refusal
from tests.server.support import until

pytestmark = pytest.mark.usefixtures("grpc_runs")

ALONE = "this needs several stores in one process: there is only one store; `segstore serve --stores 2` starts two"


async def owners(http: httpx.AsyncClient) -> list[int | None]:
    return [each["store"] for each in (await http.get("/v1/containers")).json()["containers"]]


async def test_containers_are_listed_with_their_owners() -> None:
    async with asking_cluster(stores=2, containers=4) as (mock, http):
        told = (await http.get("/v1/containers")).json()
        assert (told["stores"], told["movable"]) == (2, True)
        assert await owners(http) == [0, 1, 0, 1]
        owner = {"store": 1, "address": str(mock.stores[1].address), "open": True}
        segments = len(mock.stores[1].store.containers[3].segments)
        assert told["containers"][3] == {"container": 3, **owner, "segments": segments, "index_segments": 0}


async def test_what_a_writer_appended_stays_its_own_when_containers_move_and_stores_start_again() -> None:
    async with (
        asking_cluster(stores=2, containers=2) as (mock, http),
        connect(f"tcp://{mock.controller_uri}") as pravega,
    ):
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", "stream", segments=2)
        await http.post("/v1/writers", json={"name": "mover"})
        async with pravega.event_writer("scope", "stream", name="mover") as writer:
            for turn in range(4):
                for number in range(8):
                    await writer.write(b"event", routing_key=str(number))
                for container in range(2):
                    moved = await http.post(f"/v1/containers/{container}/move", json={"to": turn % 2})
                    assert moved.status_code == 200
        await mock.stop_store(0)
        await mock.start_store(0)
        said = (await http.get("/v1/streams/scope/stream/stats")).json()
    assert said["events"] == 32
    assert [(each["name"], each["segments"], each["events"]) for each in said["writers"]] == [("mover", 2, 32)]


async def test_moves_of_one_container_to_two_stores_at_once_both_end() -> None:
    async with asking_cluster(stores=3, containers=3) as (_, http):
        asked = [http.post("/v1/containers/0/move", json={"to": store}) for store in (1, 2)]
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert (await owners(http))[0] in (1, 2)


async def test_a_store_that_was_stopped_takes_nothing_and_is_shown_so_until_it_is_started() -> None:
    async with asking_cluster(stores=2, containers=2) as (mock, http):
        await mock.stop_store(1)
        status, said, where = refusal(await http.post("/v1/containers/0/move", json={"to": 1}))
        assert (status, said, where) == (409, "store 1 is stopped", "body.to")
        served = (await http.get("/v1/server")).json()["stores"]
        assert [each["serving"] for each in served] == [True, False]
        await mock.start_store(1)
        assert (await http.post("/v1/containers/0/move", json={"to": 1})).status_code == 200
        assert mock.stores[1].service.writer_counts is not None


async def test_a_move_that_does_not_succeed_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_MOVE_S", 0.05)
    async with asking_cluster(stores=2, containers=2) as (mock, http):
        mock.cut_session(1)
        status, said, where = refusal(await http.post("/v1/containers/0/move", json={"to": 1}))
        assert (status, where) == (409, "body.to")
        assert said.startswith("store 1 has not taken container 0 within 0.05 s")
        mock.heal_session(1)


async def test_a_store_whose_port_was_taken_is_started_on_it_once_it_is_free() -> None:
    async with asking_cluster(stores=2, containers=2) as (mock, http):
        before = (await http.get("/v1/server")).json()["stores"][1]
        assert (await http.post("/v1/stores/1/stop")).status_code == 200
        address = mock.stores[1].address
        with socket.create_server(address):
            status, said, where = refusal(await http.post("/v1/stores/1/start"))
            assert (status, f"port {address.port} on 127.0.0.1 is taken" in said, where) == (409, True, "path.store")
        assert (await http.post("/v1/stores/1/start")).json() == before


async def test_a_session_that_expires_while_it_is_cut_ends_the_store_once_it_is_healed() -> None:
    ownership = OwnershipSettings(session_timeout_ms=50, takeover_delay_ms=10)
    async with asking_cluster(stores=2, containers=2, ownership=ownership) as (mock, http):
        session = mock.members.session(1)
        assert (await http.post("/v1/stores/1/cut-session")).status_code == 200
        await until(lambda: session.expired)
        for what in ("cut", "expire"):
            again = await http.post(f"/v1/stores/1/{what}-session")
            assert (again.status_code, again.json()["serving"]) == (200, True)
        assert (await http.post("/v1/stores/1/heal-session")).status_code == 200
        await until(lambda: mock.stores[1].hub.closing)
        assert (await http.get("/v1/server")).json()["stores"][1]["serving"] is False


async def test_a_store_that_is_not_one_of_several_is_not_steered() -> None:
    async with asking_cluster(stores=2, containers=2) as (_, several), asking() as (_, one):
        for action in ("stop", "start", "expire-session", "cut-session", "heal-session"):
            answer = refusal(await several.post(f"/v1/stores/2/{action}"))
            assert answer == (404, "there is no store 2: there are 2, from 0", "path.store")
            assert refusal(await one.post(f"/v1/stores/0/{action}")) == (409, ALONE, "path")


async def test_a_move_that_cannot_be_is_refused_with_its_place() -> None:
    async with asking_cluster(stores=2, containers=2) as (_, http):
        before = await owners(http)
        for container, body, status, where in (
            ("9", {"to": 0}, 404, "path.container"),
            ("-1", {"to": 0}, 404, "path.container"),
            ("x", {"to": 0}, 422, "path.container"),
            ("0", {"to": 2}, 422, "body.to"),
            ("0", {"to": -1}, 422, "body.to"),
            ("0", {"to": "1"}, 422, "body.to"),
            ("0", {}, 422, "body.to"),
        ):
            assert refusal(await http.post(f"/v1/containers/{container}/move", json=body))[::2] == (status, where)
        assert await owners(http) == before


async def test_a_single_store_reports_why_nothing_moves() -> None:
    async with asking(containers=2) as (_, http):
        status, said, where = refusal(await http.post("/v1/containers/0/move", json={"to": 0}))
        assert (status, said, where) == (409, ALONE, "path")
        told = (await http.get("/v1/containers")).json()
        assert (told["movable"], [each["store"] for each in told["containers"]]) == (False, [0, 0])


async def test_a_container_of_another_process_is_shown_with_its_address() -> None:
    async with asking(containers=2, own=frozenset({0})) as (mock, http):
        object.__setattr__(mock._control_api.controlled, "owner_elsewhere", lambda _: Endpoint("::1", 7))
        (_, other) = (await http.get("/v1/containers")).json()["containers"]
        counts = {"segments": None, "index_segments": None}
        assert other == {"container": 1, "store": None, "address": "[::1]:7", "open": False, **counts}
