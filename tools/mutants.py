"""Change the code of a room in small ways, run the room's tests on each change, and list what no test notices.

`python tools/mutants.py server/store client/connection/pool.py` takes rooms and modules. Their tests are those in the
same folder below `tests/` that are not marked `long` or `needs`. mutmut makes the mutants and runs them in a copy of
the tree, because it does not follow the symbolic links of `segstore/`. Two things differ from mutmut's own mutants:
statements that are only a call are dropped, one at a time, and texts stay as they are, because tests do not compare
every message.
"""

import argparse
import math
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["configuration", "module_and_tests"]

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "server/store",
    "server/durable",
    "server/connection/session.py",
    "server/connection/connection.py",
    "server/connection/executing.py",
    "server/connection/receiving.py",
    "server/connection/sending.py",
    "server/faults",
    "server/coordination/ownership.py",
    "client/connection/pool.py",
    "client/segment/machine.py",
)
COPIED = (
    "segstore",
    "tests",
    "fixtures",
    "docs",
    "tools",
    "bench",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
)
TEST_S = 300
"""Seconds after which a test of the code as it is counts as hanging."""
HANGING_FACTOR, HANGING_S = 2, 15
"""A mutant is noticed by a test that takes this many times as long as the slowest did, and this many seconds."""
NOTICED = {"killed", "timeout", "segfault", "suspicious"}


def module_and_tests(room: str) -> tuple[str, str]:
    """Give the pattern of the files to change and the folder of their tests."""
    path = Path("segstore", room)
    if not (ROOT / path).exists():
        raise SystemExit(f"{room}: there is no segstore/{room}")
    folder = path.parent if path.suffix else path
    tests = Path("tests", *folder.parts[1:])
    return str(path if path.suffix else path / "*.py"), str(tests)


def configuration(room: str) -> str:
    """Give mutmut's part of `pyproject.toml` for a room."""
    files, tests = module_and_tests(room)
    options = [
        "-p",
        "no:rerunfailures",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_debug=false",
        "-o",
        f"timeout={TEST_S}",
    ]
    options += ["-m", "not needs and not long"]
    options += ["--ignore=tests/client/connection/test_compiled.py"]  # about compiled modules, which the copy lacks
    return f"""
[tool.mutmut]
source_paths = ["segstore"]
only_mutate = [{files!r}]
pytest_add_cli_args = {options!r}
pytest_add_cli_args_test_selection = [{tests!r}]
also_copy = {[each for each in COPIED if each not in {"segstore", "tests"}]!r}
use_git_change_detection = false
timeout_multiplier = 5.0
timeout_constant = 2.0
"""


def copied(room: str) -> Path:
    """Copy what tests need to `build/mutants/ROOM`, with real folders for the symbolic links, and configure mutmut."""
    folder = ROOT / "build" / "mutants" / room.removesuffix(".py").replace("/", ".")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, folder / name)
    for module in folder.glob("segstore/client/**/*.so"):
        module.unlink()  # the source is what changes
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(settings + configuration(room), "utf-8")
    return folder


def run(room: str, *, workers: int, sample: int | None, seed: int) -> None:
    """Run the mutants of a room in a process that ends with them; print how many its tests notice, and the others."""
    os.chdir(copied(room))
    sys.path.insert(0, str(Path.cwd()))

    import libcst as cst
    from mutmut import __main__ as mutmut
    from mutmut.configuration import config
    from mutmut.mutation import mutators
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.state import state
    from mutmut.stats import status_by_exit_code

    def drop_call(node: Any) -> Iterable[Any]:
        value = node.value.expression if isinstance(node.value, cst.Await) else node.value
        if isinstance(value, cst.Call):
            yield cst.Pass()

    operators: Any = mutators.mutation_operators
    operators[:] = [operator for operator in operators if operator[1] is not mutators.operator_string]
    operators.append((cst.Expr, drop_call))
    collect = mutmut.collect_source_file_mutation_data

    def drawn(**options: Any) -> Any:
        mutants, data = collect(**options)
        arguments = config().pytest_add_cli_args
        slowest = max(state().duration_by_test.values(), default=0)
        limit = max(math.ceil(HANGING_FACTOR * slowest), HANGING_S)
        arguments[arguments.index(f"timeout={TEST_S}")] = f"timeout={limit}"
        if sample is not None:
            mutants = random.Random(seed).sample(mutants, min(sample, len(mutants)))
        # Tests that take long, such as those that start processes, run only on mutants that the others do not notice.
        tests: Any = state().tests_by_mangled_function_name
        for function, names in tests.items():
            tests[function] = sorted(names, key=state().duration_by_test.__getitem__)
        return mutants, data

    mutmut.collect_source_file_mutation_data = drawn
    # One test is enough without a mutant, because mutmut has just run all of them to see what they call.
    mutmut.tests_for_mutant_names = lambda mutant_names: {min(state().duration_by_test)}
    # No forced failure: a test that it interrupts may leave a socket, whose warning ends pytest. The counts would show
    # that mutants have no effect.
    mutmut.run_forced_fail_test = lambda runner: None
    mutmut.cli(["run", "--max-children", str(workers)], standalone_mode=False)

    survivors = []
    for path in sorted(Path("mutants", "segstore").rglob("*.py.meta")):
        data = SourceFileMutationData(path=path.relative_to("mutants").with_suffix(""))
        data.load()
        status = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
        found = Counter(each for each in status.values() if each != "not checked")
        if found:
            noticed = sum(found[each] for each in NOTICED)
            rest = ", ".join(f"{count} {each}" for each, count in sorted(found.items()))
            print(f"{data.path}: {noticed} of {found.total()} noticed, {noticed / found.total():.0%} ({rest})")
        survivors += [name for name, each in status.items() if each in {"survived", "no tests"}]
    for name in survivors:
        print(f"\n{name}\n{get_diff_for_mutant(name)}")


def main() -> None:
    """Run each room in a process of its own: mutmut keeps its state and the imported tests per process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=ROOMS, help="rooms or modules, such as server/store")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, help="run this many mutants of each room, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    failed = []
    for room in options.rooms:
        child = os.fork()
        if not child:
            run(room, workers=options.workers, sample=options.sample, seed=options.seed)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            failed.append(room)
    if failed:
        raise SystemExit(f"not run to the end: {', '.join(failed)}")


if __name__ == "__main__":
    main()
