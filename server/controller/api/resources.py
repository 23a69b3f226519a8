"""Names of resources in access-control entries and delegation tokens.

The stream of a reader group counts as the reader group, a stream of watermarks as its stream. Empty names are refused
with `EmptyName`, whether or not permissions are checked. Follows `AuthorizationResourceImpl` and `StreamAuthParams`.
"""

from __future__ import annotations

from typing import Final

from segstore.server.controller.api.access import Permission
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.state import MARK_PREFIX, READER_GROUP_PREFIX, require

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
    return Permission.READ if stream.startswith(MARK_PREFIX) else Permission.READ_UPDATE


def permission_for_groups(config: ControllerConfig) -> Permission:
    """The permission needed in a scope to change its reader groups."""
    return Permission.READ if config.group_writes_with_read_permission else Permission.READ_UPDATE
