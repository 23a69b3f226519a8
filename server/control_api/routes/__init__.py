"""The routes of the control API, one module for each kind of resource."""

from segstore.server.control_api.routes.watch import Watch

__all__ = ["Watch"]
