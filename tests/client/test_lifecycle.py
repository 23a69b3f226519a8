"""Blocks begin and end as their classes say, and a deadline that is over names what did not happen."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from segstore.client.errors import RequestTimedOut
from segstore.client.lifecycle import ClosedAfter, FlushedAfter, FreedAfter, OpenedBefore, all_of, finish, within
from tests.looped import looped


class Noted:
    """Writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def open(self) -> None:
        self.calls.append("open")

    async def aclose(self) -> None:
        self.calls.append("aclose")

    async def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")


class Closed(ClosedAfter, Noted):
    """As a client is."""


class Opened(OpenedBefore, FreedAfter, Noted):
    """As a table is."""


class Flushed(OpenedBefore, FlushedAfter, Noted):
    """As a writer is."""


@looped(
    ("kind", "after", "after_an_error"),
    [
        (Closed, ["aclose"], ["aclose"]),
        (Opened, ["open", "close"], ["open", "close"]),
        (Flushed, ["open", "aclose"], ["open", "abort"]),
    ],
)
async def test_a_block_calls_what_its_class_says(
    kind: type[Closed | Opened | Flushed], after: list[str], after_an_error: list[str]
) -> None:
    async with kind() as whole:
        assert whole.calls == after[:-1]
    assert whole.calls == after
    broken = kind()
    with pytest.raises(KeyError, match="within"):
        async with broken:
            raise KeyError("within")
    assert broken.calls == after_an_error


async def test_a_deadline_that_is_over_says_what_did_not_happen_when_it_was() -> None:
    left = 3

    async def wait() -> None:
        nonlocal left
        async with within(10, lambda: f"{left} were not stored", segment="s/s/0"):
            left = 2
            await asyncio.get_running_loop().create_future()

    with pytest.raises(RequestTimedOut) as caught:
        await wait()
    assert caught.value.message == "2 were not stored within 10 ms"
    assert caught.value.facts() == {"segment": "s/s/0", "limit": 10}
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_work_that_is_finished_ends_before_the_cancellations_of_its_caller() -> None:
    done = asyncio.Event()
    ended: list[int] = []

    async def work() -> int:
        await done.wait()
        ended.append(1)
        return 7

    caller = asyncio.create_task(finish(work(), "work"))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    assert (caller.done(), ended) == (False, [])
    done.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [1]
    assert await finish(work(), "work") == 7


async def test_the_error_of_finished_work_is_raised_and_is_the_cause_of_a_cancellation() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await finish(work(), "work")
    caller = asyncio.create_task(finish(work(), "work"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await caller
    assert isinstance(cancelled.value.__cause__, ZeroDivisionError)


async def test_of_coroutines_that_run_together_none_outlives_the_first_error() -> None:
    ended: list[str] = []

    async def waits() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("waits")
        return "never"

    async def fails() -> str:
        await asyncio.sleep(0)
        raise KeyError("first")

    async def gives(what: str) -> str:
        return what

    assert await all_of(map(gives, "abc")) == ["a", "b", "c"]
    with pytest.raises(KeyError, match="first"):
        await all_of([waits(), fails()])
    assert ended == ["waits"]

    def broken() -> Iterator[Coroutine[Any, Any, str]]:
        yield waits()
        raise ValueError("second")

    with pytest.raises(ValueError, match="second"):
        await all_of(broken())
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
