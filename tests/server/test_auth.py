"""Delegation tokens as a segment store checks them, and files that hold a secret."""

import logging
from pathlib import Path

import pytest

from segstore.server.auth import Permission, TokenExpired, TokenRefused, TokenVerifier, read_secret
from segstore.server.controller.api import Authority
from tests.looped import looped

LONG = "0123456789abcdef" * 4


@looped("key", ["k", LONG])
def test_a_token_of_the_controller_is_checked_and_a_short_key_brings_no_warning(key: str) -> None:
    """Warnings are errors here; a server would print them for each token."""
    token = Authority(None, key, ttl_s=7, now_s=lambda: 1_000.9).token("prn::/scope:a/stream:s", Permission.READ)
    verifier = TokenVerifier(key)
    assert verifier.verify("a/s/0.#epoch.0", token, Permission.READ, 1_006.9) == 1_007
    with pytest.raises(TokenExpired, match="expired 1 s ago"):
        verifier.verify("a/s/0.#epoch.0", token, Permission.READ, 1_008.0)
    for segment, level in (("a/s/0.#epoch.0", Permission.READ_UPDATE), ("a/s2/0.#epoch.0", Permission.READ)):
        with pytest.raises(TokenRefused, match="does not give"):
            verifier.verify(segment, token, level, 1_001.0)
    with pytest.raises(TokenRefused, match="not valid"):
        TokenVerifier(key + "1").verify("a/s/0.#epoch.0", token, Permission.READ, 1_001.0)


def test_a_token_for_a_stream_of_a_tables_name_is_none_for_the_tables_segments() -> None:
    """What the Java client asks for when it uses a table; so in the reference, where that is an open issue."""
    token = Authority(None, LONG, now_s=lambda: 1_000.0).token("prn::/scope:a/stream:t", Permission.READ_UPDATE)
    verifier = TokenVerifier(LONG)
    assert verifier.verify("a/t/0.#epoch.0", token, Permission.READ_UPDATE, 1_001.0) is not None
    with pytest.raises(TokenRefused, match="does not give READ on"):
        verifier.verify("a/t_kvtable/0.#epoch.0", token, Permission.READ, 1_001.0)


def secret(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_the_end_of_the_line_is_not_part_of_a_secret(tmp_path: Path, end: bytes) -> None:
    assert read_secret(secret(tmp_path, " pä ss".encode() + end)) == " pä ss"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True), (0o611, False)])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = secret(tmp_path, b"hidden", mode)
    with caplog.at_level(logging.WARNING):
        assert read_secret(path) == "hidden"
    assert [record.getMessage() for record in caplog.records] == (
        [f"other users can read {path}: chmod 600 {path}"] if warned else []
    )
