"""Requests to a process that does not lead the controller."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from segstore.server.controller import Controller, ControllerConfig, ControllerServer
from segstore.server.controller.api import Accounts, Authority, ForwardingServer
from segstore.server.controller.state import Core
from segstore.server.rest import RestRequest, answered_by_leader
from segstore.wire.endpoint import Endpoint
from tests.server.controller.fake_store import FakeStore

pytestmark = pytest.mark.usefixtures("grpc_runs")

encode = msgspec.msgpack.Encoder().encode
LIST = RestRequest("listScopes", {}, b"")
CREATE = RestRequest("createScope", {}, b'{"scopeName":"a"}')


class Process:
    """A process with the controller's port. It answers itself while `lead` has been called, and not `resign`."""

    front: ForwardingServer
    leader: Endpoint | None = None

    def __init__(self) -> None:
        self.calls: ControllerServer | None = None

    async def start(self, *, trust_network: bool) -> None:
        front = ForwardingServer(lambda: self.leader, ControllerConfig(), trust_network=trust_network)
        self.front = await front.start("127.0.0.1", 0)
        self.ask = answered_by_leader(self.front, timeout_s=60)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.front.port)

    def lead(self, authority: Authority) -> None:
        async def settled() -> None:
            return None

        self.calls = ControllerServer(Controller(Core(FakeStore())), authority, list, settled)
        self.front.local = self.calls

    async def resign(self) -> None:
        calls, self.calls, self.front.local = self.calls, None, None
        if calls is not None:
            await calls.aclose()


@pytest.fixture
def authority() -> Authority:
    return Authority(now_s=time.time)


@pytest.fixture
def trust_network() -> bool:
    return True


@pytest.fixture
async def pair(authority: Authority, trust_network: bool) -> AsyncIterator[tuple[Process, Process]]:
    """A leader and a follower."""
    leader, follower = Process(), Process()
    for each in (leader, follower):
        await each.start(trust_network=trust_network)
    leader.lead(authority)
    follower.leader = leader.endpoint
    yield leader, follower
    await follower.front.aclose(0)
    await leader.front.aclose(0)
    await leader.resign()


async def test_the_leader_answers_requests_of_all_processes(pair: tuple[Process, Process]) -> None:
    _, follower = pair
    created = await follower.ask(CREATE, None, "http:x")
    assert (created.status, created.body) == (201, b'{"scopeName":"a"}')
    for each in pair:
        listed = await each.ask(LIST, None, "http:x")
        assert (listed.status, listed.body) == (200, b'{"scopes":[{"scopeName":"a"}]}')
    again = await follower.ask(CREATE, None, "http:x")
    assert (again.status, again.why) == (409, "scope a exists already")


async def test_without_a_leader_requests_are_answered_with_unavailable(pair: tuple[Process, Process]) -> None:
    leader, follower = pair
    follower.leader = None
    answer = await follower.ask(LIST, None, "http:x")
    assert (answer.status, answer.why) == (503, "no process of the cluster leads the controller now")
    follower.leader = leader.endpoint
    await leader.resign()
    answer = await follower.ask(LIST, None, "http:x")
    assert (answer.status, answer.why) == (503, "no process of the cluster leads the controller now")


async def test_a_leader_that_does_not_answer_in_time_is_unavailable(pair: tuple[Process, Process]) -> None:
    leader, follower = pair
    released = asyncio.Event()

    async def hang(_: bytes, context: Any) -> bytes:
        await released.wait()
        return b""

    leader.front.offer("/segstore.rest.Operations/ask", hang)
    ask = answered_by_leader(follower.front, timeout_s=0.05)
    answer = await ask(LIST, None, "http:x")
    assert (answer.status, answer.why) == (503, "the leader of the controller did not answer within 0.05 s")
    released.set()


@pytest.mark.parametrize("authority", [Authority(Accounts(["u:p"]))])
@pytest.mark.parametrize(("trust_network", "status"), [(True, 200), (False, 401)])
async def test_credentials_are_forwarded_only_over_a_trusted_network(
    pair: tuple[Process, Process], status: int
) -> None:
    assert (await pair[1].ask(LIST, "Basic dTpw", "http:x")).status == status
    assert (await pair[1].ask(LIST, None, "http:x")).status == 401
