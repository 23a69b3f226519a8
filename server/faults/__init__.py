"""Fault rules: what they say, how they are decided, and the lane that applies them to a connection."""

from segstore.server.faults.changes import end_by_reset
from segstore.server.faults.decisions import Decision
from segstore.server.faults.faults import Faults, NoFaults, WithFaults
from segstore.server.faults.file import FaultFileError, read_faults
from segstore.server.faults.lane import Effect, End, Execute, Finish, Forget, Lane, Send
from segstore.server.faults.observe import Observer, Seen, StageName
from segstore.server.faults.rules import Action, FaultSettings, Rule, RuleOptions

__all__ = [
    "Action",
    "Decision",
    "Effect",
    "End",
    "Execute",
    "FaultFileError",
    "FaultSettings",
    "Faults",
    "Finish",
    "Forget",
    "Lane",
    "NoFaults",
    "Observer",
    "Rule",
    "RuleOptions",
    "Seen",
    "Send",
    "StageName",
    "WithFaults",
    "end_by_reset",
    "read_faults",
]
