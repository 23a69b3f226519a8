"""Connections to segment stores: pool, flows, transport, and the cache of segment locations."""

from segstore.client.connection import compiled  # noqa: F401 — chooses how the modules below are imported

# isort: split

from segstore.client.connection.auth import Basic, Bearer, Credentials, TokenCache, warn_if_unencrypted
from segstore.client.connection.in_flight import (
    LEAST_COST,
    BadAck,
    InFlight,
    InFlightAppend,
    OtherWriter,
    Pending,
    Route,
    Waiter,
    add_behind,
    notify_stored,
)
from segstore.client.connection.locations import FixedStore, Locations, learn
from segstore.client.connection.nodes import NodeState, NodeStates
from segstore.client.connection.pool import ConnectionPool, PoolMetrics
from segstore.client.connection.raw import MakeRequest, RawClient, SegmentRequests
from segstore.client.connection.transport import RECEIVE_BYTES, Flow, FlowHandler
from segstore.wire.endpoint import Endpoint

__all__ = [
    "LEAST_COST",
    "RECEIVE_BYTES",
    "BadAck",
    "Basic",
    "Bearer",
    "ConnectionPool",
    "Credentials",
    "Endpoint",
    "FixedStore",
    "Flow",
    "FlowHandler",
    "InFlight",
    "InFlightAppend",
    "Locations",
    "MakeRequest",
    "NodeState",
    "NodeStates",
    "OtherWriter",
    "Pending",
    "PoolMetrics",
    "RawClient",
    "Route",
    "SegmentRequests",
    "TokenCache",
    "Waiter",
    "add_behind",
    "learn",
    "notify_stored",
    "warn_if_unencrypted",
]
