"""The identity of a cluster's folder, checked against the identity in ZooKeeper, and the folder's verification.

The folder stores it in the file CLUSTER, the coordination service in the node /segstore/cluster. The first process
writes the file, then the node; neither ever changes. A coordination service without the node gets the folder's
identity, because it stores only the ownership of the data.

Refused, in one sentence and without any change: a folder of another cluster, or an empty folder if the cluster exists;
another number of containers; a folder of a single process, or with other contents.

`verify_cluster` reads every epoch of every container and of the controller, and changes no file. A container's current
epoch is the latest epoch that was ever in force; the next opening takes it over. Earlier epochs are leftovers of
interrupted takeovers, which nothing reads.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from segstore.server.coordination import CoordinationError, CoordinationSession, NodeExists
from segstore.server.durable import (
    CLUSTER_FILE,
    ContainerEpoch,
    DataDirectory,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryUnusable,
    Files,
    check_containers,
    check_entries,
    current,
    epochs_of,
    lost,
    read_signed,
    signed,
    verify,
)
from segstore.server.shared_folder.storage import SharedFolder

CLUSTER: Final = "/segstore/cluster"

_FOLDERS: Final = ("containers", "controller")


class _Identity(msgspec.Struct, frozen=True):
    cluster: str
    containers: int


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_Identity)


async def identify(session: CoordinationSession, where: str, path: Path, containers: int) -> SharedFolder:
    """Returns the folder at `path`, once folder and coordination service agree on the cluster.

    where: the coordination service's name in messages. Raises `DataError`, and the session's errors.
    """
    try:
        known = await _known(session, where)
        folder = read_identity(path)
        if folder is None:
            if known is not None:
                raise DirectoryForeign(
                    path,
                    f"{path} holds nothing of cluster {known.cluster}, which ZooKeeper at {where} knows; choose its "
                    "directory, or give the new cluster a name of its own: HOST:PORT/NAME",
                )
            folder = _make(SharedFolder(path, str(uuid.uuid4()), containers))
        # The process that wrote the file may have been killed before its name was on disk.
        files = Files()
        files.make_folder(path)
        files.sync_folder(path)
    except OSError as error:
        raise DirectoryUnusable(path, error) from error
    check_containers(path, folder.containers, containers)
    await confirm(session, where, folder)
    return folder


async def confirm(session: CoordinationSession, where: str, folder: SharedFolder) -> None:
    """Records the cluster in a coordination service, or checks that it is there. Raises as `identify` does."""
    ours, known = _Identity(folder.cluster, folder.containers), await _known(session, where)
    if known is None:
        with suppress(NodeExists):  # created by a concurrent process; whether it has the same folder is checked below
            await session.create(CLUSTER, _ENCODER.encode(ours))
        known = await _known(session, where)
    if known != ours:
        there = "no cluster any more" if known is None else f"cluster {known.cluster}"
        raise DirectoryForeign(
            folder.path,
            f"{folder.path} belongs to cluster {folder.cluster}, and ZooKeeper at {where} knows {there}; choose that "
            "one's directory, or give this one a name of its own: HOST:PORT/NAME",
        )


async def _known(session: CoordinationSession, where: str) -> _Identity | None:
    node = await session.get(CLUSTER)
    if node is None:
        return None
    try:
        return _DECODER.decode(node.data)
    except msgspec.DecodeError as error:
        raise CoordinationError(
            f"node {CLUSTER} of ZooKeeper at {where} is not a cluster's ({error}); use another name: HOST:PORT/NAME",
            CLUSTER,
        ) from error


def read_identity(path: Path) -> SharedFolder | None:
    """Returns a folder's identity; None if it is empty or does not exist. Raises `DataError`."""
    if not path.exists():
        return None
    if not path.is_dir():
        raise DirectoryForeign(path, f"{path} is not a directory")
    file = path / CLUSTER_FILE
    try:
        check_entries(path)
        identity = read_signed(b"cluster", file, _DECODER)
    except FileNotFoundError:
        if DataDirectory.is_one(path):
            raise DirectoryForeign(
                path, f"{path} is that of one process; start it without --zookeeper, or choose another one"
            ) from None
        others = sorted(child.name for child in path.iterdir() if not _is_remnant(child))
        if not others:
            return None
        if file.exists():  # created meanwhile
            return read_identity(path)
        if others[0] in _FOLDERS:
            raise DirectoryDamaged(path, file, "it is missing") from None
        raise DirectoryForeign(
            path, f"{path} is not a cluster's, it holds {others[0]!r}; choose an empty one or a new name"
        ) from None
    return SharedFolder(path, identity.cluster, identity.containers)


def _is_remnant(path: Path) -> bool:
    """Whether a path is a remnant of an interrupted `_make`."""
    if path.name in _FOLDERS:
        return path.is_dir() and all(child.is_dir() for child in path.rglob("*"))
    return path.name.startswith(f"{CLUSTER_FILE}.")


def _make(folder: SharedFolder) -> SharedFolder:
    """Writes the folder's identity, or reads it if another process was first."""
    folder.make()
    new, file = folder.path / f"{CLUSTER_FILE}.{folder.cluster}", folder.path / CLUSTER_FILE
    try:
        Files().write_new(new, signed(b"cluster", _Identity(folder.cluster, folder.containers)))
        with suppress(FileExistsError):  # a concurrent process was first
            file.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
    return read_identity(folder.path) or folder


# --- verification -------------------------------------------------------------------------------------------------


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
            result.notes.append(f"{folder}: epoch {epoch.number} is older and was not removed")
