"""Authentication: credentials for the controller, and a cache that renews delegation tokens before they expire.

    connect(uri, credentials=Basic("ann", "secret"))
    connect(uri, credentials=Bearer(fetch))      # async def fetch() -> str

Invariants: a `TokenCache` has one fetch under way at a time, however many wait; a token that is known to have ended, or
that was refused, is not handed out again; no text of an error and no `repr` shows a secret. Follows
`JwtTokenProviderImpl` and `PravegaCredentialsWrapper` (Pravega's client). Deliberate differences: the reference renews
5 s before the end, whatever the token's life; if a fetch fails and may succeed later, a token that is good serves on.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import jwt

from segstore.client.errors import ClientError, Retriable, TokenRefused

TokenSource = Callable[[], Awaitable[str]]
"""Gets a token, anew each time that it is called."""

_RENEW_S: Final = 10.0
_RENEW_SHARE: Final = 0.2
"""A token is renewed 10 s before it ends, and at most a fifth of the life that it had when it came."""


def expiry_of(token: str) -> float:
    """When a token ends, in seconds since 1970; infinity for one that does not say. The signature is not looked at."""
    if not token:
        return float("inf")
    try:
        expires = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except jwt.PyJWTError:
        return float("inf")  # whom it is for knows what to make of it
    return float(expires) if isinstance(expires, (int, float)) else float("inf")


class TokenCache:
    """One token, fetched when it is first wanted and again before it ends."""

    __slots__ = ("_fetch", "_lock", "_now_s", "_renew_at_s", "_token", "_until_s")

    def __init__(self, fetch: TokenSource, *, now_s: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._now_s = now_s
        self._lock: asyncio.Lock | None = None
        self._token = ""
        self._until_s = self._renew_at_s = float("-inf")

    async def get(self) -> str:
        """A token that has not ended, as far as its own words and this machine's clock go. Raises what `fetch` does."""
        if self._now_s() < self._renew_at_s:
            return self._token
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._now_s() < self._renew_at_s:
                return self._token  # who held the lock has fetched it
            try:
                token = await self._fetch()
            except Retriable:
                if self._now_s() < self._until_s:
                    return self._token
                raise
            now_s = self._now_s()
            self._token, self._until_s = token, expiry_of(token)
            left_s = self._until_s - now_s
            self._renew_at_s = self._until_s - min(_RENEW_S, _RENEW_SHARE * left_s) if left_s < float("inf") else left_s
            return token

    def expired(self, token: str) -> None:
        """Who it was shown to does not take it any more."""
        if token == self._token:
            self._until_s = self._renew_at_s = float("-inf")


class Credentials(Protocol):
    """What the client shows the controller with each call."""

    async def authorization(self) -> str:
        """The value of the `authorization` metadata: a scheme, a space, and what goes with it."""

    def refused(self, authorization: str) -> bool:
        """The controller does not know who this is. Whether another try may show something else."""


class Basic:
    """A user and a password."""

    def __init__(self, username: str, password: str) -> None:
        self._value = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"

    async def authorization(self) -> str:
        return self._value

    def refused(self, authorization: str) -> bool:
        return False


class Bearer:
    """Tokens of an identity provider, such as Keycloak; fetched again before they end, and once if one is refused."""

    def __init__(self, fetch: TokenSource, *, now_s: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._cache = TokenCache(self._ask, now_s=now_s)

    async def _ask(self) -> str:
        try:
            return (await self._fetch()).strip()
        except ClientError:
            raise
        except Exception as cause:
            raise TokenRefused(f"the source of bearer tokens failed with {type(cause).__name__}: {cause}") from cause

    async def authorization(self) -> str:
        return f"Bearer {await self._cache.get()}"

    def refused(self, authorization: str) -> bool:
        self._cache.expired(authorization.removeprefix("Bearer "))
        return True
