"""Accounts, permissions and delegation tokens."""

import asyncio
import base64
import hashlib
import threading
from types import SimpleNamespace

import jwt
import pytest

from segstore.server.auth import Permission
from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import Accounts, Authority
from segstore.server.controller.api.caller import permission_to_write, scope_resource, stream_resource, user_resource
from segstore.server.controller.errors import EmptyName, PermissionDenied, Unauthenticated, UnusableEntry
from tests.looped import looped

KEY = "0123456789abcdef" * 4


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def hashed(password: str, iterations: int = 50) -> str:
    """A password as Pravega's tool writes it: hex of iterations:salt:hash, the latter two in hex themselves."""
    salt = bytes(range(32))
    stored = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations, 64)
    return f"{iterations}:{salt.hex()}:{stored.hex()}".encode().hex()


def authority(*lines: str, key: str | None = KEY, ttl_s: int = 600) -> Authority:
    return Authority(Accounts(lines) if lines else None, key, ttl_s=ttl_s, now_s=lambda: 1_000.9)


@looped("stored", ["secret", hashed("secret")])
async def test_a_user_is_known_by_a_plain_or_a_hashed_password(stored: str) -> None:
    known = authority("# people", "", f"anna:{stored}:prn::*,READ")
    for _ in range(2):
        assert await known.principal(basic("anna", "secret")) == "anna"
    for wrong in (basic("anna", "Secret"), basic("otto", "secret"), basic("otto", ""), "Basic ***", "Basic " + "YQ=="):
        with pytest.raises(Unauthenticated):
            await known.principal(wrong)


@looped("header", [None, "", "Bearer x", "Basic", "Basic "])
async def test_without_credentials_a_caller_is_not_known(header: str | None) -> None:
    known = authority("anna:secret")
    assert await known.principal(header) is None
    with pytest.raises(Unauthenticated, match="no credentials of the scheme Basic, the only one"):
        known.check(None, "prn::/", Permission.READ)


def test_the_first_entry_that_matches_decides() -> None:
    known = authority("anna:x:prn::/scope:a/stream:s,READ; prn::/scope:a*,READ_UPDATE;prn::/*,NONE")
    assert known.allows("anna", stream_resource("a", "s"), Permission.READ)
    assert not known.allows("anna", stream_resource("a", "s"), Permission.READ_UPDATE)
    assert known.allows("anna", stream_resource("a", "t"), Permission.READ_UPDATE)
    with pytest.raises(PermissionDenied) as denied:
        known.check("anna", scope_resource("b"), Permission.READ)
    assert (denied.value.principal, denied.value.permission, denied.value.resource) == ("anna", "READ", "prn::/scope:b")


def test_without_entries_a_user_may_do_nothing_unless_the_password_is_plain_and_there_is_no_third_field() -> None:
    known = authority("all:x", "none:x:", f"theirs:{hashed('x')}")
    assert known.allows("all", scope_resource("a"), Permission.READ_UPDATE)
    assert not known.allows("none", scope_resource("a"), Permission.READ)
    assert not known.allows("theirs", scope_resource("a"), Permission.READ)


@looped("line", ["anna", ":x", "anna:x:prn::", "anna:x:prn::*,WRITE", "anna:x:*,READ_UPDATE"])
def test_a_line_or_an_entry_of_another_form_grants_nothing_and_is_logged_by_its_number(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    known = authority("# people", line, "otto:y:prn::*,READ")
    assert not known.allows("anna", scope_resource("a"), Permission.READ)
    assert known.allows("otto", scope_resource("a"), Permission.READ)
    (logged,) = caplog.messages
    assert logged.startswith("line 2 of the password file: ")
    assert line not in logged


def test_an_entry_that_cannot_be_matched_refuses_what_reaches_it() -> None:
    known = authority("anna:x:prn::/scope:a,READ;prn::/scope:(,READ;prn::*,READ_UPDATE")
    known.check("anna", scope_resource("a"), Permission.READ)
    with pytest.raises(UnusableEntry):
        known.check("anna", scope_resource("b"), Permission.READ)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The computed hashes: name of the thread, and number of iterations."""
    computed: list[tuple[str, int]] = []

    def pbkdf2(name: str, password: bytes, salt: bytes, iterations: int, length: int) -> bytes:
        computed.append((threading.current_thread().name, iterations))
        return hashlib.pbkdf2_hmac(name, password, salt, iterations, length)

    monkeypatch.setattr(
        "segstore.server.controller.api.auth.hashlib", SimpleNamespace(pbkdf2_hmac=pbkdf2, sha256=hashlib.sha256)
    )
    return computed


@pytest.mark.parametrize("user", ["slow", "quick", "plain", "nobody", ""])
async def test_a_wrong_password_costs_the_same_for_every_user_known_or_not(
    user: str, hashes: list[tuple[str, int]]
) -> None:
    known = authority(f"quick:{hashed('a', 20)}", "plain:a", f"slow:{hashed('a', 50)}")
    with pytest.raises(Unauthenticated):
        await known.principal(basic(user, "b"))
    assert sum(iterations for _, iterations in hashes) == 50
    assert threading.main_thread().name not in {thread for thread, _ in hashes}


async def test_calls_with_the_same_credentials_wait_for_one_check(hashes: list[tuple[str, int]]) -> None:
    known = authority(f"anna:{hashed('secret')}")
    assert set(await asyncio.gather(*[known.principal(basic("anna", "secret")) for _ in range(200)])) == {"anna"}
    assert len(hashes) == 1


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


def test_a_token_can_have_no_expiry_or_be_empty() -> None:
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
    assert user_resource("a", "s") == user_resource("a", "_MARKs") == "prn::/scope:a/stream:s"
    assert user_resource("a", "_RGg_RGh") == "prn::/scope:a/reader-group:gh", "as the reference names it"
    assert user_resource("a", "s_MARK") == "prn::/scope:a/stream:s_MARK"
    for empty in ("_RG", "_MARK", "_RG_RG"):
        with pytest.raises(EmptyName):
            user_resource("a", empty)
    config = ControllerConfig()
    assert permission_to_write("_RGg", config) is permission_to_write("_MARKs", config) is Permission.READ
    assert permission_to_write("s", config) is Permission.READ_UPDATE
    with pytest.raises(EmptyName):
        stream_resource("a", "")
