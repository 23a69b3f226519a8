"""`make fuzz-native`: coverage-guided fuzzing of the extension, built with AddressSanitizer and UBSan.

    python -m tests.fuzz.native [--seed N]

gcc and what Python's headers need is all it takes. An input is a stream of frames. Nearly all are only run: C reads the
first frame, writes the value again, and reads the stream under the sanitizers. Inputs that reach new edges of the C,
and a few of the others, are compared: C reads the first frame from bytes, a bytearray and a view, writes the value
again, also with one attribute replaced by something odd, and reads the stream through a frame decoder; whatever C
answers, Python has to answer, too. Inputs that reach new edges are mutated further; a small set that reaches them all
is kept in fixtures/corpora/native.hex. An input that breaks a promise, or that a sanitizer stops, is printed, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import mmap
import os
import random
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz import corpus

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "wire" / "codec" / "speed"
LIBRARY, LAST = "_speed.so", "last-input"
BURST = 2000
"""Number of inputs that run between two inputs that are compared."""
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native", description="fuzzing of the extension")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    if place := os.environ.get("SEGSTORE_FUZZ_NATIVE"):
        Fuzzer(Path(place), options.seed).run(float(os.environ.get("FUZZ_SECONDS") or 60))
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-native-") as place:
        return fuzz(Path(place), options.seed)


def fuzz(place: Path, seed: int) -> int:
    """Builds the extension, and runs this module again with it and the sanitizers' library."""
    build(place)
    preloaded = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    last = place / LAST
    last.write_bytes(bytes(4 + corpus.MAX_INPUT_BYTES))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.native", *sys.argv[1:], "--seed", str(seed)],
        cwd=ROOT,
        env=os.environ
        | {
            "SEGSTORE_FUZZ_NATIVE": str(place),
            "SEGSTORE_CODEC": "c",
            "LD_PRELOAD": preloaded,
            "PYTHONMALLOC": "malloc",  # so that each object has its own memory, with fences around it
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps what it makes at its start
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        check=False,
    )
    if done.returncode:
        held = last.read_bytes()
        size = int.from_bytes(held[:4], "big")
        print(f"fuzz-native: seed {seed}, input {held[4 : 4 + size].hex()}", file=sys.stderr)
    return 1 if done.returncode else 0


def build(place: Path) -> None:
    """Compiles the extension with sanitizers and the record of its edges."""
    from segstore import __version__

    include = f"-I{sysconfig.get_path('include')}"
    flags = shlex.split(f"-std=c11 -g -O1 -fPIC -fno-omit-frame-pointer -Wall -Wextra -Werror {SANITIZERS}")
    flags += ["-Wno-missing-field-initializers", "-Wno-cast-function-type"]  # both are usual in extensions
    flags += [include, f'-DSEGSTORE_VERSION="{__version__}"']
    made = place / "coverage.o"
    source = Path(__file__).with_name("coverage.c")
    subprocess.run(["gcc", "-O2", "-fPIC", include, "-c", source, "-o", made], check=True)
    sources = sorted(SOURCES.glob("*.c"))
    subprocess.run(
        ["gcc", *flags, "-fsanitize-coverage=trace-pc", "-shared", *sources, made, "-o", place / LIBRARY], check=True
    )


def load_built(library: Path) -> None:
    """Puts what was built in the place of the extension, before the codec is imported."""
    import segstore

    spec = importlib.util.spec_from_file_location("segstore._speed", library)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    sys.modules["segstore._speed"] = made
    vars(segstore)["_speed"] = made


class Fuzzer:
    """Mutates inputs, runs them, and keeps those that reach something new."""

    def __init__(self, place: Path, seed: int) -> None:
        load_built(place / LIBRARY)
        from tests.fuzz.native_target import run_alone, run_input

        library = ctypes.PyDLL(str(place / LIBRARY))
        self.burst = library.segstore_burst
        self.burst.restype = ctypes.py_object
        self.burst.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p]
        self.run_alone = run_alone
        self.edges = ctypes.c_int.in_dll(library, "segstore_edges")
        self.seen = (ctypes.c_ubyte * (1 << 16)).in_dll(library, "segstore_seen")
        self.run_input: Callable[[bytes, random.Random], None] = run_input
        self.seed = seed
        self.chance = random.Random(seed)
        self.pool: list[bytes] = []
        with (place / LAST).open("r+b") as file:
            self.last = mmap.mmap(file.fileno(), 0)
        self.last_at = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.last))

    def run(self, seconds: float) -> None:
        began = reported = time.monotonic()
        for data in {*corpus.inputs("native"), *corpus.seeds("decoder"), *corpus.seeds("framing")}:
            self.execute(data, always=True)
        executed = len(self.pool)
        while time.monotonic() - began < seconds:
            self.execute(self.mutated())
            self.run_mutations()
            executed += 1 + BURST
            if time.monotonic() - reported > 30:
                reported = time.monotonic()
                print(f"fuzz-native: {executed:,} inputs, {self.edges.value} edges, {len(self.pool)} kept", flush=True)
        print(
            f"fuzz-native: seed {self.seed}: {executed:,} inputs, {self.edges.value} edges, "
            f"{len(self.pool)} inputs in the pool, {time.monotonic() - began:.0f} s, no promise was broken",
            flush=True,
        )
        print(f"fuzz-native: {corpus.save('native', self.smallest())} inputs kept", flush=True)

    def execute(self, data: bytes, *, always: bool = False) -> None:
        self.last[: 4 + len(data)] = len(data).to_bytes(4, "big") + data
        before = self.edges.value
        self.run_input(data, random.Random(data))
        if always or self.edges.value > before:
            self.pool.append(data)

    def run_mutations(self) -> None:
        """Runs `BURST` mutations of one input, and compares the mutations that reach something new."""
        data = self.chance.choice(self.pool)
        for mutation in self.burst(self.run_alone, data, BURST, self.chance.randrange(1, 1 << 64), self.last_at):
            self.execute(mutation, always=True)

    def smallest(self) -> list[bytes]:
        """Inputs of the pool that between them reach all that it reaches, short ones first."""
        ctypes.memset(self.seen, 0, len(self.seen))
        found = []
        for data in sorted(set(self.pool), key=lambda data: (len(data), data)):
            before = self.edges.value
            self.run_input(data, random.Random(data))
            if self.edges.value > before:
                found.append(data)
        return found

    def mutated(self) -> bytes:
        chance = self.chance
        out = bytearray(chance.choice(self.pool))
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(out) + 1)
            match chance.randrange(7):
                case 0 if at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
                case 1 if at < len(out):
                    out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC0, 0xFF))
                case 2:
                    near = len(out) - at + chance.randrange(-9, 9)
                    number = chance.choice((-1, 0, 1, near, near, 0x7FFFFFFF, -0x80000000, 4096, 4097, 1 << 24))
                    out[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")
                case 3:
                    del out[at : at + chance.randrange(1, 24)]
                case 4:
                    out[at:at] = chance.randbytes(chance.randrange(1, 12))
                case 5:
                    other = chance.choice(self.pool)
                    out[at:at] = other[: chance.randrange(len(other) + 1)]
                case _:
                    out[3:4] = bytes([chance.randrange(256)])
        data = bytes(out[: corpus.MAX_INPUT_BYTES])
        if len(data) >= 8 and chance.random() < 0.8:  # usually make the length in the header correct
            size = len(data) - 8 if chance.random() < 0.8 else chance.randrange(len(data) - 7)
            data = data[:4] + size.to_bytes(4, "big") + data[8:]
        return data


if __name__ == "__main__":
    sys.exit(main())
