"""Fault rules: what they say, how they are decided, and how a connection applies them."""

from segstore.server.faults.connection import (
    FaultyConnection,
)
from segstore.server.faults.decisions import (
    Decision,
    Plan,
    Wait,
)
from segstore.server.faults.faults import (
    Faults,
    NoFaults,
)
from segstore.server.faults.file import (
    FaultFileError,
    read_faults,
)
from segstore.server.faults.frames import (
    end_by_reset,
    refusal,
    spoilt,
)
from segstore.server.faults.observe import (
    Observed,
    Observer,
    Seen,
    StageName,
    reply_seen,
    request_seen,
)
from segstore.server.faults.rules import (
    Action,
    Close,
    Drop,
    Duplicate,
    Error,
    FaultSettings,
    Rule,
    RuleOptions,
)
from segstore.server.faults.waits import (
    FaultWaits,
)

__all__ = [
    "Action",
    "Close",
    "Decision",
    "Drop",
    "Duplicate",
    "Error",
    "FaultFileError",
    "FaultSettings",
    "FaultWaits",
    "Faults",
    "FaultyConnection",
    "NoFaults",
    "Observed",
    "Observer",
    "Plan",
    "Rule",
    "RuleOptions",
    "Seen",
    "StageName",
    "Wait",
    "end_by_reset",
    "read_faults",
    "refusal",
    "reply_seen",
    "request_seen",
    "spoilt",
]
