"""The control API: JSON over HTTP about a running server, on the event loop that serves its segments.

`ControlApi` is the listener; `serving` returns the application alone; `Operations` calls its handlers without HTTP;
`Controlled` holds what it serves. `HttpListener` and `Guard` also serve applications of other rooms. Importing this
package imports the web library, so a server does that only if it has an HTTP port, or a test asks what it holds.
"""

from segstore.server.control_api.app import Operations, serving
from segstore.server.control_api.contents import (
    GroupDetails,
    GroupSummary,
    SegmentOfStream,
    StreamDetails,
    StreamSummary,
    TableDetails,
    TableSummary,
    TransactionDetails,
)
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.guard import Guard
from segstore.server.control_api.listening import ControlApi, HttpListener
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.steering import StreamInfo, TransactionState, WrittenEvent

__all__ = [
    "ApiProblem",
    "ControlApi",
    "Controlled",
    "GroupDetails",
    "GroupSummary",
    "Guard",
    "HttpListener",
    "Operations",
    "SegmentOfStream",
    "StreamDetails",
    "StreamInfo",
    "StreamSummary",
    "TableDetails",
    "TableSummary",
    "TransactionDetails",
    "TransactionState",
    "WrittenEvent",
    "serving",
]
