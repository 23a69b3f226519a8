"""Connections to segment stores: pool, flows, transport, and the cache of segment locations."""

from segstore.client.connection.auth import Basic, Bearer, Credentials, TokenCache, expiry_of, warn_if_unencrypted
from segstore.client.connection.in_flight import (
    LEAST_COST,
    MANY_ITEMS,
    BadAck,
    InFlight,
    InFlightAppend,
    OtherWriter,
    Pending,
    Route,
    Then,
    acknowledged,
    add,
    add_behind,
    resolve_stored,
    take,
)
from segstore.client.connection.locations import FixedStore, Locations, learn
from segstore.client.connection.nodes import NodeState, NodeStates
from segstore.client.connection.outbox import WRITER_SLOTS, WRITERS, Appends
from segstore.client.connection.pool import ConnectionPool, PoolMetrics
from segstore.client.connection.raw import MakeRequest, RawClient, SegmentRequests
from segstore.client.connection.transport import RECEIVE_BYTES, Flow, FlowHandler
from segstore.wire.endpoint import Endpoint

__all__ = [
    "LEAST_COST",
    "MANY_ITEMS",
    "RECEIVE_BYTES",
    "WRITERS",
    "WRITER_SLOTS",
    "Appends",
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
    "Then",
    "TokenCache",
    "acknowledged",
    "add",
    "add_behind",
    "expiry_of",
    "learn",
    "resolve_stored",
    "take",
    "warn_if_unencrypted",
]
