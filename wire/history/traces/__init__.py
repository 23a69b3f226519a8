"""Facts of traces: the connections to stores, by the protocol's rules, and the calls of controllers."""

from segstore.wire.history.traces.calls import CallsFold
from segstore.wire.history.traces.connections import ConnectionFold
from segstore.wire.history.traces.protocol import every_key

__all__ = ["CallsFold", "ConnectionFold", "every_key"]
