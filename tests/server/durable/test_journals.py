"""The numbers of a directory's files: given once, taken back if a file could not be made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from segstore.server.durable import Files
from segstore.server.durable.journal import JournalWriter
from tests.server.durable.support import running
from tests.server.support import until

NAME = "scope/stream/0.#epoch.0"


class WithoutManifests(Files):
    """Files of which no manifest can be replaced while `refusing` is set."""

    refusing = False

    def replace(self, source: Path, target: Path) -> None:
        if self.refusing and target.name == "MANIFEST":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(source, target)


class Closing(JournalWriter):
    """Records which journals were closed."""

    closed: list[Path]

    def close(self) -> None:
        self.closed.append(self.path)
        super().close()


async def test_a_journal_that_no_manifest_names_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "closed", [], raising=False)
    files = WithoutManifests()
    async with running(tmp_path, make_journal=Closing, files=files) as (durability, _):
        await until(lambda: durability.committer.next is not None)
        journals = durability._journals
        assert journals is not None
        closed, number = Closing.closed.copy(), journals.number
        files.refusing = True
        with pytest.raises(OSError, match="No space left"):
            journals.make(4096)
        assert Closing.closed == [*closed, tmp_path / f"journal-{number + 1:010d}"]
        files.refusing = False
        _, entry = journals.make(4096)
        assert entry.number == number + 2, "its files are there, so its number is not given again"
