"""The controller's REST API: Pravega's paths, bodies and status codes, over the operations of its gRPC API.

`RestApi` is the listener; `answered` answers requests with the controller of this process, `answered_by_leader` with
the leading controller of a cluster. This package imports the web library, so a server imports it only if the API is
enabled.
"""

from segstore.server.rest.app import Answering, HealthStatus, RestApi
from segstore.server.rest.asking import RestRequest, RestResponse
from segstore.server.rest.forwarding import answered_by_leader
from segstore.server.rest.operations import answered

__all__ = ["Answering", "HealthStatus", "RestApi", "RestRequest", "RestResponse", "answered", "answered_by_leader"]
