"""Objects shared by the readers and writers of one client."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from segstore.client.connection import ConnectionPool, Locations
from segstore.client.controller import Controller

if TYPE_CHECKING:
    from segstore.client.telemetry import Telemetry


class Cluster(NamedTuple):
    """A cluster, as a client reaches it: connections to its stores, its controller, and the locations of its segments,
    with tokens for one kind of access. telemetry: observes operations; None for none."""

    pool: ConnectionPool
    controller: Controller
    locations: Locations
    telemetry: Telemetry | None = None
