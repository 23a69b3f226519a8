"""Health of a controller's parts, as in Pravega: a status per part; the whole is as healthy as its least healthy part.

Invariant: a status is computed per request. Follows `HealthEndpointImpl` and `StatusAggregator`, which instead update
statuses at intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import msgspec


class HealthStatus(IntEnum):
    """Health of a part; the names are as in JSON. From NEW on, the part is alive; UP is ready."""

    FAILED = -2
    DOWN = -1
    UNKNOWN = 0
    NEW = 1
    STARTING = 2
    UP = 3


class HealthResult(msgspec.Struct):
    """The health of a part, and of the parts in it. The whole has the name ""."""

    name: str
    status: str
    readiness: bool
    liveness: bool
    details: dict[str, str]
    children: dict[str, HealthResult]


def health_of(parts: Mapping[str, HealthStatus], name: str = "") -> HealthResult | None:
    """Returns the health of a part, or of the whole; None if there is no such part."""
    if name:
        return None if name not in parts else _result(name, parts[name], {})
    alive = all(part >= HealthStatus.NEW for part in parts.values())
    return _result(
        "", HealthStatus.UP if alive else HealthStatus.DOWN, {each: _result(each, parts[each], {}) for each in parts}
    )


def _result(name: str, status: HealthStatus, children: dict[str, HealthResult]) -> HealthResult:
    return HealthResult(name, status.name, status >= HealthStatus.UP, status >= HealthStatus.NEW, {}, children)
