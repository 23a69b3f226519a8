"""Credentials and tokens: fetched once, renewed in time, refused by name; writers and readers outlive them."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from segstore.client import Basic, Bearer, ClientSettings, FixedStore, TableConfig, connect
from segstore.client.client import Client
from segstore.client.connection import ConnectionPool, Endpoint, SegmentRequests, TokenCache
from segstore.client.connection.auth import expiry_of
from segstore.client.controller import ControllerChannels
from segstore.client.errors import ClientError, NoNodeAvailable, RequestTimedOut, TokenExpired, TokenRefused
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentWriter
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from segstore.server.controller.errors import Unauthenticated
from segstore.wire import GetStreamSegmentInfo, StreamSegmentInfo
from tests.client.support import client, make_stream, settings, until
from tests.client.test_client import take
from tests.looped import looped
from tests.server.certificates import write_certificate

KEY = "k" * 64
FEW = Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=4)
USERS = ["ann:secret", "bob:other:prn::/scope:a,READ_UPDATE;prn::/scope:a/stream:s,READ"]


def token(until_s: float | None, *, key: str = KEY, resource: str = "prn::*", **claims: Any) -> str:
    ends = {} if until_s is None else {"exp": until_s}
    return jwt.encode({resource: "READ_UPDATE", **ends, **claims}, key, algorithm="HS512")


class Source:
    """Gives a new token each time; `gate` can hold it back, `problem` makes it fail."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self.calls = 0
        self.gate: asyncio.Event | None = None
        self.problem: Exception | None = None
        self._make = make

    async def __call__(self) -> str:
        self.calls += 1
        number = self.calls
        if self.gate is not None:
            await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        return self._make(number)


async def test_many_who_want_a_token_at_once_cause_one_fetch() -> None:
    source = Source(lambda number: f"token {number}")
    source.gate = asyncio.Event()
    cache = TokenCache(source)
    waiting = [asyncio.ensure_future(cache.get()) for _ in range(20)]
    await until(lambda: source.calls == 1)
    waiting[0].cancel()
    await asyncio.sleep(0)
    source.gate.set()
    got = await asyncio.gather(*waiting[1:])
    assert set(got) == {"token 2"}  # the first fetch was cancelled with who had begun it
    assert await cache.get() == "token 2"
    assert source.calls == 2


@looped(("life_s", "good_for_s"), [(600, 590), (20, 16), (1, 0.8)])
async def test_a_token_is_renewed_before_it_ends_but_not_at_once(life_s: float, good_for_s: float) -> None:
    now = [1000.0]
    source = Source(lambda _: token(now[0] + life_s))
    cache = TokenCache(source, now_s=lambda: now[0])
    first = await cache.get()
    now[0] += good_for_s - 0.01
    assert await cache.get() == first
    now[0] += 0.02
    assert await cache.get() != first
    assert source.calls == 2


async def test_while_no_other_can_be_had_a_token_that_is_good_serves_on() -> None:
    now = [1000.0]
    source = Source(lambda _: token(now[0] + 100))
    cache = TokenCache(source, now_s=lambda: now[0])
    first = await cache.get()
    source.problem = NoNodeAvailable("no controller")
    now[0] += 95
    assert await cache.get() == first
    now[0] += 6
    with pytest.raises(NoNodeAvailable):
        await cache.get()


async def test_a_token_that_was_refused_is_not_given_again_and_an_old_one_does_not_count() -> None:
    source = Source(lambda number: f"token {number}")
    cache = TokenCache(source)
    first = await cache.get()
    cache.expired(first)
    second = await cache.get()
    assert (first, second) == ("token 1", "token 2")
    cache.expired(first)
    assert await cache.get() == second


def test_the_expiry_is_read_without_the_key_and_is_infinite_if_there_is_none() -> None:
    assert expiry_of(token(1234, key="another" * 12)) == 1234.0
    assert {expiry_of(text) for text in ("", "no token", "a.b.c", token(None))} == {float("inf")}


class BearerAuthority(Authority):
    """Knows one bearer token."""

    good = "token 1"

    async def principal(self, header: str | None) -> str | None:
        if header == f"Bearer {self.good}":
            return "ann"
        raise Unauthenticated("the token is not known")


async def test_a_bearer_token_is_fetched_once_and_again_when_it_is_refused(grpc_runs: None) -> None:
    authority = BearerAuthority(Accounts(["ann:secret"]), now_s=time.time)
    source = Source(lambda number: f"token {number}\n")
    async with MockCluster(watched=False, authority=authority) as mock:
        uri = f"tcp://{mock.controller_uri}"
        async with connect(uri, settings(), credentials=Bearer(source)) as pravega:
            await make_stream(pravega)
            assert source.calls == 1
            authority.good = "token 2"
            assert [name async for name in pravega.controller.list_streams("a")] == ["s"]
            assert source.calls == 2
            authority.good = "none of these"
            with pytest.raises(TokenRefused) as caught:
                await pravega.controller.create_scope("b")
            assert source.calls == 3
            assert caught.value.endpoint == mock.controller_uri
            assert "token" not in str(caught.value.facts().get("authorization", ""))
        authority.good = "fixed"
        async with connect(uri, settings(bearer_token="fixed")) as pravega:
            await pravega.controller.create_scope("c")


async def test_a_source_of_tokens_that_fails_or_hangs_is_an_error_within_the_deadline(grpc_runs: None) -> None:
    source = Source(lambda _: "token 1")
    async with MockCluster(watched=False) as mock:
        uri = f"tcp://{mock.controller_uri}"
        async with connect(uri, settings(request_timeout_ms=100), credentials=Bearer(source)) as pravega:
            source.problem = RuntimeError("the identity provider is down")
            with pytest.raises(TokenRefused, match="the identity provider is down"):
                await pravega.controller.create_scope("a")
            source.gate = asyncio.Event()
            with pytest.raises(RequestTimedOut, match="credentials"):
                await pravega.controller.create_scope("a")


@pytest.mark.parametrize(
    ("host", "options", "warns"),
    [
        ("controller.example", {}, True),
        ("192.0.2.1", {}, True),
        ("controller.example", {"tls": True}, False),
        ("localhost", {}, False),
        ("127.0.0.1", {}, False),
        ("::1", {}, False),
    ],
)
async def test_credentials_that_leave_the_machine_in_clear_are_warned_of(
    grpc_runs: None, caplog: pytest.LogCaptureFixture, host: str, options: dict[str, bool], warns: bool
) -> None:
    for given in (settings(), settings(username="ann", password="secret")):
        await ControllerChannels([Endpoint(host, 1)], given, **options).aclose()
    said = f"credentials are sent to controller {Endpoint(host, 1)} unencrypted; tls:// encrypts them"
    assert caplog.messages == ([said] if warns else [])


async def test_credentials_of_a_call_go_before_those_of_the_settings(grpc_runs: None) -> None:
    authority = Authority(Accounts(USERS), now_s=time.time)
    async with MockCluster(watched=False, authority=authority) as mock:
        wrong = settings(username="ann", password="wrong")
        async with connect(f"tcp://{mock.controller_uri}", wrong, credentials=Basic("ann", "secret")) as pravega:
            assert await pravega.controller.create_scope("a")
    with pytest.raises(ValueError, match="bearer"):
        ClientSettings(username="ann", password="secret", bearer_token="token")


def guarded(ttl_s: int = 600, **more: Any) -> MockCluster:
    authority = Authority(Accounts(USERS), KEY, ttl_s=ttl_s, now_s=time.time)
    return MockCluster(2, watched=False, authority=authority, auth_key=KEY, **more)


def counted(pravega: Client) -> Counter[str]:
    """Counts the tokens that the controller gives, by access."""
    given: Counter[str] = Counter()
    ask: Callable[..., Awaitable[str]] = pravega.controller.delegation_token

    async def asked(scope: str, stream: str, access: Any) -> str:
        given[access] += 1
        return await ask(scope, stream, access)

    pravega.controller.delegation_token = asked  # type: ignore[method-assign]
    return given


async def test_a_writer_and_a_reader_live_through_several_tokens(grpc_runs: None, tmp_path: Path) -> None:
    """Tokens live for a second; the store closes the connections of writers whose token has ended."""
    certificate, key = write_certificate(tmp_path)
    async with guarded(1, tls_cert=certificate, tls_key=key) as mock:
        login = settings(username="ann", password="secret", tls_ca_file=certificate)
        async with connect(f"tls://{mock.controller_uri}", login) as pravega:
            await make_stream(pravega, 2)
            given = counted(pravega)
            async with pravega.event_writer("a", "s") as writer, pravega.event_reader("a", "s") as events:
                acks = []
                number = 0
                while given["WRITE"] < 4 or given["READ"] < 3:
                    acks.append(await writer.submit(b"%d:%d" % (number % 3, number), routing_key=f"{number % 3}"))
                    number += 1
                    await asyncio.sleep(0.01)
                await asyncio.gather(*acks)
                got = [int(each.partition(b":")[2]) for each in await take(events, number)]
            assert sorted(got) == list(range(number))
            for routing_key in range(3):
                mine = [each for each in got if each % 3 == routing_key]
                assert mine == sorted(mine)
            assert pravega.metrics().reconnects > 0


async def test_a_user_who_may_read_but_not_write_is_refused_with_segment_and_endpoint(grpc_runs: None) -> None:
    async with guarded() as mock:
        async with client(mock, username="ann", password="secret") as pravega:
            await make_stream(pravega)
            async with pravega.event_writer("a", "s") as writer:
                await writer.write(b"x")
        async with client(mock, username="bob", password="other") as pravega:
            with pytest.raises(TokenRefused):
                async with pravega.event_writer("a", "s") as writer:
                    await writer.write(b"y")


@pytest.mark.mock(authority=Authority(Accounts(USERS), KEY[:-1] + "x", now_s=time.time), auth_key=KEY)
async def test_a_token_of_another_key_is_refused_by_name(mock: MockCluster, grpc_runs: None) -> None:
    async with client(mock, username="ann", password="secret") as pravega:
        await make_stream(pravega)
        await pravega.controller.create_table("a", "t", TableConfig(primary_key_bytes=1))
        store = str(Endpoint(*mock.address))
        problems: list[ClientError] = []

        async def refused(what: Awaitable[Any]) -> None:
            with pytest.raises(TokenRefused) as caught:
                await what
            problems.append(caught.value)

        async with pravega.event_reader("a", "s") as events:
            await refused(events.read())
        async with SegmentWriter(pravega.pool, pravega.locations("WRITE"), "a/s/0.#epoch.0") as writer:
            await refused(writer.write(b"x"))
            await writer.abort()
        async with pravega.table("a", "t") as table:
            await refused(table.put(b"k", b"v"))
        async with pravega.transaction_writer("a", "s") as transactions:
            transaction = transactions.begin()
            await transaction.open()
            await refused(transaction.write(b"x"))
        for problem in problems:
            assert problem.endpoint == store
            assert problem.segment.startswith("a/")
            assert problem.request_id is not None
            assert store in str(problem)
            assert problem.segment in str(problem)
            assert problem.advice in problem.__notes__[0]


async def test_a_store_without_a_controller_takes_tokens_of_a_source(grpc_runs: None) -> None:
    async with MockCluster(watched=False, auth_key=KEY) as mock, ConnectionPool(settings(retry=FEW)) as pool:
        now_s = time.time()
        source = Source(lambda number: token(now_s - 5 if number < 3 else now_s + 600, number=number))
        where = FixedStore(Endpoint(*mock.address), source)
        async with SegmentRequests(pool, where) as requests:
            with pytest.raises(ClientError):
                await requests.ask(
                    "a/b/0",
                    StreamSegmentInfo,
                    lambda request_id, given: GetStreamSegmentInfo(request_id, "a/b/0", given),
                )
        assert source.calls >= 3
        refused = FixedStore(Endpoint(*mock.address), token(now_s - 5))
        async with SegmentWriter(pool, refused, "a/b/0") as writer:
            with pytest.raises(ClientError) as caught:
                await writer.write(b"x")
            assert isinstance(caught.value.__cause__, TokenExpired)
            await writer.abort()
