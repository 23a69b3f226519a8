"""`make fuzz`: coverage-guided fuzzing of the targets, each for FUZZ_SECONDS (60), and the corpora kept small.

    python -m tests.fuzz [TARGET…]     fuzz these targets, or all

A target runs in a process of its own, in which atheris instruments the codec and what it generates. It starts from the
recorded vectors and from its corpus in fixtures/corpora; what it finds is reduced to the inputs that reach something
new and kept there. An input that breaks a promise is written beside the corpora as <target>-crash-<sha1>, named in the
output, and the exit code is 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import corpus

ROOT = Path(__file__).parents[2]
TARGETS = ("decoder", "framing", "blocks")
RSS_MB = 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="coverage-guided fuzzing of the codec")
    help_text = f"{', '.join(TARGETS)}; all by default"
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=TARGETS, help=help_text)
    options = parser.parse_args()
    unknown = [target for target in options.targets if target not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    seconds = int(os.environ.get("FUZZ_SECONDS") or 60)
    failed = [target for target in options.targets if not fuzz(target, seconds)]
    if failed:
        print(f"a promise was broken: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def fuzz(target: str, seconds: int) -> bool:
    """Fuzzes one target, then puts what it found into its corpus. Whether all promises were kept."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as place:
        found, merged = Path(place) / "found", Path(place) / "merged"
        found.mkdir()
        merged.mkdir()
        corpus.unpack(found, (*corpus.seeds(target), *corpus.inputs(target)))
        limits = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus.CORPORA}{os.sep}{target}-"]
        if _libfuzzer(target, *limits, str(found)):
            return False
        if _libfuzzer(target, "-merge=1", "-use_counters=0", str(merged), str(found)):
            return False
        count = corpus.save(target, (path.read_bytes() for path in merged.iterdir()))
        print(f"fuzz: {target}: {count} inputs kept", flush=True)
    return True


def _libfuzzer(target: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tests.fuzz.process", target, *arguments]
    command += [f"-max_len={corpus.MAX_INPUT_BYTES}", f"-rss_limit_mb={RSS_MB}", "-timeout=10"]
    command.append("-verbosity=0")
    print("fuzz:", target, *arguments, flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
