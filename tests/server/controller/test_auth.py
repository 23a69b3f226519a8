"""Accounts, permissions and delegation tokens."""

from __future__ import annotations

import base64
import hashlib

import jwt
import pytest

from segstore.server.controller.auth import Accounts, Authority, Permission
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.errors import EmptyName, PermissionDenied, Unauthenticated
from segstore.server.controller.resources import permission_to_write, scope_resource, stream_resource, user_resource

KEY = "0123456789abcdef" * 4


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def hashed(password: str) -> str:
    """A password as Pravega's tool writes it: hex of iterations:salt:hash, the latter two in hex themselves."""
    salt = bytes(range(32))
    stored = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 50, 64)
    return f"50:{salt.hex()}:{stored.hex()}".encode().hex()


def authority(*lines: str, key: str | None = KEY, ttl_s: int = 600) -> Authority:
    return Authority(Accounts(lines) if lines else None, key, ttl_s=ttl_s, now_s=lambda: 1_000.9)


@pytest.mark.parametrize("stored", ["secret", hashed("secret")])
def test_a_user_is_known_by_a_plain_or_a_hashed_password(stored: str) -> None:
    known = authority("# people", "", f"anna:{stored}:prn::*,READ")
    for _ in range(2):
        assert known.principal(basic("anna", "secret")) == "anna"
    for wrong in (basic("anna", "Secret"), basic("otto", "secret"), "Basic ***", "Basic " + "YQ=="):
        with pytest.raises(Unauthenticated):
            known.principal(wrong)


@pytest.mark.parametrize("header", [None, "", "Bearer x", "Basic", "Basic "])
def test_no_credentials_are_nobody(header: str | None) -> None:
    known = authority("anna:secret")
    assert known.principal(header) is None
    with pytest.raises(Unauthenticated):
        known.check(None, "prn::/", Permission.READ)


def test_the_first_entry_that_matches_decides() -> None:
    known = authority("anna:x:prn::/scope:a/stream:s,READ; prn::/scope:a*,READ_UPDATE;prn::/*,NONE")
    assert known.allows("anna", stream_resource("a", "s"), Permission.READ)
    assert not known.allows("anna", stream_resource("a", "s"), Permission.READ_UPDATE)
    assert known.allows("anna", stream_resource("a", "t"), Permission.READ_UPDATE)
    with pytest.raises(PermissionDenied) as denied:
        known.check("anna", scope_resource("b"), Permission.READ)
    assert (denied.value.principal, denied.value.permission, denied.value.resource) == ("anna", "READ", "prn::/scope:b")


def test_without_entries_a_user_may_do_everything_and_with_none_nothing() -> None:
    known = authority("all:x", "none:x:")
    assert known.allows("all", scope_resource("a"), Permission.READ_UPDATE)
    assert not known.allows("none", scope_resource("a"), Permission.READ)


@pytest.mark.parametrize("line", ["anna", ":x", "anna:x:prn::*", "anna:x:prn::*,WRITE"])
def test_a_line_that_is_none_is_told_by_its_number_alone(line: str) -> None:
    with pytest.raises(ValueError, match="line 2") as refused:
        Accounts(["# people", line])
    assert line not in str(refused.value)


def test_a_token_carries_the_permission_and_when_it_ends() -> None:
    token = authority().token("prn::/scope:a/stream:s", Permission.READ_UPDATE)
    claims = jwt.decode(
        token, KEY, algorithms=["HS512"], audience="segmentstore", options={"verify_exp": False, "verify_iat": False}
    )
    assert claims["prn::/scope:a/stream:s"] == "READ_UPDATE"
    assert (claims["sub"], claims["exp"]) == ("segmentstoreresource", 1_600)
    header, payload, signature = token.split(".")
    assert header
    assert signature
    assert b'"exp":1600' in base64.urlsafe_b64decode(payload + "==")


def test_a_token_can_be_good_for_ever_or_be_none() -> None:
    assert "exp" not in jwt.decode(authority(ttl_s=-1).token("x", Permission.READ), options={"verify_signature": False})
    assert authority(key=None).token("x", Permission.READ) == ""


def test_without_a_password_file_everybody_may_do_everything() -> None:
    authority().check(None, scope_resource("a"), Permission.READ_UPDATE)


def test_passwords_appear_in_no_repr() -> None:
    known = authority("anna:secret")
    assert "secret" not in repr(known) + repr(vars(known))
    assert KEY not in repr(known)


def test_internal_streams_belong_to_what_they_serve() -> None:
    assert user_resource("a", "_RGg") == "prn::/scope:a/reader-group:g"
    assert user_resource("a", "_MARKs") == "prn::/scope:a/stream:s"
    assert user_resource("a", "s") == "prn::/scope:a/stream:s"
    config = ControllerConfig()
    assert permission_to_write("_RGg", config) is permission_to_write("_MARKs", config) is Permission.READ
    assert permission_to_write("s", config) is Permission.READ_UPDATE
    with pytest.raises(EmptyName):
        stream_resource("a", "")
