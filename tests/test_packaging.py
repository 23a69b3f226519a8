"""The wheel and the sdist carry `segstore` and nothing else that imports, and work away from the checkout.

The wheel is built from the sdist, so both hold all they need. The new venv is given the dependencies that the wheel
declares and theirs, as they are installed here, and nothing more: it needs no network, and an undeclared one is missed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

import segstore

ROOT = Path(__file__).parent.parent
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
BUILT = importlib.util.find_spec("segstore._speed") is not None  # here, and so in a wheel
HELLO = "ffffff81000000080000001100000005"

# One process builds them all: two that build in one folder take each other's files away.
pytestmark = pytest.mark.timeout(600)


def run(*command: str | Path, cwd: Path, stdin: str = "") -> str:
    """Run a command away from this process's own environment and give what it prints; fail with all it said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, text=True, env=kept, timeout=500, check=False
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def declared(distribution_name: str, extra: str = "") -> set[str]:
    """Give the names of the distributions that one requires outside its extras, and what those require."""
    names: set[str] = set()
    ahead = [distribution_name]
    while ahead:
        for requirement in distribution(ahead.pop()).requires or []:
            wanted, _, marker = requirement.partition(";")
            name = re.split(r"[^A-Za-z0-9._-]", wanted.strip(), maxsplit=1)[0].lower()
            if "extra ==" not in marker and name not in names and is_installed(name):
                names.add(name)
                ahead.append(name)
    return names


def is_installed(name: str) -> bool:
    return any(True for _ in Distribution.discover(name=name))


def lend(name: str, site_packages: Path) -> None:
    """Link the top-level entries of an installed distribution into another environment."""
    lent = distribution(name)
    for file in lent.files or []:
        top = file.parts[0]
        link = site_packages / top
        if top != ".." and top != "__pycache__" and not link.exists():
            link.symlink_to(Path(str(lent.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, of a copy of the checkout; give both files."""
    out = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("checkout") / "segstore"  # builds in one folder take each other's files away
    not_shipped = (".venv*", ".git", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "results")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*not_shipped))
    compiler = out / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0 -g0\n', encoding="utf-8")  # half the time
    compiler.chmod(0o755)
    build = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", out, copy)
    run("env", f"CC={compiler}", *build, cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, home: Path, *others: str) -> Path:
    """Install a wheel into a new venv, lend it what it and others declare; give the folder of its commands."""
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile",
        "--quiet", "--disable-pip-version-check", wheel, cwd=home)  # fmt: skip
    for name in declared("segstore").union(others, *map(declared, others)):
        lend(name, site_packages)
    return home / "bin"


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new venv that holds its declared dependencies only; give the folder of its commands."""
    return install(built[1], tmp_path_factory.mktemp("elsewhere") / "venv")


def test_the_wheel_carries_segstore_with_real_files_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
        assert {name.split("/")[0] for name in names} == {"segstore", f"segstore-{segstore.__version__}.dist-info"}
        assert not any(info.external_attr >> 16 & 0o170000 == 0o120000 for info in wheel.infolist())
    shipped = {
        str(Path(where, file).relative_to(ROOT))
        for where, _, files in os.walk(ROOT / "segstore", followlinks=True)
        for file in files
        if file.endswith((".py", ".pyi", ".proto", ".binpb", ".html", ".css", ".js", ".java", ".lua"))
        or file == "py.typed"
    }
    assert shipped == {name for name in names if name.startswith("segstore/") and not name.endswith((".pyc", ".so"))}
    modules = [str(path.relative_to(ROOT).with_suffix("")) for path in sorted(ROOT.glob("client/**/*.pxd"))]
    extensions = [f"segstore/{name}{EXT_SUFFIX}" for name in ("_speed", *modules)] if BUILT else []
    assert sorted(name for name in names if name.endswith(".so")) == extensions


def test_the_sdist_carries_the_tests_and_how_to_run_them(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        assert not any(member.issym() or member.islnk() for member in sdist)
    for name in ("Makefile", ".ci/run", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"):
        assert name in names
    assert "segstore/wire/__init__.py" in names
    assert "segstore/client/segment/machine.pxd" in names


def test_a_wheel_can_be_built_without_the_extension(built: tuple[Path, Path], tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    run("env", "PURE_PYTHON=1", *pip, "-w", tmp_path, built[0], cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"segstore-{segstore.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        assert not any(name.endswith(".so") for name in opened.namelist())


def test_the_archives_can_be_published(built: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=tmp_path)
    with zipfile.ZipFile(built[1]) as wheel:
        described = wheel.read(f"segstore-{segstore.__version__}.dist-info/METADATA").decode()
    links = re.findall(r"\]\(([^)\s]+)\)", described)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_installed_command_decodes_a_frame(installed: Path, tmp_path: Path) -> None:
    assert "HELLO" in run(installed / "segstore", "decode", "-", cwd=tmp_path, stdin=HELLO + "\n")


def test_nothing_is_installed_under_a_name_a_user_may_have(installed: Path, tmp_path: Path) -> None:
    names = ("wire", "server", "client", "pipeline", "tests", "bench", "tools")
    program = f"import importlib.util as u; print(*map(u.find_spec, {names!r}))"
    assert set(run(installed / "python", "-c", program, cwd=tmp_path).split()) == {"None"}


def test_the_checkout_installed_for_editing_offers_segstore_alone(tmp_path: Path) -> None:
    names = ("wire", "server", "client", "pipeline")
    program = (
        f"import importlib.util as u; [print(u.find_spec(n), u.find_spec('segstore.' + n).origin) for n in {names}]"
    )
    found = run(sys.executable, "-c", program, cwd=tmp_path).splitlines()
    assert found == [f"None {ROOT / 'segstore' / name / '__init__.py'}" for name in names]


# A user's repository has packages of the names that segstore's own folders have, and tests with the plugin.

SUITE = {
    "server/__init__.py": "WHO = 'the user'",
    "client/__init__.py": """
import asyncio
from segstore.wire import CreateSegment, FrameDecoder, Hello, encode

async def create(host, port, segment):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(encode(Hello(17, 5)) + encode(CreateSegment(1, segment, 0, 0, "", 0)))
    decoder, found = FrameDecoder(), []
    while len(found) < 2:
        found += [each.type_name for each in decoder.feed(await reader.read(1 << 16))]
    writer.close()
    await writer.wait_closed()
    return found[1]
""",
    "tests/test_mine.py": """
import asyncio, pytest
import client, server

NAME = "scope/stream/0.#epoch.0"

def test_their_packages_are_their_own(segstore_server):
    assert server.WHO == "the user"
    assert asyncio.run(client.create(segstore_server.host, segstore_server.port, NAME)) == "SEGMENT_CREATED"
    assert NAME in segstore_server.segments()

@pytest.mark.asyncio
@pytest.mark.segstore(process=True)
async def test_in_a_process_of_its_own(segstore_server, segstore_faults):
    segstore_faults.add("type = CREATE_SEGMENT", do="SegmentAlreadyExists")
    assert await client.create(segstore_server.host, segstore_server.port, NAME) == "SEGMENT_ALREADY_EXISTS"
    assert (await segstore_server.aio.wait_for("type = CREATE_SEGMENT", stage="refused")).segments == (NAME,)

@pytest.mark.parametrize("number", range(4))
def test_side_by_side(segstore_server, number):
    assert segstore_server.segments() == []
""",
    "pytest.ini": """
[pytest]
addopts = -p no:cacheprovider --strict-markers --strict-config
filterwarnings = error
asyncio_default_fixture_loop_scope = function
""",
}


@pytest.mark.parametrize("options", [("-n2",), ("--segstore-record=kept",)], ids=["xdist", "recorded"])
def test_the_plugin_serves_a_repository_that_has_a_server_and_a_client_of_its_own(
    with_pytest: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    for name, text in SUITE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    printed = run(with_pytest / "python", "-m", "pytest", "-q", *options, cwd=tmp_path)
    assert re.search(r"^6 passed in ", printed, re.MULTILINE), printed
    kept = sorted(path.name for path in tmp_path.glob("kept/*"))
    expected = ["test_in_a_process_of_its_own.jsonl", "test_their_packages_are_their_own.jsonl"]
    assert kept == (expected if "--segstore-record=kept" in options else [])


@pytest.fixture(scope="module")
def with_pytest(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside pytest and two of its plugins, as in a user's venv; give the folder of its commands."""
    home = tmp_path_factory.mktemp("users") / "venv"
    return install(built[1], home, "pytest", "pytest-asyncio", "pytest-xdist")
