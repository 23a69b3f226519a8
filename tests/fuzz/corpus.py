"""The corpora: inputs that between them reach all the code that fuzzing has reached so far.

A corpus is a file of hex, a line an input, the shortest first. It began with the recorded vectors: `seeds` gives them
in the form that a target reads.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CORPORA", "MAX_CORPUS_BYTES", "MAX_INPUT_BYTES", "inputs", "save", "seeds", "unpack"]

ROOT = Path(__file__).parents[2]
CORPORA = ROOT / "fixtures" / "corpora"
MAX_INPUT_BYTES = 2048
MAX_CORPUS_BYTES = 45_000


def inputs(target: str) -> list[bytes]:
    """The corpus of a target."""
    path = CORPORA / f"{target}.hex"
    return [bytes.fromhex(line) for line in path.read_text("ascii").splitlines()] if path.is_file() else []


def save(target: str, found: Iterable[bytes]) -> int:
    """Makes the shortest of these inputs the corpus, as many as it may hold; returns how many."""
    kept: list[bytes] = []
    room = MAX_CORPUS_BYTES
    for data in sorted(set(found), key=lambda data: (len(data), data)):
        room -= len(data)
        if room < 0:
            break
        kept.append(data)
    (CORPORA / f"{target}.hex").write_text("".join(f"{data.hex()}\n" for data in kept), "ascii")
    return len(kept)


def unpack(folder: Path, found: Iterable[bytes]) -> None:
    """Writes inputs as files, named as libFuzzer names them."""
    for data in found:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


def seeds(target: str) -> Iterator[bytes]:
    """Recorded bytes for a target, short ones only."""
    made = {"decoder": _frames, "framing": _streams, "blocks": _connections}[target]()
    yield from (data for data in made if len(data) <= MAX_INPUT_BYTES)


def _lines(name: str) -> list[dict[str, Any]]:
    for folder in (ROOT / "fixtures" / "vectors", ROOT.parent / "shared" / "vectors"):
        if (folder / name).is_file():
            return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
    return []


def _frames() -> Iterator[bytes]:
    for name in ("commands.jsonl", "legacy.jsonl", "malformed.jsonl", "mutations.jsonl"):
        for line in _lines(name):
            if "hex" in line:
                yield bytes.fromhex(line["hex"])


def _streams() -> Iterator[bytes]:
    for style, line in enumerate(_lines("framing.jsonl")):
        yield bytes([style * 37 & 0xFF]) + b"".join(bytes.fromhex(step.get("in") or "") for step in line["steps"])
    frames = [bytes.fromhex(line["hex"]) for line in _lines("commands.jsonl") if "hex" in line]
    for at in range(0, len(frames), 3):
        yield bytes([at * 37 & 0xFF]) + b"".join(frames[at : at + 3])


def _connections() -> Iterator[bytes]:
    for line in _lines("append_decode.jsonl"):
        yield b"\0" + b"".join(bytes.fromhex(step["hex"]) for step in line["steps"])
    for line in _lines("append_streams.jsonl"):
        if isinstance(line.get("out"), str):
            yield b"\2" + bytes.fromhex(line["out"])
    for style in range(1, 32, 2):
        yield bytes([style]) + bytes(range(0, 96, 3)) * 2
