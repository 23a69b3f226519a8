"""PDP-36, id 36.29: the roles of a revisioned stream client share the pool, against a real store over sockets."""

import asyncio

import pytest

from segstore.client.stream import RevisionedStream
from tests.client.stream.test_revisioned import entries, log, stored
from tests.client.support import endpoint
from tests.looped import looped


@pytest.mark.seed("36.29")
@looped("connections", [1, 2])
async def test_the_roles_of_many_revisioned_streams_share_the_pool(connections: int) -> None:
    async with stored(connections) as (store, pool):
        clients = [log(pool, endpoint(store)) for _ in range(8)]

        async def use(client: RevisionedStream) -> None:
            await client.write(b"from the writer")
            while await client.write_conditionally(await client.latest(), b"conditionally") is None:
                pass
            assert await entries(client, await client.oldest())
            await client.mark()

        await asyncio.gather(*map(use, clients))
        assert 1 <= pool.metrics().connections_opened <= connections
        await asyncio.gather(*[client.aclose() for client in clients])
