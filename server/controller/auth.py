"""Who may do what at the controller, and the delegation tokens that carry it to the segment store.

With a password file every call must bring `authorization: Basic <user:password in base64>`, and what a user may do is
said by access-control entries. A line of the file is `user:password:entry;entry…`, an entry `resource,permission` with
`*` for anything in a resource; the first entry that matches decides. The password is Pravega's (hex of
`iterations:salt:PBKDF2 hash`, as its `PasswordFileCreatorTool` writes it) or plain text. Without the third field the
user may do everything, with an empty one nothing. Without a file nobody is asked who he is, and all is allowed.

With a signing key, tokens are made: JWT, HS512 over the key's bytes, `resource: permission` among the claims. Without
one they are "".

Invariant: passwords and tokens appear in no `repr` and no error. Follows `PasswordAuthHandler`, `AclAuthorizerImpl`,
`GrpcAuthHelper` and `JsonWebToken`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

import jwt

from segstore.server.auth import any_key_length
from segstore.server.controller.errors import PermissionDenied, Unauthenticated

__all__ = ["Accounts", "Authority", "Permission"]

_DOMAIN: Final = "prn::"
_VERIFIED_MAX: Final = 1024
"""Credentials whose hash is not computed again; a hash costs milliseconds."""


class Permission(IntEnum):
    """What may be done with a resource; a higher one includes the lower."""

    NONE = 0
    READ = 1
    READ_UPDATE = 2


class _Account:
    """A user's password and entries."""

    __slots__ = ("_entries", "_hash", "_plain")

    def __init__(self, password: str, entries: list[tuple[re.Pattern[str], Permission]]) -> None:
        self._entries = entries
        self._hash = _read_hash(password)
        self._plain = password

    def has_password(self, password: str) -> bool:
        if self._hash is None:
            return hmac.compare_digest(self._plain.encode(), password.encode())
        iterations, salt, stored = self._hash
        computed = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations, len(stored))
        return hmac.compare_digest(stored, computed)

    def permission(self, resource: str) -> Permission:
        for pattern, permission in self._entries:
            if pattern.fullmatch(resource):
                return permission
        return Permission.NONE


class Accounts:
    """The users of a password file."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Read the lines of a file; empty ones and those that begin with # say nothing.

        Raises `ValueError` with the number of the line and what is wrong with it, never with the line.
        """
        self._accounts: dict[str, _Account] = {}
        self._verified: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            user, *rest = text.split(":", 2)
            if not user or not rest:
                raise ValueError(f"line {number} of the password file is not user:password:entries")
            entries = rest[1] if len(rest) > 1 else f"{_DOMAIN}*,READ_UPDATE"
            self._accounts[user] = _Account(rest[0], list(_entries(entries, number)))

    def authenticate(self, credentials: str) -> str:
        """The user that base64 of `user:password` stands for; `Unauthenticated` if that is nobody."""
        digest = hashlib.sha256(credentials.encode()).digest()
        known = self._verified.get(digest)
        if known is not None:
            return known
        try:
            user, separator, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Unauthenticated("the credentials are not base64 of user:password") from error
        account = self._accounts.get(user) if separator else None
        if account is None or not account.has_password(password):
            raise Unauthenticated("the user or the password is wrong")
        if len(self._verified) >= _VERIFIED_MAX:
            self._verified.clear()
        self._verified[digest] = user
        return user

    def permission(self, user: str, resource: str) -> Permission:
        """What a user may do with a resource."""
        account = self._accounts.get(user)
        return Permission.NONE if account is None else account.permission(resource)


def _entries(text: str, number: int) -> Iterable[tuple[re.Pattern[str], Permission]]:
    for entry in filter(None, (each.strip() for each in text.split(";"))):
        resource, separator, permission = (each.strip() for each in entry.rpartition(","))
        if not separator or permission not in Permission.__members__:
            raise ValueError(f"an entry in line {number} of the password file is not resource,permission")
        # Everything but the star stands for itself: Pravega takes the rest for a regular expression by accident.
        pattern = re.compile(".*".join(re.escape(part) for part in resource.split("*")), re.DOTALL)
        yield pattern, Permission[permission]


def _read_hash(password: str) -> tuple[int, bytes, bytes] | None:
    """Iterations, salt and hash, if the password is one that was hashed."""
    try:
        iterations, salt, stored = bytes.fromhex(password).decode("ascii").split(":")
        read = int(iterations), bytes.fromhex(salt), bytes.fromhex(stored)
    except ValueError:  # not hex, or not of three parts: a plain password
        return None
    return read if read[0] > 0 and read[2] else None


class Authority:
    """Checks callers and makes tokens. `accounts` None: everybody may do everything. `key` None: tokens are ""."""

    def __init__(
        self, accounts: Accounts | None = None, key: str | None = None, *, ttl_s: int = 600, now_s: Callable[[], float]
    ) -> None:
        """`ttl_s` is how long a token is good (600, as in Pravega's `Config`); -1: for ever. `now_s` since 1970."""
        self._accounts = accounts
        self._key = None if key is None else key.encode()
        self._ttl_s = ttl_s
        self._now_s = now_s

    @property
    def is_open(self) -> bool:
        """Whether nobody is checked and no token is made."""
        return self._accounts is None and self._key is None

    def principal(self, header: str | None) -> str | None:
        """The user that a call's `authorization` stands for; None if it has none that is understood here."""
        if self._accounts is None or not header:
            return None
        method, _, credentials = header.partition(" ")
        if method != "Basic" or not credentials:
            return None
        return self._accounts.authenticate(credentials.strip())

    def allows(self, principal: str | None, resource: str, permission: Permission) -> bool:
        """Whether a caller has a permission."""
        if self._accounts is None:
            return True
        return principal is not None and self._accounts.permission(principal, resource) >= permission

    def check(self, principal: str | None, resource: str, permission: Permission) -> None:
        """Refuse a caller without the permission: `Unauthenticated` or `PermissionDenied`."""
        if self.allows(principal, resource, permission):
            return
        if principal is None:
            raise Unauthenticated("the call brought no credentials")
        raise PermissionDenied(principal, permission.name, resource)

    def token(self, resource: str, permission: Permission) -> str:
        """A delegation token for one resource."""
        if self._key is None:
            return ""
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
