"""What a store does when its session has expired: one answer for each policy, and delays that grow to a bound."""

from random import Random
from typing import Any

import pytest

from segstore.server.coordination import CoordinationSession, InProcessCoordinator, OwnershipSettings
from segstore.server.coordination.errors import Unreachable
from segstore.server.coordination.policy import backoff_s, new_session
from tests.looped import looped
from tests.server.coordination.virtual_time import in_virtual_time


class Failing:
    """A coordinator that cannot be reached the first times."""

    def __init__(self, service: InProcessCoordinator, failures: int) -> None:
        self.failures = failures
        self.calls = 0
        self._service = service

    async def connect(self) -> CoordinationSession:
        self.calls += 1
        if self.calls <= self.failures:
            raise Unreachable("nobody answers")
        return await self._service.connect()


@pytest.mark.seed("57.1")
@pytest.mark.seed("57.2")
@looped(
    ("policy", "retries", "failures", "calls"),
    [
        *(("shutdown", 3, 0, 0), ("reconnect", 0, 0, 0)),
        *(("reconnect", 3, 0, 1), ("reconnect", 3, 2, 3), ("reconnect", 3, 5, 3)),
    ],
)
@in_virtual_time
async def test_a_new_session_is_asked_for_as_the_policy_says(
    policy: Any, retries: int, failures: int, calls: int
) -> None:
    service = InProcessCoordinator()
    coordinator = Failing(service, failures)
    settings = OwnershipSettings(session_expired_policy=policy, session_reconnect_retries=retries)
    if failures > retries:
        with pytest.raises(Unreachable, match="nobody answers"):
            await new_session(coordinator, settings, Random(1))
    else:
        session = await new_session(coordinator, settings, Random(1))
        assert (session is not None) == (calls > 0)
    assert coordinator.calls == calls
    service.close()


@pytest.mark.seed("57.9")
def test_delays_double_from_a_tenth_of_a_second_with_jitter_and_never_pass_a_minute() -> None:
    class Middle(Random):
        def uniform(self, a: float, b: float) -> float:
            assert (a, b) == (0.8, 1.2)
            return 1.0

    assert [backoff_s(attempt, Middle()) for attempt in (0, 1, 2, 9, 10, 99)] == [0.1, 0.2, 0.4, 51.2, 60.0, 60.0]
    assert all(backoff_s(99, Random(seed)) <= 60.0 for seed in range(50))
    assert len({backoff_s(3, Random(seed)) for seed in range(9)}) > 1
