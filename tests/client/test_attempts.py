"""How long things are tried: calls end soon where nobody listens, writers outlive a restart, errors say how it went."""

import asyncio

import pytest

from segstore.client import connect
from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore, SegmentRequests
from segstore.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ConnectTimedOut,
    NoNodeAvailable,
    RequestTimedOut,
    RetriesExhausted,
)
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentWriter
from segstore.server import MockSegmentStore
from tests.client.segments import SEGMENT, content, make
from tests.client.support import ScriptedStore, endpoint, settings
from tests.looped import looped
from tests.ports import held_port

DEFAULTS = ClientSettings()
QUICK = Backoff(initial_ms=1, max_ms=2, jitter=0)


def refused() -> NoNodeAvailable:
    return NoNodeAvailable("nobody listens", endpoint="c:9090", refused=True)


def silent() -> NoNodeAvailable:
    return NoNodeAvailable("nobody answers", endpoint="c:9090", refused=False)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def tried(attempts: Attempts, clock: Clock, error: ClientError, lasts_s: float) -> tuple[RetriesExhausted, float]:
    """Fails each attempt after so long; returns how that ends, and after how many seconds."""
    began = clock.now
    while True:
        try:
            async with attempts.one():
                clock.now += lasts_s
            clock.now += attempts.failed(error)
        except RetriesExhausted as ended:
            return ended, clock.now - began


@looped(
    ("call", "error", "lasts_s", "least_s", "most_s", "bound"),
    [
        (True, refused(), 9.0, 9, 10, "refused_timeout_ms"),
        (True, silent(), 30.0, 55, 70, "call_timeout_ms"),
        (True, ConnectTimedOut("too slow", endpoint="s:1"), 20.0, 55, 80, "call_timeout_ms"),
        (False, refused(), 10.0, 100, 130, "recovery_timeout_ms"),
        (False, silent(), 30.0, 110, 150, "recovery_timeout_ms"),
        (False, ConnectFailed("nobody listens", endpoint="s:1"), 0.0, 60, 120, "retry"),
    ],
)
async def test_by_default_a_call_ends_soon_if_all_refuse_and_later_if_they_are_silent_and_a_writer_outlives_a_minute(
    call: bool, error: ClientError, lasts_s: float, least_s: float, most_s: float, bound: str
) -> None:
    clock = Clock()
    attempts = Attempts(DEFAULTS, "it", call=call, now_s=clock)
    ended, after_s = await tried(attempts, clock, error, lasts_s)
    assert least_s <= after_s <= most_s
    assert ended.details["bounded_by"] == bound


async def test_a_refusal_of_a_store_is_the_last_word_only_where_no_controller_can_name_another() -> None:
    no_store = ConnectFailed("nobody listens", endpoint="s:1")
    ends = []
    for may_move, lasts_s in ((True, 1.0), (False, 1.0), (False, 0.0)):
        clock = Clock()
        attempts = Attempts(DEFAULTS, "it", call=True, may_move=may_move, now_s=clock)
        ends.append((await tried(attempts, clock, no_store, lasts_s))[1])
    assert ends[0] > 50
    assert ends[1] < 12
    assert 5 < ends[2] <= 10


async def test_another_failure_between_refusals_shows_that_a_peer_is_there() -> None:
    clock = Clock()
    attempts = Attempts(DEFAULTS, "it", call=True, may_move=False, now_s=clock)
    no_store = ConnectFailed("nobody listens", endpoint="s:1")
    for error in (no_store, ConnectionLost("gone", endpoint="s:1"), no_store):
        async with attempts.one():
            clock.now += 8
        attempts.failed(error)
    clock.now += 3
    with pytest.raises(RetriesExhausted):
        attempts.failed(no_store)


async def test_the_error_says_what_was_asked_how_often_how_long_and_what_to_do() -> None:
    clock = Clock()
    attempts = Attempts(DEFAULTS, "a request about a/s/0", segment="a/s/0", stream="a/s", call=True, now_s=clock)
    error, _ = await tried(attempts, clock, silent(), 30.0)
    assert str(error) == "a request about a/s/0 failed 2 times in 60.0 s: nobody answers"
    assert error.facts() == {
        "endpoint": "c:9090",
        "segment": "a/s/0",
        "stream": "a/s",
        "actual": 2,
        "elapsed_ms": 60_001,
        "bounded_by": "call_timeout_ms",
    }
    assert "check that the cluster runs" in error.__notes__[0]
    assert isinstance(error.__cause__, NoNodeAvailable)


async def test_a_pending_attempt_is_cancelled_when_the_total_time_is_used_up() -> None:
    attempts = Attempts(settings(call_timeout_ms=5, request_timeout_ms=5), "it", call=True)
    with pytest.raises(RetriesExhausted, match=r"it failed once in .* s: there was no answer within 5 ms") as caught:
        async with attempts.one():
            await asyncio.Event().wait()
    assert isinstance(caught.value.__cause__, RequestTimedOut)
    assert caught.value.details["bounded_by"] == "call_timeout_ms"


async def test_a_timeout_of_what_is_tried_is_not_taken_for_the_end_of_the_attempts() -> None:
    attempts = Attempts(DEFAULTS, "it", call=True)
    with pytest.raises(TimeoutError, match="its own"):
        async with attempts.one():
            raise TimeoutError("its own")


async def test_progress_resets_all_bounds() -> None:
    clock = Clock()
    attempts = Attempts(settings(retry=Backoff(initial_ms=1, max_ms=1, max_attempts=2)), "it", now_s=clock)
    for _ in range(5):
        attempts.failed(silent())
        clock.now += 100
        attempts.progress()
    assert attempts.failures == 0


class Restarting(FixedStore):
    """The store of a cluster whose controllers refuse so many times."""

    def __init__(self, endpoint: Endpoint, refusals: int) -> None:
        super().__init__(endpoint)
        self.refusals = refusals

    async def endpoint_of(self, segment: str) -> Endpoint:
        if self.refusals:
            self.refusals -= 1
            await asyncio.sleep(0.001)
            raise refused()
        return await super().endpoint_of(segment)


async def test_a_writer_outlives_refusals_for_which_a_call_does_not_wait(store: MockSegmentStore) -> None:
    await make(store)
    async with ConnectionPool(settings(retry=QUICK, refused_timeout_ms=1)) as pool:
        async with SegmentRequests(pool, Restarting(endpoint(store), 20)) as requests:
            with pytest.raises(RetriesExhausted) as caught:
                await requests.info(SEGMENT)
            assert caught.value.details["bounded_by"] == "refused_timeout_ms"
        async with SegmentRequests(pool, Restarting(endpoint(store), 20), recovers=True) as requests:
            assert (await requests.info(SEGMENT)).write_offset == 0
        async with SegmentWriter(pool, Restarting(endpoint(store), 20), SEGMENT) as writer:
            await writer.write(b"kept")
    assert content(store) == b"kept"


async def test_a_call_to_controllers_that_all_refuse_ends_before_its_time(grpc_runs: None) -> None:
    with held_port() as one, held_port() as other:
        given = settings(refused_timeout_ms=40, request_timeout_ms=60_000)
        async with connect(f"tcp://127.0.0.1:{one},127.0.0.1:{other}", given) as client:
            with pytest.raises(NoNodeAvailable, match=r"no controller could be reached for createScope") as caught:
                await client.controller.create_scope("a")
    error = caught.value
    assert error.endpoint == f"127.0.0.1:{one},127.0.0.1:{other}"
    assert error.details["refused"] is True
    assert error.details["attempts"] > 1
    assert error.limit == 40
    assert "could not be connected to" in str(error)
    assert "check the address of the controller" in error.__notes__[0]


async def test_a_controller_that_is_silent_is_waited_for_although_another_refuses(grpc_runs: None) -> None:
    with held_port() as refusing:
        async with ScriptedStore(hello=None) as stuck:
            given = settings(refused_timeout_ms=1, request_timeout_ms=200)
            async with connect(f"tcp://127.0.0.1:{refusing},{stuck.endpoint}", given) as client:
                with pytest.raises(NoNodeAvailable) as caught:
                    await client.controller.create_scope("a")
    assert caught.value.details["refused"] is False
    assert caught.value.limit == 200
