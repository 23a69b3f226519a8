"""`segstore verify` for a cluster's folder: every epoch of every container and of the controller.

A container's current epoch is the latest epoch that was ever in force; the next opening takes it over. Earlier epochs
are leftovers of interrupted takeovers; problems in them are notes, not faults, because they are never read.

Invariant: no file is changed. Refused with `DataError`: a folder that is in use, in a newer format, or not a cluster's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from segstore.server.durable import (
    ContainerEpoch,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryInUse,
    current,
    epochs_of,
    lost,
    verify,
)
from segstore.server.shared_folder.identity import read_identity
from segstore.server.shared_folder.storage import SharedFolder


class VerifiedCluster(NamedTuple):
    """Result of a verification. faults: a sentence per fault. notes: a sentence per other finding."""

    faults: list[str]
    notes: list[str]


def verify_cluster(path: Path) -> VerifiedCluster:
    """Reads and verifies a cluster's folder. Raises `DataError`, `OSError`."""
    try:
        folder = read_identity(path)
    except DirectoryDamaged as error:
        return VerifiedCluster([str(error)], [])
    if folder is None:
        raise DirectoryForeign(path, f"{path} is not a cluster's folder")
    result = VerifiedCluster([], [f"{path} is that of cluster {folder.cluster}, of {folder.containers} containers"])
    parts = {folder.container(number): (number,) for number in range(folder.containers)} | {folder.controller: ()}
    for part, held in parts.items():
        try:
            folder.check(part)
            _verify(part, folder, held, result)
        except (DirectoryDamaged, OSError) as error:
            result.faults.append(str(error))
    return result


def _verify(folder: Path, cluster: SharedFolder, held: tuple[int, ...], result: VerifiedCluster) -> None:
    epochs = [ContainerEpoch(folder, epoch) for epoch in epochs_of(folder)]
    present = current(epochs)
    if present is None:
        if (missing := lost(epochs)) is not None:
            result.faults.append(str(DirectoryDamaged(folder, missing, "it is missing", within=cluster.path)))
        else:
            result.notes.append(f"{folder} was never opened")
        return
    for epoch in epochs:
        if epoch.number > present.number:
            result.notes.append(f"{folder}: epoch {epoch.number} was never in force")
        elif epoch.number == present.number:
            read = verify(epoch.path, (cluster.cluster, cluster.containers, held))
            result.faults.extend(read.faults)
            result.notes.extend(read.notes)
            how = f"{len(read.faults)} faults are in it" if read.faults else "all are as they were written"
            result.notes.append(
                f"{folder}: epoch {epoch.number} is current, {read.files} files, up to batch {read.batches}; {how}"
            )
        else:
            result.notes.append(f"{folder}: epoch {epoch.number} is older and was not removed; {_of_older(epoch)}")


def _of_older(epoch: ContainerEpoch) -> str:
    try:
        faults = verify(epoch.path).faults
    except DirectoryInUse:
        return "a process that has lost it still has it open"
    except DirectoryForeign:
        return "it has no manifest any more"
    if faults:
        return f"it is no longer read, and is incomplete: {faults[0]}"
    return "all that it names is as it was written"
