"""Commands for traces: inspecting and rewriting them, answering clients with them, and driving stores with them."""

from segstore.cli.traces.check import check
from segstore.cli.traces.replay import explore, replay
from segstore.cli.traces.send import send
from segstore.cli.traces.trace import trace

__all__ = ["check", "explore", "replay", "send", "trace"]
