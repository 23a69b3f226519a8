"""The control API: JSON over HTTP about a running server, on the event loop that serves its segments.

`ControlApi` is the listener; `make_app` creates the application alone; `Controlled` holds what it serves. Importing
this package imports the web library, so a server does that only if the control API is enabled.
"""

from segstore.server.control_api.app import make_app
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.listening import ControlApi
from segstore.server.control_api.writer_names import WriterNames

__all__ = ["ControlApi", "Controlled", "WriterNames", "make_app"]
