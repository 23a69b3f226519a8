"""Health of parts, and of the whole."""

from __future__ import annotations

from segstore.server.rest.health import HealthStatus, health_of
from tests.looped import looped


@looped(
    ("parts", "whole"),
    [
        ({"a": HealthStatus.UP, "b": HealthStatus.UP}, "UP"),
        ({"a": HealthStatus.UP, "b": HealthStatus.NEW}, "UP"),
        ({"a": HealthStatus.UP, "b": HealthStatus.UNKNOWN}, "DOWN"),
        ({"a": HealthStatus.DOWN, "b": HealthStatus.UP}, "DOWN"),
        ({"a": HealthStatus.FAILED}, "DOWN"),
    ],
)
def test_the_whole_is_up_if_all_parts_are_alive(parts: dict[str, HealthStatus], whole: str) -> None:
    found = health_of(parts)
    assert found is not None
    assert (found.name, found.status, found.readiness, found.liveness) == ("", whole, whole == "UP", whole == "UP")
    assert {name: each.status for name, each in found.children.items()} == {k: v.name for k, v in parts.items()}


@looped(
    ("status", "ready", "alive"),
    [
        (HealthStatus.UP, True, True),
        (HealthStatus.STARTING, False, True),
        (HealthStatus.NEW, False, True),
        (HealthStatus.UNKNOWN, False, False),
        (HealthStatus.DOWN, False, False),
        (HealthStatus.FAILED, False, False),
    ],
)
def test_a_part_is_ready_or_alive_by_its_status(status: HealthStatus, ready: bool, alive: bool) -> None:
    found = health_of({"a": status}, "a")
    assert found is not None
    assert (found.readiness, found.liveness, found.children) == (ready, alive, {})
    assert health_of({"a": status}, "b") is None
