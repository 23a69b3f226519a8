"""Shared parts of gRPC methods: the caller of a call with its permissions, and the base of the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from segstore.server.controller.api import convert
from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.resources import stream_resource
from segstore.server.controller.controller import Controller
from segstore.server.controller.state import StreamSegment
from segstore.wire.controller_api import messages as m

READ = Permission.READ
UPDATE = Permission.READ_UPDATE


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


class Service:
    """The methods of one part of the API."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._streams = controller.streams

    def _ranges(self, scope: str, stream: str, segments: Sequence[StreamSegment], token: str) -> m.SegmentRanges:
        ranges = convert.segment_ranges(scope, stream, segments)
        return m.SegmentRanges(segmentRanges=ranges, delegationToken=token)
