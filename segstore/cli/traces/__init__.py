"""Commands for traces: judging, inspecting and rewriting them, answering clients and driving stores with them."""

from segstore.cli.traces.check import check
from segstore.cli.traces.explore import explore
from segstore.cli.traces.replay import replay
from segstore.cli.traces.send import send
from segstore.cli.traces.trace import trace

__all__ = ["check", "explore", "replay", "send", "trace"]
