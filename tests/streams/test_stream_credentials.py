"""Tokens that expire while a stream is read: delegation tokens are renewed, a bearer token is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import jwt
import pyarrow as pa
import pytest

from segstore.client.errors import TokenRefused
from segstore.pipeline.stream.plan import ByteRange, batch_ranges
from segstore.pipeline.stream.rows import range_batches
from segstore.server.auth import Permission
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from segstore.server.controller.errors import Unauthenticated
from tests.pipeline.stream_support import STREAM, make_stream, options, using, write_events

KEY = "a key of a test, which is long enough for a signature: 0123456789abcdef"
EVENTS = [(b"%03d" % number + bytes(1 << 16), f"k{number}") for number in range(110)]
"""7 MiB: two batches of rows, the second of which is not yet requested when the first one is there."""

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Issuing(Authority):
    """Issues tokens for 2 s, and counts them."""

    issued = 0

    def __init__(self) -> None:
        super().__init__(None, KEY, ttl_s=2, now_s=time.time)

    def token(self, resource: str, permission: Permission) -> str:
        self.issued += 1
        return super().token(resource, permission)


class Bearing(Authority):
    """Accepts JWTs as an identity provider's, by a clock that a test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0
        super().__init__(Accounts(["spark:unused"]), KEY, ttl_s=2, now_s=time.time)

    async def principal(self, header: str | None) -> str | None:
        claims = jwt.decode((header or "").removeprefix("Bearer "), KEY, ["HS512"])
        if claims["exp"] < time.time() + self.ahead_s:
            raise Unauthenticated("the token has expired")
        return "spark"


async def planned(uri: str, **more: str) -> ByteRange:
    async with using(uri, **more) as segments:
        (part,) = await batch_ranges(segments, options(uri, **more))
        return part


def rest_after_expiry(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    """Returns what follows in a range, once the tokens that were used up to here have expired."""
    until = time.time() + 2
    while time.time() < until:
        time.sleep(0.05)
    return [event for batch in batches for event in batch["event"].to_pylist()]


async def test_a_delegation_token_that_expires_during_a_read_is_renewed() -> None:
    authority = Issuing()
    async with MockCluster(1, authority=authority, auth_key=KEY) as cluster:
        uri = f"tcp://{cluster.controller_uri}"
        await make_stream(uri)
        await write_events(uri, EVENTS)
        part = await planned(uri)
        before = authority.issued
        batches = range_batches(options(uri), part, ("event",))

        def read() -> tuple[list[bytes], list[bytes]]:
            return next(batches)["event"].to_pylist(), rest_after_expiry(batches)

        first, rest = await asyncio.to_thread(read)
        assert rest
        assert first + rest == [event for event, _ in EVENTS]
        assert authority.issued >= before + 2


async def test_a_bearer_token_that_expires_during_a_read_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Bearing()
    bearer = jwt.encode({"exp": int(time.time()) + 3600}, KEY, "HS512")
    monkeypatch.setenv("SEGSTORE_CLIENT_BEARER_TOKEN", bearer)
    async with MockCluster(1, authority=authority, auth_key=KEY) as cluster:
        uri = f"tcp://{cluster.controller_uri}"
        await make_stream(uri)
        await write_events(uri, EVENTS)
        part = await planned(uri)
        batches = range_batches(options(uri), part, ("event",))

        def read() -> None:
            next(batches)
            authority.ahead_s = 7200
            rest_after_expiry(batches)

        with pytest.raises(TokenRefused) as caught:
            await asyncio.to_thread(read)
    said = str(caught.value)
    assert "the token has expired" in said
    assert STREAM in said
    assert bearer not in said
