"""Commands for traces: inspecting and rewriting them, answering clients with them, and driving stores with them."""

from segstore.cli.traces.explore import explore
from segstore.cli.traces.replay import replay
from segstore.cli.traces.send import send
from segstore.cli.traces.trace import trace

__all__ = ["explore", "replay", "send", "trace"]
