"""What a store does when its session has expired: one answer for each policy, and delays that grow to a bound."""

from __future__ import annotations

from random import Random

import pytest

from segstore.server.coordination import CoordinationSession, InProcessCoordinator, OwnershipSettings
from segstore.server.coordination.errors import Unreachable
from segstore.server.coordination.policy import backoff_s, new_session
from tests.looped import looped
from tests.server.coordination.virtual_time import run


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


def reconnect(retries: int = 3) -> OwnershipSettings:
    return OwnershipSettings(session_expired_policy="reconnect", session_reconnect_retries=retries)


@pytest.mark.seed("57.1")
@looped(
    "settings",
    [
        OwnershipSettings(),
        OwnershipSettings(session_expired_policy="shutdown", session_reconnect_retries=3),
        reconnect(retries=0),
    ],
)
def test_shutdown_asks_for_no_session(settings: OwnershipSettings) -> None:
    async def played() -> None:
        service = InProcessCoordinator()
        coordinator = Failing(service, 0)
        assert await new_session(coordinator, settings, Random(1)) is None
        assert coordinator.calls == 0
        service.close()

    run(played())


@pytest.mark.seed("57.2")
@looped("failures", [0, 1, 2])
def test_reconnect_tries_until_there_is_a_session(failures: int) -> None:
    async def played() -> None:
        service = InProcessCoordinator()
        coordinator = Failing(service, failures)
        session = await new_session(coordinator, reconnect(), Random(1))
        assert session is not None
        assert coordinator.calls == failures + 1
        await session.aclose()
        service.close()

    run(played())


def test_reconnect_raises_what_its_last_attempt_met() -> None:
    async def played() -> None:
        service = InProcessCoordinator()
        coordinator = Failing(service, 5)
        with pytest.raises(Unreachable, match="nobody answers"):
            await new_session(coordinator, reconnect(), Random(1))
        assert coordinator.calls == 3
        service.close()

    run(played())


@pytest.mark.seed("57.9")
def test_delays_double_from_a_tenth_of_a_second_with_jitter_and_never_pass_a_minute() -> None:
    class Middle(Random):
        def uniform(self, a: float, b: float) -> float:
            assert (a, b) == (0.8, 1.2)
            return 1.0

    assert [backoff_s(attempt, Middle()) for attempt in (0, 1, 2, 9, 10, 99)] == [0.1, 0.2, 0.4, 51.2, 60.0, 60.0]
    assert all(backoff_s(99, Random(seed)) <= 60.0 for seed in range(50))
    assert len({backoff_s(3, Random(seed)) for seed in range(9)}) > 1
