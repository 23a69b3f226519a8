"""An event loop whose time passes only when nothing is left to do: hours run in moments, the same each time."""

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, TypeVar

__all__ = ["Play", "in_virtual_time", "pass_time", "played_in", "run", "until"]

T = TypeVar("T")
Play = Callable[Concatenate[T, ...], Coroutine[Any, Any, None]]


class _Selector(selectors.SelectSelector):
    """Does not wait: it says how long it would have."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer brings")
        self.skipped_s += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.skipped_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end in virtual time, which begins at 0. Raises RuntimeError for a deadlock."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


async def pass_time(seconds: float) -> None:
    """Lets virtual time pass, in no real time."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], bool]) -> None:
    """Waits in virtual time until the condition holds."""
    async with asyncio.timeout(1_000):
        while not condition():  # noqa: ASYNC110  the time is virtual
            await asyncio.sleep(0.01)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorates a test that runs in virtual time."""

    @functools.wraps(test)
    def test_function(**arguments: Any) -> None:
        run(test(**arguments))

    return test_function


def played_in(world: Callable[[], AbstractAsyncContextManager[T]]) -> Callable[[Play[T]], Callable[..., None]]:
    """Returns a decorator for tests in virtual time, whose first argument is a world of their own."""

    def decorate(test: Play[T]) -> Callable[..., None]:
        async def play(**arguments: Any) -> None:
            async with world() as given:
                await test(given, **arguments)

        signature = inspect.signature(test)
        functools.update_wrapper(play, test)
        play.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
        return in_virtual_time(play)

    return decorate
