"""Epochs of a container: the last to open it wins, and the others find out."""

import errno
import shutil
from pathlib import Path

import pytest

from segstore.server.durable import DirectoryDamaged, DirectoryUnusable, Files
from segstore.server.durable.data_directory import JournalFile
from segstore.server.durable.fence import ContainerEpoch, Fenced, FencedDirectory, current, epochs_of


def test_each_claim_starts_the_next_epoch_and_ends_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "3"
    folder.mkdir()
    assert epochs_of(folder) == []
    first = ContainerEpoch.claim(folder)
    assert (first.number, first.path, first.folder) == (1, folder / "epoch-0000000001", folder)
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.check()
    assert not first.is_over
    second = ContainerEpoch.claim(folder)
    assert (second.number, epochs_of(folder)) == (2, [1, 2])
    assert (first.is_over, first.is_known_over, second.is_over, second.is_known_over) == (True, True, False, False)
    with pytest.raises(Fenced) as fenced:
        first.check()
    assert (fenced.value.path, fenced.value.epoch) == (folder, 1)
    assert str(fenced.value) == f"{folder} was opened by another store; epoch 1 has ended"


def test_the_folders_of_older_epochs_are_removed_and_their_owners_still_find_out(tmp_path: Path) -> None:
    made = [ContainerEpoch.claim(tmp_path) for _ in range(3)]
    (made[0].path / "journal").write_text("data")
    assert [each.number for each in made[2].older()] == [2, 1]
    assert [each.path for each in made[1].older()] == [made[0].path]
    made[2].remove_older()
    assert epochs_of(tmp_path) == [3]
    assert [each.is_over for each in made] == [True, True, False]
    assert ContainerEpoch.claim(tmp_path).number == 4
    made[2].path.rmdir()
    assert made[2].is_over


def test_other_names_are_no_epochs_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    for name in ("epoch-1", "epoch-00000000012", "an-epoch-0000000001", "epoch-0000000009"):
        (tmp_path / name).mkdir()
    assert epochs_of(tmp_path) == [9]
    assert epochs_of(tmp_path / "nowhere") == []
    assert ContainerEpoch.claim(tmp_path).number == 10


def test_a_claim_that_another_makes_first_takes_the_number_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    mkdir = Path.mkdir

    def raced(path: Path, *given: int) -> None:
        if not taken:
            taken.append(path)
            mkdir(path)
        mkdir(path, *given)

    monkeypatch.setattr(Path, "mkdir", raced)
    assert ContainerEpoch.claim(tmp_path).number == 2
    assert epochs_of(tmp_path) == [1, 2]


def test_a_disk_that_cannot_be_read_does_not_say_that_an_epoch_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = ContainerEpoch.claim(tmp_path)

    def fail(_: Path) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "exists", fail)
    assert not epoch.is_known_over
    with pytest.raises(OSError, match="Input/output"):
        epoch.check()


class Full(Files):
    def create(self, path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def adopted(epoch: ContainerEpoch, files: Files | None = None) -> FencedDirectory:
    return FencedDirectory.adopt(epoch, containers=4, held=(3,), cluster="ours", files=files)


def test_an_epoch_whose_disk_is_full_is_refused_with_its_path_and_leaves_nothing(tmp_path: Path) -> None:
    epoch = ContainerEpoch.claim(tmp_path)
    with pytest.raises(DirectoryUnusable, match="No space left on device") as refused:
        adopted(epoch, Full())
    assert refused.value.path == epoch.path
    assert str(epoch.path) in str(refused.value)
    assert list(epoch.path.iterdir()) == []
    later = ContainerEpoch.claim(tmp_path)
    with pytest.raises(Fenced):
        adopted(epoch, Full())
    assert epochs_of(tmp_path) == [1, 2]
    assert later.older()[0].path == epoch.path


def test_older_epochs_that_cannot_be_removed_are_left_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied", str(path))

    adopted(ContainerEpoch.claim(tmp_path)).change(numbers=7)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        adopted(ContainerEpoch.claim(tmp_path)).change(numbers=8)
        assert epochs_of(tmp_path) == [1, 2]
    third = adopted(ContainerEpoch.claim(tmp_path))
    assert third.manifest.numbers == 8
    third.change(numbers=9)
    assert epochs_of(tmp_path) == [3]


def test_the_latest_epoch_with_a_manifest_is_current(tmp_path: Path) -> None:
    epochs = [ContainerEpoch.claim(tmp_path) for _ in range(3)]
    assert current(epochs) is None
    for epoch in epochs[:2]:
        (epoch.path / "MANIFEST").touch()
    assert current(epochs) is epochs[1]


def test_an_epoch_whose_predecessor_has_lost_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    first = adopted(ContainerEpoch.claim(tmp_path))
    first.change(journals=(JournalFile(1, 0), JournalFile(2, 0)))
    first.note(5)
    (first.path / "journal-0000000001").touch()
    for missing in (first.path / "journal-0000000002", first.path / "MANIFEST"):
        missing.unlink(missing_ok=True)
        second = ContainerEpoch.claim(tmp_path)
        with pytest.raises(DirectoryDamaged, match="it is missing") as damaged:
            adopted(second)
        assert damaged.value.file == missing
        assert list(second.path.iterdir()) == [], "what it had taken over is removed"
    shutil.rmtree(first.path)
    with pytest.raises(DirectoryDamaged) as damaged:
        adopted(ContainerEpoch.claim(tmp_path))
    assert damaged.value.file == tmp_path / "epoch-0000000002" / "MANIFEST"


def test_an_epoch_takes_over_what_its_predecessor_has_and_removes_it_when_it_is_in_force(tmp_path: Path) -> None:
    first = adopted(ContainerEpoch.claim(tmp_path))
    first.change(numbers=7)
    first.note(5)
    for name in ("chunk-0000000001", "letters.txt"):
        (first.path / name).write_bytes(b"data")
    second = adopted(ContainerEpoch.claim(tmp_path))
    assert (second.manifest, second.committed) == (first.manifest, 5)
    assert {each.name for each in second.path.iterdir()} == {"chunk-0000000001", "committed"}
    assert (second.path / "chunk-0000000001").samefile(first.path / "chunk-0000000001")
    assert epochs_of(tmp_path) == [1, 2], "it has no manifest yet"
    assert (first.is_over, second.is_over) == (True, False)
    with pytest.raises(Fenced):
        first.note(6)
    with pytest.raises(Fenced):
        first.change(numbers=8)
    second.change(batch=5)
    assert epochs_of(tmp_path) == [2]
    (tmp_path / "epoch-0000000001").mkdir()
    second.change(batch=6)
    assert epochs_of(tmp_path) == [1, 2], "folders of earlier epochs are looked for once"
    for each in (first, second):
        each.close()
