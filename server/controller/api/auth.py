"""Authentication of the controller's callers, and the delegation tokens issued to them.

With a password file, every call must carry `authorization: Basic <user:password in base64>`, and access-control entries
(`access`) determine the user's permissions. A line of the file is `user:password:entry;entry…`. The password is either
hashed as in Pravega (hex of `iterations:salt:PBKDF2 hash`, as written by its `PasswordFileCreatorTool`), and the line
has the same meaning as in Pravega; or it is plain text, and a user without a third field may do everything. Malformed
lines and entries are skipped and logged with their line number. Without a file, callers are not authenticated and
everything is allowed.

With a signing key, delegation tokens are issued: JWTs signed with HS512, with `resource: permission` among the claims.
Without a key, tokens are "".

Invariants: passwords, tokens and lines of the file appear in no `repr`, error or log. Passwords are hashed in a thread,
and a check takes the same time for unknown users. Follows `PasswordAuthHandler`, `GrpcAuthHelper` and `JsonWebToken`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from pydantic import SecretStr

from segstore.server.auth import Permission, any_key_length
from segstore.server.controller.api.access import AclEntry, permission_of, read_entries
from segstore.server.controller.errors import PermissionDenied, Unauthenticated

log = logging.getLogger(__name__)

_EVERYTHING: Final = "prn::*,READ_UPDATE"
_HASH_BYTES: Final = 64
_MOST_ITERATIONS: Final = (1 << 31) - 1


class _Account:
    def __init__(self, password: str) -> None:
        self.entries: list[AclEntry] = []
        self.hash = _read_hash(password)
        self._plain = password

    def has_password(self, password: str, iterations: int) -> bool:
        """Whether the password is right. Computes `iterations` rounds, at least as many as the account's hash needs."""
        computed, salt, stored = password.encode(), b"", self._plain.encode()
        if self.hash is not None:
            own, salt, stored = self.hash
            computed = hashlib.pbkdf2_hmac("sha256", computed, salt, own, len(stored))
            iterations -= own
        if iterations > 0:
            hashlib.pbkdf2_hmac("sha256", b"", salt, iterations, _HASH_BYTES)
        return hmac.compare_digest(stored, computed)


class Accounts:
    """The users of a password file."""

    def __init__(self, lines: Iterable[str], *, strict: bool = False) -> None:
        """lines: the lines of a password file; empty lines and lines that begin with # are ignored.

        strict: refuse a line without a password. Raises ValueError, also for lines that are not text.
        """
        if isinstance(lines, str) or not hasattr(lines, "__iter__"):
            raise ValueError("users are lines of a password file, in a list")
        self._accounts: dict[str, _Account] = {}
        self._unknown = _Account("")
        self._verified: dict[bytes, str] = {}
        self._hashing = asyncio.Lock()
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str):
                raise ValueError(f"line {number} of the users is text, not of the type {type(line).__name__}")
            text = line.strip(" \t\r\n")
            if not text or text.startswith("#"):
                continue
            user, *rest = text.split(":", 2)
            problems = ["skipped, because it is not user:password:entries"]
            if strict and not (user and rest):
                raise ValueError(f"line {number} of the users is not user:password:entries")
            if user and rest:
                account = self._accounts[user] = _Account(rest[0])
                if len(rest) < 2 and account.hash is None:
                    rest.append(_EVERYTHING)
                account.entries, problems = read_entries("".join(rest[1:]))
            for problem in problems:
                log.warning("line %d of the password file: %s", number, problem)
        self._iterations = max((account.hash[0] for account in self._accounts.values() if account.hash), default=0)

    async def authenticate(self, credentials: str) -> str:
        """The user with these credentials, base64 of `user:password`. Raises Unauthenticated."""
        digest = hashlib.sha256(credentials.encode()).digest()
        if digest in self._verified:
            return self._verified[digest]
        user, password = _parsed(credentials)
        async with self._hashing:
            if digest not in self._verified:  # an earlier call may have had the same credentials
                account = self._accounts.get(user)
                check = (account or self._unknown).has_password
                right = await asyncio.to_thread(check, password, self._iterations)
                if account is None or not right:
                    raise Unauthenticated("the user or the password is wrong")
                self._verified[digest] = user
        return user

    def permission(self, user: str, resource: str) -> Permission:
        """Returns the permission of a user for a resource. Raises UnusableEntry."""
        account = self._accounts.get(user)
        return Permission.NONE if account is None else permission_of(account.entries, resource)


def _parsed(credentials: str) -> tuple[str, str]:
    """Returns user and password. Raises Unauthenticated."""
    try:
        user, separator, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Unauthenticated("the credentials are not base64 of user:password") from error
    if not separator:
        raise Unauthenticated("the credentials are not base64 of user:password")
    return user, password


def _read_hash(password: str) -> tuple[int, bytes, bytes] | None:
    """Returns iterations, salt and hash of a hashed password; None for a plain password."""
    try:
        iterations, salt, stored = bytes.fromhex(password).decode("ascii").split(":")
        read = int(iterations), bytes.fromhex(salt), bytes.fromhex(stored)
    except ValueError:  # not hex, or not of three parts: a plain password
        return None
    return read if 0 < read[0] <= _MOST_ITERATIONS and read[2] else None


class Authority:
    """Checks callers and issues tokens. `accounts` None: everything is allowed. `key` None: tokens are ""."""

    def __init__(
        self,
        accounts: Accounts | None = None,
        key: SecretStr | str | None = None,
        *,
        ttl_s: int = 600,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """ttl_s: lifetime of issued tokens (600, as in Pravega's `Config`); -1 for no expiry. now_s: since 1970.

        Raises ValueError for a key that is not text.
        """
        if isinstance(key, SecretStr):
            key = key.get_secret_value()
        if not isinstance(key, str | None):
            raise ValueError(f"auth_key is text, not of the type {type(key).__name__}")
        self._accounts = accounts
        self._key = None if key is None else key.encode()
        self._ttl_s = ttl_s
        self._now_s = now_s

    @property
    def is_open(self) -> bool:
        """Whether callers are not checked and no tokens are issued."""
        return self._accounts is None and self._key is None

    async def principal(self, header: str | None) -> str | None:
        """Returns the user in a call's `authorization`; None without a user, or if the scheme is unknown.

        Raises Unauthenticated.
        """
        if self._accounts is None or not header:
            return None
        method, _, credentials = header.partition(" ")
        if method != "Basic" or not credentials:
            return None
        return await self._accounts.authenticate(credentials.strip())

    def allows(self, principal: str | None, resource: str, permission: Permission) -> bool:
        """Whether a caller has a permission."""
        if self._accounts is None:
            return True
        return principal is not None and self._accounts.permission(principal, resource) >= permission

    def check(self, principal: str | None, resource: str, permission: Permission) -> None:
        """Raises `Unauthenticated` or `PermissionDenied` for a caller without the permission."""
        if self.allows(principal, resource, permission):
            return
        if principal is None:
            raise Unauthenticated(
                "the call has no credentials of the scheme Basic, the only one that this controller accepts"
            )
        raise PermissionDenied(principal, permission.name, resource)

    def token(self, resource: str, permission: Permission) -> str:
        """Returns a delegation token for one resource."""
        if self._key is None:
            return ""
        import jwt  # only controllers with a key need it

        now_s = int(self._now_s())
        claims: dict[str, object] = {
            "sub": "segmentstoreresource",
            "aud": "segmentstore",
            "iat": now_s,
            resource: permission.name,
        }
        if self._ttl_s >= 0:
            claims["exp"] = now_s + self._ttl_s
        with any_key_length():
            return jwt.encode(claims, self._key, algorithm="HS512")
