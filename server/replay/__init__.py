"""Servers that answer clients from a recorded trace."""

from segstore.server.replay.calls import CallStep, LeftOut, read_calls
from segstore.server.replay.controller import replay_controller
from segstore.server.replay.problem import Problem
from segstore.server.replay.script import OfClients, Step, of_clients, read_script
from segstore.server.replay.server import TraceOptions, TraceServer, check_pace

__all__ = [
    "CallStep",
    "LeftOut",
    "OfClients",
    "Problem",
    "Step",
    "TraceOptions",
    "TraceServer",
    "check_pace",
    "of_clients",
    "read_calls",
    "read_script",
    "replay_controller",
]
