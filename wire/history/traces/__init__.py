"""Facts of traces: the connections to stores, by the protocol's rules, and the calls of controllers."""

from segstore.wire.history.traces.calls import CallsFold
from segstore.wire.history.traces.connections import ConnectionFold

__all__ = ["CallsFold", "ConnectionFold"]
