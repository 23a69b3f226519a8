"""Files that hold a secret: what is read, what is refused, and that no message shows any of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from segstore.server.secret_file import read_secret


def secret(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_the_end_of_the_line_is_not_part_of_a_secret(tmp_path: Path, end: bytes) -> None:
    assert read_secret(secret(tmp_path, " pä ss".encode() + end)) == " pä ss"


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "is empty"), (b"\n", "is empty"), (b"ab\xffcd", "is not UTF-8 at byte 2")]
)
def test_a_file_without_a_secret_is_refused_by_name_and_nothing_of_it_is_shown(
    tmp_path: Path, data: bytes, why: str
) -> None:
    path = secret(tmp_path, data)
    with pytest.raises(ValueError, match=why) as refused:
        read_secret(path)
    assert str(refused.value) == f"{path} {why}"
    assert refused.value.__cause__ is None


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_secret(tmp_path / "none")


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
