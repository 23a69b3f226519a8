"""No reply reaches a flow that it is not addressed to, and no pool has more connections than it may.

A peer on a real socket holds requests back and answers them in random order, some twice and some of flows that never
were; it cuts connections at random. The users of a pool close their flows at random, with requests unanswered, and take
others. Each request names its user, who is never two, and the reply says the name again: so a user knows what is not
his, whatever the number of the flow.

The bounded version is tests/client/connection/test_dispatch.py, the long one `python -m tests.soak.dispatch`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable

import uvloop

from segstore.client import Backoff, ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, Flow
from segstore.client.errors import ClientError, Retriable
from segstore.server.net import stop_accepting
from segstore.wire import Command, FrameDecoder, GetStreamSegmentInfo, Hello, SegmentSealed, encode
from segstore.wire.request_id import pack

__all__ = ["Found", "run_seed"]

NEVER_A_FLOW = 1 << 30


class Found:
    """What one seed came to.

    Attributes:
        replies: that reached a user.
        wrong: replies that reached another than theirs, or one that was closed or had not asked.
        lost: how often a user heard that the connection is gone; lost_again: and heard it once more.
        most: connections that were open at a time, as the peer counts them. maximum: as the pool may.
        dropped: replies that the pool dropped.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.replies = self.wrong = self.lost = self.lost_again = self.most = self.dropped = self.closed = 0

    @property
    def good(self) -> bool:
        return not self.wrong and not self.lost_again and self.most <= self.maximum


class Peer(asyncio.Protocol):
    """The store's side of one connection."""

    def __init__(self, chance: random.Random, peers: set[Peer], found: Found) -> None:
        self._chance = chance
        self._peers = peers
        self._found = found
        self._decoder = FrameDecoder()
        self._held: list[bytes] = []
        self._due = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's has its methods and not its type
        self._peers.add(self)
        self._found.most = max(self._found.most, len(self._peers))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._peers.discard(self)

    def data_received(self, data: bytes) -> None:
        for request in self._decoder.feed(data):
            if isinstance(request, Hello):
                if self._transport is not None:
                    self._transport.write(encode(Hello(17, 5)))
            elif isinstance(request, GetStreamSegmentInfo):
                self._held.append(encode(SegmentSealed(request.request_id, request.segment_name)))
        if self._held and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        """Some of what is held, in any order."""
        self._due = False
        chance, held = self._chance, self._held
        if self._transport is None:
            return
        if chance.random() < 0.003:
            self.cut()
            return
        chance.shuffle(held)
        now = len(held) if chance.random() < 0.5 else chance.randint(1, len(held))
        out, self._held = held[:now], held[now:]
        if chance.random() < 0.05:
            out.append(chance.choice(out))
            out.append(encode(SegmentSealed(pack(NEVER_A_FLOW + chance.randrange(1 << 20), 0), "nobody")))
        data = b"".join(out)
        if chance.random() < 0.1:  # the last reply comes in two pieces
            at = len(data) - chance.randrange(1, len(out[-1]))
            self._transport.write(data[:at])
            asyncio.get_running_loop().call_soon(self._rest, data[at:])
        else:
            self._transport.write(data)
            self._again()

    def _rest(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
            self._again()

    def _again(self) -> None:
        if self._held and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._answer)

    def cut(self) -> None:
        transport, self._transport = self._transport, None
        self._peers.discard(self)
        if transport is not None:
            transport.abort()


class User:
    """One flow of one user: it asks, and checks what comes."""

    def __init__(self, name: str, chance: random.Random, found: Found, enough: Callable[[], bool]) -> None:
        self.name = name
        self.over = asyncio.get_running_loop().create_future()
        self._chance = chance
        self._found = found
        self._enough = enough
        self._left = chance.randint(1, 1_000)
        self._asked: set[int] = set()
        self._answered: set[int] = set()
        self._flow: Flow | None = None
        self._closed = self._lost = False

    def begin(self, flow: Flow) -> None:
        self._flow = flow
        for _ in range(self._chance.randint(1, 16)):
            self._ask()

    def _ask(self) -> None:
        assert self._flow is not None
        request_id = self._flow.next_request_id()
        self._asked.add(request_id)
        self._flow.send(GetStreamSegmentInfo(request_id, self.name, ""))

    def on_reply(self, reply: Command) -> None:
        found = self._found
        found.replies += 1
        if not isinstance(reply, SegmentSealed) or reply.segment != self.name or self._closed or self._lost:
            found.wrong += 1
            return
        if reply.request_id in self._asked:
            self._asked.remove(reply.request_id)
            self._answered.add(reply.request_id)
        elif reply.request_id not in self._answered:  # the peer says some of them twice
            found.wrong += 1
            return
        self._left -= 1
        if self._left <= 0 or self._enough():
            self.close()
        else:
            self._ask()

    def on_lost(self, error: ClientError) -> None:
        self._found.lost += 1
        if self._lost or self._closed:
            self._found.lost_again += 1
        self._lost = True
        self._end()

    def close(self) -> None:
        """Also with requests that are not answered yet."""
        assert self._flow is not None
        self._found.closed += 1
        self._flow.close()
        self._closed = True
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def run_seed(seed: int, replies: int) -> Found:
    """Until that many replies have come."""
    chance = random.Random(seed)
    maximum = chance.choice([1, 2, 3, 10])
    found, peers = Found(maximum), set[Peer]()
    settings = ClientSettings(
        max_connections_per_store=maximum,
        pool_policy=chance.choice(["fewest_flows", "least_busy"]),
        reconnect_backoff=Backoff(initial_ms=1, max_ms=2, jitter=0.2),
    )
    server = await asyncio.get_running_loop().create_server(lambda: Peer(chance, peers, found), "127.0.0.1", 0)
    where = Endpoint(*server.sockets[0].getsockname()[:2])

    def enough() -> bool:
        return found.replies >= replies

    try:
        async with ConnectionPool(settings, random=random.Random(seed)) as pool, asyncio.TaskGroup() as users:
            for number in range(chance.randint(2, 60)):
                users.create_task(_use(pool, where, number, chance, found, enough))
        found.dropped = pool.counters.dropped_replies
    finally:
        for peer in tuple(peers):
            peer.cut()
        await stop_accepting(server)
        await server.wait_closed()
    return found


async def _use(
    pool: ConnectionPool, where: Endpoint, number: int, chance: random.Random, found: Found, enough: Callable[[], bool]
) -> None:
    flows = 0
    while not enough():
        flows += 1
        user = User(f"{number}/{flows}", chance, found, enough)
        try:
            flow = await pool.flow(where, user)
        except Retriable:
            continue
        if pool.connections_to(where) > found.maximum:
            found.most = max(found.most, pool.connections_to(where))
        user.begin(flow)
        await user.over


async def soak(first: int, seeds: int, replies: int) -> int:
    wrong, total, start = 0, Found(10), time.monotonic()
    for seed in range(first, first + seeds):
        found = await run_seed(seed, replies // seeds)
        for name in ("replies", "wrong", "lost", "lost_again", "dropped", "closed"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
        if not found.good:
            wrong += 1
            print(
                f"seed {seed}: {found.wrong} replies at the wrong flow, {found.lost_again} told twice, {found.most} "
                f"connections of {found.maximum}; again with: python -m tests.soak.dispatch --seed {seed} --seeds 1",
                file=sys.stderr,
            )
    print(
        f"{total.replies:,} replies over {seeds} seeds in {time.monotonic() - start:.0f} s: {total.wrong} at the wrong "
        f"flow, no pool above its maximum in {seeds - wrong} seeds; {total.closed:,} flows were closed, {total.lost:,} "
        f"lost their connection, {total.dropped:,} replies were dropped"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.dispatch", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--replies", type=int, default=10_000_000, help="of all seeds together")
    options = parser.parse_args()
    return 1 if uvloop.run(soak(options.seed, options.seeds, options.replies)) else 0


if __name__ == "__main__":
    sys.exit(main())
