"""The control API: JSON over HTTP about a running server, on the event loop that serves its segments.

`ControlApi` listens and stops; `make_app` is the application alone; `Controlled` is what it looks at. Importing this
imports the web library, so a server does that only when it is to listen.
"""

from segstore.server.control_api.app import make_app
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.listening import ControlApi
from segstore.server.control_api.writer_names import WriterNames

__all__ = ["ControlApi", "Controlled", "WriterNames", "make_app"]
