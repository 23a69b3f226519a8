"""Authentication: credentials for the controller, and a cache that renews delegation tokens before they expire.

    connect(uri, credentials=Basic("ann", "secret"))
    connect(uri, credentials=Bearer(fetch))      # async def fetch() -> str

Invariants: a `TokenCache` has at most one fetch in flight, however many callers wait; a token that has expired or was
refused is never returned again; no error message or `repr` shows a secret. Follows `JwtTokenProviderImpl` and
`PravegaCredentialsWrapper` (Pravega's client). Deliberate differences: the reference renews 5 s before expiry, whatever
the token's lifetime; here a still valid token stays in use if a fetch fails and may succeed later.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from segstore.client.errors import ClientError, Retriable, TokenRefused
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

TokenSource = Callable[[], Awaitable[str]]
"""Fetches a fresh token on each call."""

_RENEW_S: Final = 10.0
_RENEW_SHARE: Final = 0.2
"""A token is renewed 10 s before it expires, but at most a fifth of its initial lifetime before."""


def expiry_of(token: str) -> float:
    """Returns a token's expiry in seconds since 1970, infinity without an expiry. The signature is not checked."""
    if not token:
        return float("inf")
    import jwt  # loads cryptography if it is installed

    try:
        expires = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except jwt.PyJWTError:
        return float("inf")  # opaque token: only the server can interpret it
    return float(expires) if isinstance(expires, (int, float)) else float("inf")


class TokenCache:
    """Caches one token; fetches it on first use and again before it expires."""

    __slots__ = ("_fetch", "_lock", "_now_s", "_renew_at_s", "_token", "_until_s")

    def __init__(self, fetch: TokenSource, *, now_s: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._now_s = now_s
        self._lock = asyncio.Lock()
        self._token = ""
        self._until_s = self._renew_at_s = float("-inf")

    async def get(self) -> str:
        """Returns a token that has not expired by its own claim and the local clock. Raises what `fetch` raises."""
        if self._now_s() < self._renew_at_s:
            return self._token
        async with self._lock:
            if self._now_s() < self._renew_at_s:
                return self._token  # fetched meanwhile by the holder of the lock
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
        """Marks a token as refused by the server."""
        if token == self._token:
            self._until_s = self._renew_at_s = float("-inf")


class Credentials(Protocol):
    """Credentials that the client sends to the controller with each call."""

    async def authorization(self) -> str:
        """Returns the value of the `authorization` metadata: a scheme, a space, and the credentials."""

    def refused(self, authorization: str) -> bool:
        """Called when the controller refuses an authorization. Returns whether a retry may use another token."""


class Basic:
    """Basic authentication with username and password."""

    def __init__(self, username: str, password: str) -> None:
        self._value = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"

    async def authorization(self) -> str:
        return self._value

    def refused(self, authorization: str) -> bool:
        return False


class Bearer:
    """Bearer tokens of an identity provider such as Keycloak; renewed before expiry, and once after a refusal."""

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


def warn_if_unencrypted(controllers: Iterable[Endpoint]) -> None:
    """Logs a warning if credentials for controllers leave this machine; to be called for connections without TLS."""
    elsewhere = next((controller for controller in controllers if not _is_loopback(controller.host)), None)
    if elsewhere is not None:
        text = "credentials are sent to controller %s unencrypted; tls:// encrypts them"
        log.warning(text, elsewhere, extra={"endpoint": str(elsewhere)})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
