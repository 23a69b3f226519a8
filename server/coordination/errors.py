"""The errors of a coordination service."""

from __future__ import annotations


class CoordinationError(Exception):
    """Root of the errors of a coordination service. path: the requested node, or ""."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class NodeExists(CoordinationError):
    """The node to be created exists."""


class NoNode(CoordinationError):
    """The node does not exist."""


class BadVersion(CoordinationError):
    """The node has changed since the given version."""


class Disconnected(CoordinationError):
    """The service did not answer; the request may have been executed. Try again."""


class SessionExpired(CoordinationError):
    """The session has ended: the service reported its expiry, or it was closed here."""


class Unreachable(CoordinationError):
    """The service gave no session."""
