"""Addresses of servers as text."""

import pickle

import pytest

from segstore.wire.endpoint import Endpoint
from tests.looped import looped


@looped(
    ("text", "endpoint"),
    [("a:1", Endpoint("a", 1)), ("[::1]:65535", Endpoint("::1", 65535)), ("127.0.0.1:0", Endpoint("127.0.0.1", 0))],
)
def test_an_endpoint_is_read_as_it_is_written(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint
    assert str(endpoint) == text
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


def test_clients_are_told_an_ipv6_address_in_brackets_and_may_tell_one() -> None:
    for host, named in (("::1", "[::1]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("a.b", "a.b")):
        assert Endpoint(host, 1).named_host == named
        assert str(Endpoint(host, 1)) == f"{named}:1"
        assert Endpoint.checked(named, 1) == Endpoint(named.strip("[]"), 1)


@looped(
    "text",
    [
        "",
        "a",
        ":1",
        "a:",
        "a:x",
        "a:-1",
        "a:65536",
        "a:²",
        "[]:80",
        "[::1:80",
        "a]:1",
        "[[x]]:2",
        "a\0:1",
        "a..b:1",
        "x" * 64 + ":1",
        "a:" + "9" * 5000,
    ],
)
def test_a_text_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no HOST:PORT$"):
        Endpoint.parse(text)
