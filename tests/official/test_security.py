"""TLS, passwords and delegation tokens with the official client."""

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from tests.official.client import ClientFailed, OfficialClient, run
from tests.official.support import MARKS, eventually, uri

pytestmark = MARKS

ROOT = Path(__file__).parents[2]
KEY = "a key that is long enough for what signs with it, which asks for sixty-four bytes"
USERS = ["admin:secret", "reader:look:prn::*,READ", "nobody:none:"]


def as_user(name: str, password: str) -> dict[str, str]:
    return {
        "pravega_client_auth_method": "Basic",
        "pravega_client_auth_username": name,
        "pravega_client_auth_password": password,
    }


def guarded(**more: Any) -> MockCluster:
    """A cluster that asks who comes."""
    return MockCluster(
        2, watched=False, authority=Authority(Accounts(USERS), KEY, now_s=time.time), auth_key=KEY, **more
    )


async def found_by(cluster: MockCluster, scenario: str, environment: dict[str, str], **arguments: Any) -> Any:
    address = uri(cluster, "tls" if cluster.settings.store.tls_cert else "tcp")
    async with OfficialClient(address, scenario, environment=environment, **arguments) as client:
        return await client.result()


def make_certificates(folder: Path) -> Any:
    """The files that `make cert` makes."""
    place = str(ROOT / "tools")
    sys.path.insert(0, place)
    try:
        return importlib.import_module("make_cert").make(folder)
    finally:
        sys.path.remove(place)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def test_a_known_user_may_what_its_entries_say() -> None:
    async with guarded() as cluster:
        admin = await found_by(cluster, "management.who", as_user("admin", "secret"), scope="a")
        reader = await found_by(cluster, "management.who", as_user("reader", "look"), scope="b")
        nobody = await found_by(cluster, "management.who", as_user("nobody", "none"), scope="c")
    assert admin == {"scope": {"gives": True}, "stream": {"gives": True}, "listed": {"gives": ["a"]}}
    assert reader["listed"] == {"gives": ["a"]}
    for refused in (reader["scope"], reader["stream"], nobody["scope"], nobody["stream"]):
        assert refused["fails"] == "ValueError"
        assert "PermissionDenied" in refused["text"]
    assert "a" not in nobody["listed"].get("gives", [])


async def test_strangers_are_not_served() -> None:
    """The client takes "unauthenticated" for something that passes, and tries again for a minute; it is killed."""
    strangers = {"b": as_user("admin", "guess"), "c": as_user("stranger", "secret"), "d": {}}
    async with guarded() as cluster:
        refused: list[str] = []
        authority = cluster._authority
        asked = authority.principal

        async def principal(header: str | None) -> str | None:
            refused.append(header or "")
            return await asked(header)

        authority.principal = principal  # type: ignore[method-assign]
        for scope, environment in strangers.items():
            refused.clear()
            async with OfficialClient(uri(cluster), "management.who", environment=environment, scope=scope) as client:
                await eventually(lambda: len(refused) >= 3, "the client has tried three times")
                await client.kill()
            assert not cluster.controller.scopes.exists(scope)


async def test_events_and_transactions_go_through_with_tokens() -> None:
    async with guarded() as cluster:
        environment = as_user("admin", "secret")
        found = await found_by(
            cluster, "secured.write_and_read", environment, tls=False, keys=20, per_key=200, large=9_000_000
        )
    assert found == {"events": 4001, "wrong": [], "transaction": 1}


async def test_a_client_with_a_token_of_another_key_does_not_get_through() -> None:
    """The controller signs with a key that the stores do not know; the client is told so and gives up."""
    other = Authority(Accounts(USERS), KEY[::-1], now_s=time.time)
    async with MockCluster(watched=False, authority=other, auth_key=KEY) as cluster:
        found = await found_by(cluster, "secured.try_to_write", as_user("admin", "secret"))
        assert found["fails"] in ("ValueError", "PanicException"), found


async def test_tls_with_and_without_passwords(certificates: Any) -> None:
    trusted = {"pravega_client_tls_cert_path": str(certificates.ca)}
    tls = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    async with MockCluster(2, watched=False, **tls) as cluster:
        assert cluster.controller_uri.startswith("localhost:")
        found = await found_by(cluster, "secured.write_and_read", trusted, tls=True, auth=False, keys=10, per_key=200)
        assert found == {"events": 2000, "wrong": [], "transaction": 1}
    async with guarded(**tls) as cluster:
        environment = {**trusted, **as_user("admin", "secret")}
        found = await found_by(cluster, "secured.write_and_read", environment, tls=True, keys=10, per_key=200)
        assert found == {"events": 2000, "wrong": [], "transaction": 1}


async def test_a_client_that_trusts_another_authority_is_not_served(certificates: Any, tmp_path: Path) -> None:
    others = make_certificates(tmp_path)
    async with MockCluster(watched=False, tls_cert=certificates.cert, tls_key=certificates.key) as cluster:
        environment = {"pravega_client_tls_cert_path": str(others.ca)}
        async with OfficialClient(uri(cluster, "tls"), "secured.connect", environment=environment) as client:
            with pytest.raises(ClientFailed):
                await client.result(3)
        assert not cluster.controller.scopes.exists("a")
        environment = {"pravega_client_tls_cert_path": str(certificates.ca)}
        assert await run(uri(cluster, "tls"), "secured.connect", environment=environment) is True
