"""Locates segments: which store serves a segment, and which delegation token it requires."""

from __future__ import annotations

from typing import Protocol

from segstore.client.connection.auth import TokenCache, TokenSource
from segstore.client.errors import ClientError, TokenExpired, WrongStore
from segstore.wire.endpoint import Endpoint


class Locations(Protocol):
    """Looks up where segments live. Lookups may raise any ClientError."""

    async def endpoint_of(self, segment: str) -> Endpoint:
        """Returns the store believed to own the segment."""

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        """Reports a wrong location: the next lookup asks again, unless the location has changed meanwhile."""

    async def token_for(self, segment: str) -> str:
        """Returns a delegation token for the segment; "" if the store needs no token."""

    def expired(self, segment: str, token: str) -> None:
        """Reports that a token is no longer accepted: the next lookup gets another."""


def learn(
    locations: Locations, segment: str, error: ClientError, endpoint: Endpoint | None, token: str, *, in_doubt: bool
) -> None:
    """Invalidates the cached token or location if a store's failure shows that it is wrong.

    in_doubt: the store may be the wrong one although it did not report that.
    """
    if isinstance(error, TokenExpired):
        locations.expired(segment, token)
    elif endpoint is not None and (in_doubt or isinstance(error, WrongStore)):
        locations.forget(segment, endpoint)


class FixedStore:
    """Locates all segments in one store, with one token: for working with a store without a controller.

    token: the token, or a source of tokens, which is called again before a token expires or if the store refuses it.
    """

    def __init__(self, endpoint: Endpoint, token: str | TokenSource = "") -> None:
        self._endpoint = endpoint
        self._token = token if isinstance(token, str) else TokenCache(token)

    async def endpoint_of(self, segment: str) -> Endpoint:
        return self._endpoint

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        """No-op: there is only one store."""

    async def token_for(self, segment: str) -> str:
        return self._token if isinstance(self._token, str) else await self._token.get()

    def expired(self, segment: str, token: str) -> None:
        if isinstance(self._token, TokenCache):
            self._token.expired(token)
