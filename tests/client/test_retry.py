"""Delays grow, are bounded whatever the jitter, and end when the attempts do."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from segstore.client.retry import Backoff
from tests.looped import looped


def test_the_delays_of_a_writer_grow_tenfold_up_to_twenty_seconds_and_end_after_ten_attempts() -> None:
    backoff = Backoff(initial_ms=1, multiplier=10, max_ms=20_000, jitter=0, max_attempts=10)
    assert [backoff.delay_ms(failures, Random(1)) for failures in range(8)] == [
        *(0, 1, 10, 100, 1_000, 10_000, 20_000, 20_000)
    ]
    assert [backoff.exhausted(failures) for failures in (0, 9, 10)] == [False, False, True]


@given(
    initial=st.floats(0.1, 1000),
    factor=st.floats(1, 100),
    extra=st.floats(0, 10_000),
    jitter=st.floats(0, 0.99),
    failures=st.integers(0, 10_000),
    seed=st.integers(),
)
def test_no_delay_exceeds_the_maximum_or_its_jitter(
    initial: float, factor: float, extra: float, jitter: float, failures: int, seed: int
) -> None:
    backoff = Backoff(initial_ms=initial, multiplier=factor, max_ms=initial + extra, jitter=jitter)
    delay = backoff.delay_ms(failures, Random(seed))
    assert 0 <= delay <= backoff.max_ms
    if failures == 1:
        assert delay >= initial * (1 - jitter) * 0.999
    if failures == 0:
        assert delay == 0


@looped(
    ("given", "problem"),
    [
        ("{", "this is not JSON: Expecting"),
        ("[" * 100_000, "this is not JSON: "),
        ('{"max_ms": ' + "9" * 5_000 + "}", "this is not JSON: Exceeds the limit"),
        ("3", "Input should be"),
        ('{"initial_ms": 2, "max_ms": 1}', "above max_ms"),
    ],
)
def test_other_text_is_refused(given: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Backoff.model_validate(given)
