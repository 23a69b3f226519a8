"""Health of parts, and of the whole."""

from __future__ import annotations

from segstore.server.rest.health import Status, health_of
from tests.looped import looped


@looped(
    ("parts", "whole"),
    [
        ({"a": Status.UP, "b": Status.UP}, "UP"),
        ({"a": Status.UP, "b": Status.NEW}, "UP"),
        ({"a": Status.UP, "b": Status.UNKNOWN}, "DOWN"),
        ({"a": Status.DOWN, "b": Status.UP}, "DOWN"),
        ({"a": Status.FAILED}, "DOWN"),
    ],
)
def test_the_whole_is_up_if_all_parts_are_alive(parts: dict[str, Status], whole: str) -> None:
    found = health_of(parts)
    assert found is not None
    assert (found.name, found.status, found.readiness, found.liveness) == ("", whole, whole == "UP", whole == "UP")
    assert {name: each.status for name, each in found.children.items()} == {k: v.name for k, v in parts.items()}


@looped(
    ("status", "ready", "alive"),
    [
        (Status.UP, True, True),
        (Status.STARTING, False, True),
        (Status.NEW, False, True),
        (Status.UNKNOWN, False, False),
        (Status.DOWN, False, False),
        (Status.FAILED, False, False),
    ],
)
def test_a_part_is_ready_or_alive_by_its_status(status: Status, ready: bool, alive: bool) -> None:
    found = health_of({"a": status}, "a")
    assert found is not None
    assert (found.readiness, found.liveness, found.children) == (ready, alive, {})
    assert health_of({"a": status}, "b") is None
