"""The certificates of `make cert` are what a client that checks them takes, and are kept as long as they are good."""

from __future__ import annotations

import datetime
import runpy
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from segstore.server import MockSegmentStore
from segstore.wire import Hello
from tests.server.support import HELLO, Peer

ROOT = Path(__file__).parent.parent.parent
make_cert = runpy.run_path(str(ROOT / "tools" / "make_cert.py"))
NOW = datetime.datetime(2031, 5, 6, tzinfo=datetime.UTC)


def trusting(ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.usefixtures("loop_is_left_clean")
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
async def test_a_store_with_them_answers_a_client_that_checks_its_name(name: str, tmp_path: Path) -> None:
    files = make_cert["make"](tmp_path / "certs")
    async with (
        MockSegmentStore(tls_cert=files.cert, tls_key=files.key) as store,
        await Peer.connect(store, ssl=trusting(files.ca), server_hostname=name) as peer,
    ):
        assert await peer.ask(HELLO) == [Hello(17, 5)]


@pytest.mark.usefixtures("loop_is_left_clean")
async def test_a_client_refuses_them_under_another_name_and_without_the_authority(tmp_path: Path) -> None:
    files, others = make_cert["make"](tmp_path / "certs"), make_cert["make"](tmp_path / "others")
    async with MockSegmentStore(tls_cert=files.cert, tls_key=files.key) as store:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await Peer.connect(store, ssl=trusting(files.ca), server_hostname="elsewhere")
        with pytest.raises(ssl.SSLCertVerificationError):
            await Peer.connect(store, ssl=trusting(others.ca), server_hostname="localhost")


def test_the_server_certificate_is_no_authority_and_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    files = make_cert["make"](tmp_path)
    ca, server = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (files.ca, files.cert))
    assert [each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for each in (ca, server)] == [
        True,
        False,
    ]
    assert server.issuer == ca.subject != server.subject
    server.verify_directly_issued_by(ca)
    for key in (files.key, files.ca_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_what_is_good_is_kept_and_what_is_not_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"
    files = make_cert["files_in"](folder)

    def run() -> tuple[str, list[bytes]]:
        assert make_cert["main"]([str(folder)]) == 0
        return capsys.readouterr().out, [path.read_bytes() for path in files]

    said, first = run()
    assert f"segstore serve --tls-cert {files.cert} --tls-key {files.key}\n" in said
    assert str(files.ca.resolve()) in said
    assert said.startswith("made")
    said, second = run()
    assert said.startswith("kept")
    assert second == first
    files.key.write_bytes(b"not a key")
    said, third = run()
    assert said.startswith("made")
    assert not set(third) & set(first)


@pytest.mark.parametrize(("age", "good"), [({"days": 8}, True), ({"days": 9, "hours": 1}, False)])
def test_certificates_are_good_until_a_day_before_they_end(age: dict[str, Any], good: bool, tmp_path: Path) -> None:
    files = make_cert["make"](tmp_path, days=10, now=NOW)
    assert make_cert["is_good"](files, NOW + datetime.timedelta(**age)) is good


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.write_bytes(b"")
    assert make_cert["main"]([str(taken)]) == 1
    assert str(taken) in capsys.readouterr().err
