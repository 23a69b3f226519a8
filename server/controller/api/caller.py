"""The caller of a call with its permissions, and the names of the resources that it needs permissions for.

The stream of a reader group counts as the reader group, a stream of watermarks as its stream. Empty names are refused
with `EmptyName`, whether or not permissions are checked. Follows `AuthorizationResourceImpl` and `StreamAuthParams`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from segstore.server.auth import Permission
from segstore.server.controller.api.auth import Authority
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.state import MARK_PREFIX, READER_GROUP_PREFIX, require
from segstore.wire.controller_api import messages as m

READ: Final = Permission.READ
UPDATE: Final = Permission.READ_UPDATE

SCOPES: Final = "prn::/"
"""All scopes."""


def scope_resource(scope: str) -> str:
    """The resource of a scope and its contents."""
    require(scope=scope)
    return f"prn::/scope:{scope}"


def stream_resource(scope: str, stream: str) -> str:
    """The resource of a stream by its own name."""
    require(scope=scope, stream=stream)
    return f"prn::/scope:{scope}/stream:{stream}"


def user_resource(scope: str, stream: str) -> str:
    """The resource that permissions are checked for: for an internal stream, the object that it belongs to."""
    require(scope=scope, stream=stream)
    if stream.startswith(READER_GROUP_PREFIX):
        reader_group = stream.replace(READER_GROUP_PREFIX, "")  # every occurrence, as in the reference
        require(reader_group=reader_group)
        return f"prn::/scope:{scope}/reader-group:{reader_group}"
    if stream.startswith(MARK_PREFIX):
        return stream_resource(scope, stream.replace(MARK_PREFIX, ""))
    return stream_resource(scope, stream)


def table_resource(scope: str, table: str) -> str:
    """The resource of a key-value table."""
    require(scope=scope, table=table)
    return f"prn::/scope:{scope}/key-value-table:{table}"


def permission_to_write(stream: str, config: ControllerConfig) -> Permission:
    """The permission needed to write to a stream. READ is enough for watermarks and, if configured, reader groups."""
    if stream.startswith(READER_GROUP_PREFIX):
        return permission_for_groups(config)
    return READ if stream.startswith(MARK_PREFIX) else UPDATE


def permission_for_groups(config: ControllerConfig) -> Permission:
    """The permission needed in a scope to change its reader groups."""
    return READ if config.group_writes_with_read_permission else UPDATE


class Caller:
    """A caller, and the authority that knows its permissions. gone: done once the caller has given up its call."""

    def __init__(self, authority: Authority, principal: str | None, gone: asyncio.Future[None]) -> None:
        self.gone = gone
        self._authority = authority
        self._principal = principal

    @property
    def is_free(self) -> bool:
        """Whether the caller may do everything and needs no token."""
        return self._authority.is_open

    def needs(self, resource: str, permission: Permission) -> None:
        """Refuses a caller that lacks a permission."""
        self._authority.check(self._principal, resource, permission)

    def stream(self, info: m.StreamInfo, permission: Permission) -> tuple[str, str]:
        """Refuses a caller that lacks a permission for a stream; returns its scope and its name."""
        self.needs(stream_resource(info.scope, info.stream), permission)
        return info.scope, info.stream

    def token(self, resource: str, permission: Permission) -> str:
        """Checks a permission and returns a delegation token for it."""
        self.needs(resource, permission)
        return self._authority.token(resource, permission)

    def granted(self, resource: str, permission: Permission) -> str:
        """Returns a delegation token without a check, for a permission checked under another name of the resource."""
        return self._authority.token(resource, permission)

    def sees(self, resource: str) -> bool:
        """Whether listings show the caller a resource."""
        return self._authority.allows(self._principal, resource, READ)
