"""The arrows of the layout hold, rooms import each other through their faces, and a face lists what it offers.

server → wire; client → wire; pipeline → wire and client; the roots of segstore → all; nothing → those roots. A room is
a folder below these, and its face is its `__init__`. A room imports modules of the folders above it directly. The
faces of rooms in `segstore.pipeline` and of the command line import nothing, because parts of them need optional
packages or take long to import. No two public classes of a package have the same name. Every module that decides
something has a test module: `test_NAME.py` in the same folder below `tests/`, or those that the docstring of that
folder's `__init__.py` names.

The codec touches no loop, socket, clock, randomness, open file or logging set-up. Encoders and decoders of msgspec are
created when a module is imported: they learn a type at its first use, and concurrent first uses in several threads
crash the process. Lines of scripts and styles have at most 120 columns; ruff checks those of Python. Each check is
shown sources that break it, too.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
ARROWS = {
    "wire": {"wire", "_speed", "__version__"},  # the codec's extension, and the version that it must have
    "server": {"server", "wire"},
    "client": {"client", "wire"},
    "pipeline": {"pipeline", "client", "wire"},
}
NOT_IN_THE_CODEC = {
    *("asyncio", "uvloop", "socket", "socketserver", "select", "selectors", "ssl", "http", "urllib"),
    *("time", "sched", "random", "secrets", "tempfile", "pathlib", "shutil", "mmap"),
    *("threading", "multiprocessing", "subprocess", "concurrent", "signal", "logging.config", "logging.handlers"),
}
CALLS_NOT_IN_THE_CODEC = {
    *("open", "io.open", "os.open", "print", "input", "os.urandom", "uuid.uuid1", "uuid.uuid4", "uuid1", "uuid4"),
    *("datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow"),
    *("logging.basicConfig", "logging.disable", "logging.setLoggerClass"),
}
LATE_CODER = re.compile(r"msgspec\.(?:convert|(?:json|msgpack|toml|yaml)\.(?:decode|encode))")
CODER = re.compile(r"msgspec\.(?:json|msgpack)\.(?:De|En)coder")
METHODS_NOT_IN_THE_CODEC = {"addHandler", "setLevel", "read_text", "write_text", "read_bytes", "write_bytes"}


def shipped(*suffixes: str) -> Iterator[Path]:
    """Give each file that ships and has one of some suffixes; symbolic links are followed."""
    for where, folders, files in os.walk(ROOT / "segstore", followlinks=True):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        yield from (Path(where, file) for file in sorted(files) if file.endswith(suffixes))


def modules() -> Iterator[tuple[str, Path]]:
    """Give each module that ships and its file."""
    for path in shipped(".py"):
        parts = path.relative_to(ROOT / "segstore").with_suffix("").parts
        yield ".".join(("segstore", *(parts[:-1] if parts[-1] == "__init__" else parts))), path


@lru_cache(maxsize=1)
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def imports(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Give the line and the absolute dotted name of everything that a source imports, wherever in it that happens."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")
                package = package[: len(package) - node.level + is_package]
                base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Name every import of a module, and in the codec every call, that the layout forbids."""
    found = []
    package = module.removeprefix("segstore.").partition(".")[0] if module.startswith("segstore.") else ""
    for line, target in imports(source, module, is_package=is_package):
        top, inner, *_ = [*target.split("."), ""]
        if top in ARROWS:
            found.append(f"{module}:{line}: imports {target}, which is segstore.{target}")
        elif top == "segstore" and package in ARROWS and inner not in ARROWS[package]:
            found.append(f"{module}:{line}: imports {target}; {package} may import {sorted(ARROWS[package])}")
        elif top in {"tests", "bench", "tools"} and module.startswith("segstore"):
            found.append(f"{module}:{line}: imports {target}, which does not ship")
        if package == "wire" and any(f"{target}.".startswith(f"{each}.") for each in NOT_IN_THE_CODEC):
            found.append(f"{module}:{line}: the codec imports {target}")
    if package == "wire":
        for node in nodes(source):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                method = node.func.attr if isinstance(node.func, ast.Attribute) else None
                if called in CALLS_NOT_IN_THE_CODEC or method in METHODS_NOT_IN_THE_CODEC:
                    found.append(f"{module}:{node.lineno}: the codec calls {called}")
    return found


def late_coders(source: str, module: str) -> list[str]:
    """Name every use of msgspec in which it may inspect a type after the import."""
    found: list[str] = []
    if "msgspec" not in source:
        return found
    for line, target in imports(source, module, is_package=False):
        if re.match(r"msgspec\.(?:convert|json|msgpack|toml|yaml)", target):
            found.append(f"{module}:{line}: imports {target}, which hides where it is used")
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    late = {inner for node in nodes(source) if isinstance(node, kinds) for inner in ast.walk(node)}
    for node in nodes(source):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if LATE_CODER.fullmatch(called) or (node in late and CODER.fullmatch(called)):
                found.append(f"{module}:{node.lineno}: calls {called}; make the coder when the module is imported")
    return found


def unlisted(module: ModuleType, *, is_package: bool) -> list[str]:
    """Say what is wrong with the `__all__` of a module: only a face has one, which names what the face holds."""
    held = {name for name, value in vars(module).items() if not (name.startswith("_") or isinstance(value, ModuleType))}
    if not is_package:
        return [f"{module.__name__}: has an __all__; its folder's face should"] if hasattr(module, "__all__") else []
    if not hasattr(module, "__all__"):
        return [f"{module.__name__}: has no __all__"] if held else []
    listed = list(module.__all__)
    faulty = [f"__all__ names {name} twice" for name in sorted({name for name in listed if listed.count(name) > 1})]
    faulty += [f"__all__ names {name}, which is not there" for name in listed if not hasattr(module, name)]
    defined = {
        name
        for name in held
        if isinstance(vars(module)[name], type | FunctionType) and vars(module)[name].__module__ == module.__name__
    }
    faulty += [f"holds {name}, neither private nor in __all__" for name in sorted(defined - set(listed))]
    return [f"{module.__name__}: {each}" for each in faulty]


def past_faces(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Name every import of a module in another room that does not go through the room's face."""
    found = []
    here = module if is_package else module.rpartition(".")[0]
    for node in nodes(source):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        room = node.module.rpartition(".")[0]
        if node.module in PACKAGES or room not in ROOMS or f"{here}.".startswith(f"{room}."):
            continue
        found += [
            f"{module}:{node.lineno}: imports {node.module}.{alias.name}; its room is {room}"
            for alias in node.names
            if not alias.name.startswith("_")
        ]
    return found


def long_lines(source: str, name: str) -> list[str]:
    """Name every line of a source that is too long to be read."""
    lines = enumerate(source.split("\n"), 1)
    return [f"{name}:{number}: {len(line)} columns" for number, line in lines if len(line) > MOST_COLUMNS]


def decides(source: str) -> bool:
    """Whether a module has a function with a branch, a loop or a result, and so something to test."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    steps = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match | ast.Return | ast.Yield
    functions = [node for node in nodes(source) if isinstance(node, kinds)]
    return any(isinstance(inner, steps) for node in functions for inner in ast.walk(node))


@cache
def named_tests(folder: Path) -> dict[str, list[Path]]:
    """The test modules of those modules whose tests have another name, as the docstring of a tests' folder lists them.

    A line is `module, module: test_one, other/folder/test_two`, each in the folder itself or below `tests/`.
    """
    face = folder / "__init__.py"
    text = ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))) if face.is_file() else None
    found = {}
    for names, tests in re.findall(r"^([a-z_, ]+): (.*)$", text or "", re.MULTILINE):
        near = [folder / f"{each}.py" for each in tests.split(", ")]
        paths = [path if path.is_file() else ROOT / "tests" / path.relative_to(folder) for path in near]
        found.update(dict.fromkeys(names.split(", "), paths))
    return found


MODULES = dict(modules())
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}
WITHOUT_FACES = {"segstore.cli", "segstore.wire.controller_api"}
ROOMS = {
    name
    for name in PACKAGES - {"segstore", *(f"segstore.{package}" for package in ARROWS)} - WITHOUT_FACES
    if not name.startswith("segstore.pipeline.")
}
MOST_FILES = 13
MOST_COLUMNS = 120


def test_modules_follow_the_layout() -> None:
    found = []
    for name, path in MODULES.items():
        source, is_package = path.read_text(encoding="utf-8"), name in PACKAGES
        found += faults(source, name, is_package=is_package)
        found += past_faces(source, name, is_package=is_package)
        found += late_coders(source, name)
        found += [] if is_package or not decides(source) else without_tests(name)
    assert found == []


def without_tests(name: str) -> list[str]:
    """Name the test modules that a module lacks."""
    package, *folders = name.split(".")[1:-1] or [""]
    if package not in ARROWS:
        return []
    folder = ROOT / "tests" / Path(package, *folders)
    stem = name.rpartition(".")[2]
    named = named_tests(folder).get(stem, [folder / f"test_{stem}.py"])
    return [f"{name}: no {path.relative_to(ROOT)}" for path in named if not path.is_file()]


def test_the_extension_knows_the_wire_alone() -> None:
    sources = {path.name: path.read_text("utf-8") for path in (ROOT / "wire" / "codec" / "speed").glob("*.[ch]")}
    words = set(re.findall(r"\w+", " ".join(sources.values())))
    past_wire = re.compile(r"(client|server|pipeline)\.")
    others = [path.read_text("utf-8") for name, path in MODULES.items() if past_wire.match(name.partition(".")[2])]
    classes = {
        name for source in others for name in re.findall(r"^class ([A-Z]\w*[a-z][A-Z]\w*)", source, re.MULTILINE)
    }
    assert {"InFlight", "SegmentWriter", "BlockCache"} & classes
    assert words & classes == set()
    assert not [name for name, source in sources.items() if re.search(r"segstore\.(client|server|pipeline)", source)]
    assert not [source[:80] for source in others if "or_in_c" in source]


def test_folders_of_tests_name_only_modules_that_have_no_test_module_of_their_own() -> None:
    stale = []
    for package in ARROWS:
        for face in sorted((ROOT / "tests" / package).rglob("__init__.py")):
            room = ROOT / "segstore" / face.parent.relative_to(ROOT / "tests")
            stale += [
                f"{face.relative_to(ROOT)}: {stem}"
                for stem in named_tests(face.parent)
                if (face.parent / f"test_{stem}.py").is_file() or not (room / f"{stem}.py").is_file()
            ]
    assert stale == []


def test_a_folder_has_about_a_dozen_files() -> None:
    sizes = Counter(path.parent for path in MODULES.values())
    assert {str(folder): count for folder, count in sizes.items() if count > MOST_FILES} == {}


def test_no_two_public_classes_of_a_package_have_the_same_name() -> None:
    names: Counter[tuple[str, str]] = Counter()
    for module, path in MODULES.items():
        package = next((arrow for arrow in ARROWS if f"{module}.".startswith(f"segstore.{arrow}.")), "segstore")
        classes = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.update((package, name) for name in classes)
    assert [name for name, count in names.items() if count > 1 and not name[1].startswith("_")] == []


def test_lines_of_scripts_and_styles_are_not_too_long() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in shipped(".js", ".css")}
    assert sources.keys() >= {"segstore/server/page/trace/page.js", "segstore/server/page/page.css"}
    assert [line for name, source in sources.items() for line in long_lines(source, name)] == []


@pytest.mark.long
def test_faces_and_only_faces_list_what_they_offer() -> None:
    found, missing = [], set()
    for name in MODULES:
        if name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "segstore":
                raise
            missing.add(error.name)
            continue
        found += unlisted(module, is_package=name in PACKAGES)
    assert found == []
    if missing:  # all other modules have been checked
        pytest.skip(f"{', '.join(sorted(missing))} not installed")


@looped(
    ("module", "source"),
    [
        ("segstore.server.listener", "from wire.framing import FrameDecoder"),
        ("tests.wire.test_framing", "from server import config"),
        ("segstore.server.listener", "import segstore.client.pool"),
        ("segstore.client.pool", "from ..server import store"),
        ("segstore.client.pool", "def late():\n    from segstore.server import store"),
        ("segstore.pipeline.session", "import segstore.server"),
        ("segstore.server.listener", "import segstore"),
        ("segstore.explore", "from tests.conformance import run"),
        ("segstore.wire.framing", "import asyncio"),
        ("segstore.wire.trace", "data = open('trace')"),
        ("segstore.wire.trace", "def read(path):\n    return path.read_bytes()"),
    ],
)
def test_an_import_or_call_against_the_layout_is_found(module: str, source: str) -> None:
    assert len(faults(source, module)) == 1


def test_a_coder_that_is_made_late_and_an_import_past_a_face_are_found() -> None:
    for source in ("def read(data): return msgspec.convert(data, int)", "read = lambda: msgspec.json.Decoder(int)"):
        assert len(late_coders(f"import msgspec\n{source}", "segstore.made_up")) == 1
    imported = "from segstore.server.connection.session import Session"
    assert [len(past_faces(imported, f"segstore.server.{each}")) for each in ("node.runner", "connection.hub")] == [
        1,
        0,
    ]
