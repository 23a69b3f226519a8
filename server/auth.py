"""Verification of delegation tokens, which grant access to segments; and files that hold a secret.

A token is a JWT signed with HS512, keyed with the key's bytes. Its claims map resources to `READ` or `READ_UPDATE`;
without `exp` it never expires. PyJWT checks the signature; time is an argument.

Refused: any other algorithm, and tokens without a signature. Source: `TokenVerifierImpl`, `JsonWebToken`.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from segstore.server.config import read_text

log = logging.getLogger(__name__)

_DECORATION = re.compile(r"prn::|/scope:|stream:")
_NOT_RESOURCES = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})
_OTHERS_READ: Final = 0o044


class TokenError(Exception):
    """Root of token errors."""


class TokenRefused(TokenError):
    """The token is malformed, is signed with another key, or does not allow the access."""


class TokenExpired(TokenError):
    """The token has expired."""


class Permission(IntEnum):
    """Permission for a resource, which a token or an access-control entry grants, and a request needs.

    A higher permission includes the lower permissions.
    """

    NONE = 0
    READ = 1
    READ_UPDATE = 2


def _covers(claim: str, resource: str) -> bool:
    claim = _DECORATION.sub("", claim)
    if claim in ("*", resource):
        return True
    return resource.startswith(claim if claim.endswith("/") else claim + "/")


@contextmanager
def any_key_length() -> Iterator[None]:
    """Suppresses the warning of newer PyJWT releases about short keys.

    The key is the cluster's choice, and Pravega's own default is short.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TokenVerifier:
    """Verifies tokens with one key. Without a key everything is allowed."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def verify(self, resource: str, token: str, needed: Permission, now_s: float) -> float | None:
        """Checks that a token allows `needed` on the resource now. Returns its expiry in seconds since 1970; None for
        no expiry, or without a key.

        Raises TokenExpired, or TokenRefused for any other reason.
        """
        if self._key is None:
            return None
        import jwt  # only stores with a key need it, and it loads cryptography if that is installed

        try:
            with any_key_length():
                payload = jwt.decode(
                    token,
                    self._key,
                    algorithms=["HS512"],
                    options={"verify_exp": False, "verify_aud": False, "verify_iat": False, "verify_nbf": False},
                )
        except (jwt.PyJWTError, ValueError) as cause:
            raise TokenRefused(f"the token for {resource!r} is not valid: {cause}") from cause
        expires_s: Any = payload.get("exp")
        if expires_s is not None and (isinstance(expires_s, bool) or not isinstance(expires_s, (int, float))):
            raise TokenRefused(f"the token's exp is {expires_s!r}, not a number")
        if expires_s is not None and expires_s <= now_s:
            raise TokenExpired(f"the token for {resource!r} expired {now_s - expires_s:.0f} s ago")
        claims = {name: level for name, level in payload.items() if name not in _NOT_RESOURCES}
        if not any(_level(level) >= needed and _covers(claim, resource) for claim, level in claims.items()):
            raise TokenRefused(f"the token does not give {needed.name} on {resource!r}")
        return expires_s


def _level(claimed: object) -> Permission:
    return Permission.__members__.get(claimed, Permission.NONE) if isinstance(claimed, str) else Permission.NONE


def read_secret(path: Path) -> str:
    """Returns the file's contents without the final newline. Logs a warning if other users can read the file. No
    message contains any part of the contents.

    Raises OSError, or ValueError with a readable text if the file is empty, too long or not UTF-8.
    """
    if path.stat().st_mode & _OTHERS_READ:
        log.warning("other users can read %s: chmod 600 %s", path, path)
    text = read_text(path, ending=b"\r\n")
    if not text:
        raise ValueError(f"{path} is empty")
    return text
