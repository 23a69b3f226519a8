"""Addresses, and what is said when a port cannot be listened on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from segstore.server.net import AddressInUse, CannotListen, address_text, listening_on, public_host, trusting
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.server.certificates import CERTIFICATE, read_once


def test_no_endpoint_has_no_text() -> None:
    assert address_text(Endpoint("::1", 5)) == "[::1]:5"
    assert address_text(None) is None


@looped(
    ("host", "tls", "public"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("127.0.0.2", True, "localhost"),
        ("::1", True, "localhost"),
        ("0.0.0.0", True, "127.0.0.1"),
        ("::", False, "::1"),
        ("store.example", True, "store.example"),
    ],
)
def test_clients_are_sent_to_a_name_that_they_can_connect_to(host: str, tls: bool, public: str) -> None:
    assert public_host(host, tls=tls) == public


def test_authorities_are_read_once_and_are_the_only_ones_trusted(tmp_path: Path) -> None:
    text = f"# Főtanúsítvány\n{CERTIFICATE}".encode()
    with read_once(tmp_path, text) as file:
        context, trusted = trusting(file)
    assert trusted == text
    assert [cert["subject"] for cert in context.get_ca_certs()] == [((("commonName", "localhost"),),)]
    assert trusting(None)[1] == b""


def test_a_taken_port_is_named_with_its_use_and_option() -> None:
    with pytest.raises(AddressInUse) as caught, listening_on("h", 5, "HTTP", "--http-port"):
        raise OSError(errno.EADDRINUSE, "taken")
    assert (caught.value.host, caught.value.port, caught.value.errno) == ("h", 5, errno.EADDRINUSE)
    said = "port 5 on h, for HTTP, is taken by another process; choose another with --http-port, or 0 for a free one"
    assert str(caught.value) == said


def test_another_error_of_a_port_says_why() -> None:
    with pytest.raises(CannotListen, match=r"^cannot listen on h port 5: No way$"), listening_on("h", 5):
        raise OSError(errno.EACCES, "No way")
    with (
        pytest.raises(CannotListen, match=r"^cannot listen on h port 5 for HTTP: no number$"),
        listening_on("h", 5, "HTTP"),
    ):
        raise OSError("no number")


def test_an_error_that_says_it_already_passes() -> None:
    first = CannotListen("the certificate cannot be used", "h", 5)
    with pytest.raises(CannotListen) as caught, listening_on("h", 5):
        raise first
    assert caught.value is first
