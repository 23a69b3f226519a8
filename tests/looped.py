"""`looped`: cases that differ in data alone run as a loop in one test."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["looped"]


def looped(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Calls the test once for each value; an error says for which.

    As `pytest.mark.parametrize`, but one test: fixtures are set up once for all values. Decorators of this kind may be
    stacked, and may stand above Hypothesis's `given`.

    Args:
        names: The arguments that get a value, separated by commas, or a sequence of names.
        values: A value, or a tuple if there are several names, for each call.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [tuple(value) if len(keys) > 1 or not isinstance(names, str) else (value,) for value in values]
    assert rows, names

    @contextmanager
    def naming(arguments: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            error.add_note(f"with {', '.join(f'{key} = {value!r:.300}' for key, value in arguments.items())}")
            raise

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def loop(*args: Any, **kwargs: Any) -> None:
                for row in rows:
                    arguments = dict(zip(keys, row, strict=True))
                    with naming(arguments):
                        await test(*args, **kwargs, **arguments)
        else:

            @functools.wraps(test)
            def loop(*args: Any, **kwargs: Any) -> None:
                for row in rows:
                    arguments = dict(zip(keys, row, strict=True))
                    with naming(arguments):
                        test(*args, **kwargs, **arguments)

        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in keys]
        loop.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        if hasattr(test, "is_hypothesis_test"):  # else its plugin takes the loop for the function that Hypothesis calls
            for name in [name for name in vars(loop) if "hypothesis" in name]:
                delattr(loop, name)
            return pytest.mark.hypothesis(loop)
        return loop

    return decorate
