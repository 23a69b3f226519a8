"""Locates segments: which store serves a segment, and which delegation token it requires."""

from __future__ import annotations

from typing import Protocol

from segstore.client.connection.auth import TokenCache, TokenSource
from segstore.client.connection.pool import Endpoint
from segstore.client.errors import ClientError, TokenExpired, WrongStore


class Locations(Protocol):
    """Knows, or asks, where segments live. May raise any ClientError."""

    async def endpoint_of(self, segment: str) -> Endpoint:
        """The store that owns the segment, as far as is known."""

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        """The segment is not there: ask anew the next time, unless that was done meanwhile."""

    async def token_for(self, segment: str) -> str:
        """A delegation token for the segment, "" where none is needed."""

    def expired(self, segment: str, token: str) -> None:
        """That token is not taken any more: get another the next time."""


def learn(
    locations: Locations, segment: str, error: ClientError, endpoint: Endpoint | None, token: str, *, in_doubt: bool
) -> None:
    """What a failure at a store says of the token and of where the segment lives: it is asked for anew the next time.

    in_doubt: the store may be the wrong one although it did not say so.
    """
    if isinstance(error, TokenExpired):
        locations.expired(segment, token)
    elif endpoint is not None and (in_doubt or isinstance(error, WrongStore)):
        locations.forget(segment, endpoint)


class FixedStore:
    """Every segment lives in one store and takes one token: for work on a store without a controller.

    token: the token, or what gets one: it is then asked again before a token ends and when the store refuses it.
    """

    def __init__(self, endpoint: Endpoint, token: str | TokenSource = "") -> None:
        self._endpoint = endpoint
        self._token = token if isinstance(token, str) else TokenCache(token)

    async def endpoint_of(self, segment: str) -> Endpoint:
        return self._endpoint

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        """There is no other."""

    async def token_for(self, segment: str) -> str:
        return self._token if isinstance(self._token, str) else await self._token.get()

    def expired(self, segment: str, token: str) -> None:
        if isinstance(self._token, TokenCache):
            self._token.expired(token)
