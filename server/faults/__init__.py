"""Fault rules: their models, the decisions, and the lane that applies them to a connection."""

from segstore.server.faults.decisions import Decision, NoSuchRule, Plan, Wait
from segstore.server.faults.faults import Faults, FaultWaits, NoFaults, WithFaults, fault_decorator
from segstore.server.faults.file import FaultFileError, parse_document, read_faults
from segstore.server.faults.functions import FaultFunctionError, FaultRequest, Function
from segstore.server.faults.lane import Effect, End, Execute, Finish, Forget, Lane, Send
from segstore.server.faults.near import line_of
from segstore.server.faults.observe import NotSeen, Observer, Seen, StageName, check_wait
from segstore.server.faults.rules import Action, Answer, Drop, FaultSettings, RoundTrip, Rule, RuleOptions, Status

__all__ = [
    "Action",
    "Answer",
    "Decision",
    "Drop",
    "Effect",
    "End",
    "Execute",
    "FaultFileError",
    "FaultFunctionError",
    "FaultRequest",
    "FaultSettings",
    "FaultWaits",
    "Faults",
    "Finish",
    "Forget",
    "Function",
    "Lane",
    "NoFaults",
    "NoSuchRule",
    "NotSeen",
    "Observer",
    "Plan",
    "RoundTrip",
    "Rule",
    "RuleOptions",
    "Seen",
    "Send",
    "StageName",
    "Status",
    "Wait",
    "WithFaults",
    "check_wait",
    "fault_decorator",
    "line_of",
    "parse_document",
    "read_faults",
]
