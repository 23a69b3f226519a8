"""The caller of one gRPC method: permission checks, and pages of names filtered by what the caller may read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from segstore.server.controller.api.access import Permission
from segstore.server.controller.api.auth import Authority

READ = Permission.READ
UPDATE = Permission.READ_UPDATE


class Caller:
    """A caller, and the authority that knows its permissions."""

    __slots__ = ("_authority", "_principal")

    def __init__(self, authority: Authority, principal: str | None) -> None:
        self._authority = authority
        self._principal = principal

    @property
    def is_free(self) -> bool:
        """Whether the caller may do everything and needs no token."""
        return self._authority.is_open

    def needs(self, resource: str, permission: Permission) -> None:
        """Refuse a caller that lacks a permission."""
        self._authority.check(self._principal, resource, permission)

    def token(self, resource: str, permission: Permission) -> str:
        """Check a permission and return a delegation token for it."""
        self.needs(resource, permission)
        return self._authority.token(resource, permission)

    def granted(self, resource: str, permission: Permission) -> str:
        """Return a delegation token without a check, for a permission checked under another name of the resource."""
        return self._authority.token(resource, permission)

    async def page(
        self, fetch: Callable[[str], Awaitable[tuple[list[str], str]]], token: str, resource: Callable[[str], str]
    ) -> tuple[list[str], str]:
        """Return the next page of a listing, without names that the caller may not read. Empty only at the end."""
        while True:
            names, token = await fetch(token)
            seen = [name for name in names if self._authority.allows(self._principal, resource(name), READ)]
            if seen or not names:
                return seen, token
