"""Model of a disk: what a power loss at any moment would leave of files and names.

`Disk` takes the records of `recorder.c`. It tracks for every write whether a sync of its file has covered it, and for
every name whether a sync of its folder has. `image` writes a folder as a power loss may leave it: everything synced;
and of the rest, at random, nothing, everything, some of the writes, or some of their sectors. Data that a failed sync
did not write stays unwritten after later syncs, until it is written again, because Linux marks such pages clean.

Invariant: all data in an image was written, or is zeros where a file had grown. Names are lost individually, which is
stricter than any file system; or as in a journaling one: in order, and a sync of any file keeps all earlier names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import NamedTuple

__all__ = ["Disk", "Record", "records"]

_HEADER = Struct("=4IQq")
_WHOLE = 1 << 62
_UNITS = (_WHOLE, 512, 4096)
"""Sizes of the units in which a write reaches the disk."""


class Record(NamedTuple):
    """One record of the log. kind: a letter, see `Disk.feed`. at: an offset or a size."""

    kind: str
    inode: int
    at: int
    name: str
    data: bytes


def records(log: bytes) -> Iterator[Record]:
    """The records of a log, in order."""
    at = 0
    while at < len(log):
        kind, name_bytes, data_bytes, _, inode, offset = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        name = os.fsdecode(log[at : at + name_bytes])
        at += name_bytes
        yield Record(chr(kind), inode, offset, name, log[at : at + data_bytes])
        at += data_bytes


@dataclass(eq=False)
class _Change:
    """A write, or with `data` None a truncation to `at`. lost: a sync of it failed."""

    at: int
    data: bytes | None
    durable: bool = False
    lost: bool = False

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.at :]
        if len(content) < self.at:
            content.extend(bytes(self.at - len(content)))
        if self.data is not None:
            content[self.at : self.at + len(self.data)] = self.data

    def parts(self, unit: int) -> Iterator[_Change]:
        """The change, split into pieces that reach the disk individually."""
        if self.data is None:
            yield self
            return
        begin, end = self.at, self.at + len(self.data)
        while begin < end:
            until = min(end, (begin // unit + 1) * unit)
            yield _Change(begin, self.data[begin - self.at : until - self.at])
            begin = until


@dataclass(eq=False)
class _File:
    """base: durable content. changes: later changes; those that are durable come after a lost one."""

    base: bytearray = field(default_factory=bytearray)
    changes: list[_Change] = field(default_factory=list)
    syncing: tuple[_Change, ...] = ()

    def begin_sync(self) -> None:
        self.syncing = tuple(self.changes)

    def end_sync(self, failed: bool) -> None:
        for each in self.syncing:
            each.lost = each.lost or (failed and not each.durable)
            each.durable = not each.lost
        while self.changes and self.changes[0].durable:
            self.changes.pop(0).apply(self.base)

    def content(self) -> bytes:
        """The content that a reader sees."""
        content = bytearray(self.base)
        for change in self.changes:
            change.apply(content)
        return bytes(content)

    def left(self, chance: random.Random) -> bytes:
        """The content that a power loss leaves."""
        content, unit = bytearray(self.base), chance.choice(_UNITS)
        kept = chance.choice([0.0, 1.0, chance.random()])
        for change in self.changes:
            if change.durable:
                change.apply(content)
                continue
            # Everything is kept, except what a failed sync left out.
            likely = 0.0 if change.lost and kept == 1.0 else kept
            for part in change.parts(unit):
                if chance.random() < likely:
                    part.apply(content)
        if self.changes and chance.random() < 0.2:  # the file had grown, but the new bytes were not written
            content.extend(bytes(max(0, len(self.content()) - len(content))))
        return bytes(content)


@dataclass(eq=False)
class _Folder:
    """names: as a reader sees them. durable: those on disk. changes: later changes, with their numbers."""

    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    changes: list[tuple[int, dict[str, _Node | None]]] = field(default_factory=list)
    syncing: int = 0

    def change(self, number: int, change: dict[str, _Node | None]) -> None:
        self.changes.append((number, change))
        _rename(self.names, change)

    def begin_sync(self) -> None:
        self.syncing = len(self.changes)

    def end_sync(self, failed: bool) -> None:
        if not failed:
            for _, change in self.changes[: self.syncing]:
                _rename(self.durable, change)
            del self.changes[: self.syncing]


_Node = _File | _Folder


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """The state below a folder: what is on disk, and what is only in memory.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        """Starts with the current content of the folder, all of it durable."""
        self.root = root
        self._nodes: dict[int, _Node] = {}
        self._top = self._adopted(root)
        self._changes = 0  # number of changes of names
        self._journaled = 0  # how many of them a journaling file system has made durable
        self._begun: dict[int, int] = {}

    def _adopted(self, path: Path) -> _Folder:
        folder = self._nodes[path.stat().st_ino] = _Folder()
        for each in path.iterdir():
            if each.is_dir():
                folder.names[each.name] = self._adopted(each)
            else:
                folder.names[each.name] = self._nodes.setdefault(
                    each.stat().st_ino, _File(bytearray(each.read_bytes()))
                )
        folder.durable = dict(folder.names)
        return folder

    def feed(self, record: Record) -> None:
        """Applies the record of one call."""
        match record.kind:
            case "C" | "M":  # a file or a folder is created
                node = self._nodes[record.inode] = _File() if record.kind == "C" else _Folder()
                self._change(record.name, node)
            case "W" | "T":  # a write, a truncation
                self._file(record).changes.append(_Change(record.at, record.data if record.kind == "W" else None))
            case "s":  # a sync begins
                self._nodes[record.inode].begin_sync()
                self._begun[record.inode] = self._changes
            case "S" | "F":  # a sync succeeds, fails
                self._nodes[record.inode].end_sync(failed=record.kind == "F")
                if record.kind == "S":
                    self._journaled = max(self._journaled, self._begun[record.inode])
            case "U":  # a name is removed
                self._change(record.name, None)
            case "L" | "R":  # a link, a rename
                source, name = self._place(record.name)
                target = os.fsdecode(record.data)
                self._change(target, source.names[name], gone=record.name if record.kind == "R" else None)
            case other:
                raise ValueError(f"a record of kind {other!r}")

    def _file(self, record: Record) -> _File:
        file = self._nodes[record.inode]
        assert isinstance(file, _File)
        return file

    def _place(self, path: str) -> tuple[_Folder, str]:
        *above, name = Path(path).relative_to(self.root).parts
        folder: _Node = self._top
        for each in above:
            assert isinstance(folder, _Folder)
            folder = folder.names[each]
        assert isinstance(folder, _Folder)
        return folder, name

    def _change(self, path: str, node: _Node | None, gone: str | None = None) -> None:
        folder, name = self._place(path)
        change = {name: node}
        if gone is not None:
            before, old = self._place(gone)
            assert before is folder, f"{gone} goes to another folder, {path}"
            change[old] = None
        self._changes += 1
        folder.change(self._changes, change)

    def files(self) -> dict[str, bytes]:
        """Path below the root → content that a reader sees."""
        found: dict[str, bytes] = {}

        def walk(folder: _Folder, above: str) -> None:
            for name, node in folder.names.items():
                if isinstance(node, _File):
                    found[above + name] = node.content()
                else:
                    walk(node, f"{above}{name}/")

        walk(self._top, "")
        return found

    def image(self, chance: random.Random, to: Path) -> None:
        """Write what a power loss would leave now to a new folder."""
        if strict := chance.random() < 0.5:
            likely = chance.choice([0.0, 1.0, 0.5])
        else:
            until = chance.choice([self._journaled, self._changes, chance.randint(self._journaled, self._changes)])
        written: dict[_File, Path] = {}

        def write(folder: _Folder, path: Path) -> None:
            path.mkdir()
            names = dict(folder.durable)
            for number, change in folder.changes:
                if chance.random() < likely if strict else number <= until:
                    _rename(names, change)
            for name, node in names.items():
                if isinstance(node, _Folder):
                    write(node, path / name)
                elif node in written:
                    (path / name).hardlink_to(written[node])
                else:
                    written[node] = path / name
                    (path / name).write_bytes(node.left(chance))

        write(self._top, to)
