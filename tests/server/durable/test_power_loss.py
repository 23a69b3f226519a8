"""Served data survives a power loss, even if a killed process, or one with a failed sync, had left it only in memory.

Without the recorder, tests remove the last group of a life by hand. With it, they run a short version of `make soak`.
"""

import re
from pathlib import Path

import pytest

from tests.power_loss.life import CONTAINERS, Opened, open_data
from tests.power_loss.recording import run_recorded
from tests.server.durable.support import write

NAME = "scope/stream/0.#epoch.0"
ROOM_BYTES = 4 << 20


async def opened(kind: str, path: Path) -> Opened:
    """A store that serves, with a journal large enough for a whole test."""
    found = await open_data(kind, path)
    found.durability._journal_bytes = ROOM_BYTES
    await found.durability.start()
    return found


async def closed(store: Opened) -> None:
    """Leaves the directory as a killed process does."""
    await store.durability.committer.settled()
    await store.durability.close(last_snapshot=False)


def logs(path: Path) -> dict[str, Path]:
    """Name → journal. Names are never reused."""
    return {each.name: each for each in path.rglob("journal-*")}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("before", [100, 2_000_000], ids=["a short journal", "a long one"])
async def test_what_was_never_synced_and_is_served_is_on_disk(tmp_path: Path, kind: str, before: int) -> None:
    path = tmp_path / "data"
    first = await opened(kind, path)
    first.store.create_segment(NAME, now_ms=1)
    for data in (bytes(before), b"synced"):
        write(first.store, NAME, data)
        await first.durability.committer.settled()
    synced = {name: each.read_bytes() for name, each in logs(path).items()}
    write(first.store, NAME, b"not synced")
    await closed(first)

    second = await opened(kind, path)
    served = second.digest()
    assert second.store.segment(NAME).length == before + 16
    write(second.store, NAME, b"acknowledged")
    after = second.digest()
    await closed(second)
    assert after != served

    kept = [each for name, each in logs(path).items() if name in synced]
    assert len(kept) == (before > 1_000_000)  # a journal that was copied completely is removed
    for each in kept:
        assert each.read_bytes() != synced[each.name]
        each.write_bytes(synced[each.name])
    third = await open_data(kind, path)
    assert third.digest() == after
    await third.durability.close()


@pytest.mark.parametrize("kind", CONTAINERS)
async def test_a_store_that_dies_early_again_and_again_does_not_fill_the_disk(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    journals = set()
    for life in range(12):
        store = await opened(kind, path)
        if life == 0:
            store.store.create_segment(NAME, now_ms=1)
        if life % 2:
            write(store.store, NAME, b"%d" % life)
        await closed(store)
        journals.add(len(logs(path)))
    assert max(journals) <= 2  # the current one, and a spare
    found = await open_data(kind, path)
    assert found.store.segment(NAME).length == 7
    await found.durability.close()


with_recorder = pytest.mark.needs("a C compiler on Linux")


@with_recorder
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_image_of_a_loss_of_power_holds_what_was_promised(tmp_path: Path) -> None:
    run = run_recorded(tmp_path, "-m", "tests.soak.power_loss", "--seed", "11", "--images", "150", capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "150 images of 30 lives" in run.stdout
    found = re.search(r"(\d+) batches acknowledged", run.stdout)
    assert int(found[1]) > 300, "without acknowledgements, nothing is promised"


TRUSTING = """
import sys
from segstore.server.durable.journal import Journals
from tests.soak.power_loss import main


def make_first(self, found, filled_bytes):
    self.ended = found.journals
    made, entry = self.make(65536)
    self.present = [entry]
    return made


Journals.make_first = make_first
sys.exit(main())
"""


@with_recorder
@pytest.mark.timeout(600)
def test_images_show_a_store_that_trusts_the_page_cache(tmp_path: Path) -> None:
    arguments = ("--seed", "11", "--images", "1000", "--folder", str(tmp_path))
    run = run_recorded(tmp_path, "-c", TRUSTING, *arguments, capture_output=True)
    assert run.returncode == 1, run.stdout + run.stderr
    said = run.stdout + run.stderr  # an image shows it, or the next life, which does not start
    assert "is followed by batch" in said or "was acknowledged or served" in said
