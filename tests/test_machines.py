"""What a machine may lack: a new Python, a compiler, a home that can be written, a direct way out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.tap import Tap
from tests.client.support import settings
from tests.processes import PATIENCE_S, started

ROOT = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:1"
SEGSTORE = (sys.executable, "-m", "segstore")


def test_an_older_python_is_refused_in_one_sentence() -> None:
    program = "import sys; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'; import segstore.wire"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    last = done.stderr.splitlines()[-1]
    says = f"ImportError: segstore needs Python 3.11 or newer; this is Python 3.10.13 at {sys.executable}"
    assert (done.returncode, last) == (1, says)


def test_make_refuses_an_older_python_in_one_sentence(tmp_path: Path) -> None:
    older = tmp_path / "python"
    older.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.13 && exit\nexit 1\n')
    older.chmod(0o755)
    command = ["make", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={older}"]
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_S, env=alone)
    assert (done.returncode, done.stdout, (tmp_path / "venv").exists()) == (2, "", False)
    assert done.stderr.splitlines()[0] == f"segstore needs Python 3.11 or newer; {older} is Python 3.10.13"


def test_what_an_older_python_reads_first_needs_no_newer_one() -> None:
    """Else pip ends with a traceback of setup.py before it compares versions."""
    imported = set(re.findall(r"^(?:import|from) (\w+)", (ROOT / "setup.py").read_text("utf-8"), re.MULTILINE))
    assert imported == {"os", "re", "pathlib", "setuptools"}


def test_without_java_spark_is_refused_in_one_sentence_that_names_the_other_engine(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    trace = ROOT / "fixtures" / "traces" / "write.jsonl"
    report = [*SEGSTORE, "trace", "report", str(trace), "--out", str(tmp_path / "report"), "--engine", "spark"]
    done = subprocess.run(report, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("segstore: Spark ")
    if "is not installed" not in done.stderr:
        assert done.stderr.endswith("`segstore trace report --engine local` needs no Java\n")


def test_without_a_compiler_the_build_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    command += ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    nothing = {key: value for key, value in os.environ.items() if key != "CC"} | {"PATH": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=nothing, timeout=PATIENCE_S
    )
    assert done.returncode == 0
    assert 'building extension "segstore._speed" failed' in done.stdout + done.stderr
    assert list(tmp_path.rglob("*.so")) == []


async def test_clients_and_taps_connect_without_the_proxy_of_the_environment(
    grpc_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with MockCluster() as mock:
        tap = Tap(f"tcp://{mock.controller_uri}", None)
        await tap.start()
        try:
            for uri in (mock.controller_uri, tap.controller_uri):
                async with connect(f"tcp://{uri.removeprefix('tcp://')}", settings()) as pravega:
                    await pravega.controller.create_scope("a")
                    await pravega.controller.create_stream("a", "s")
                    async with pravega.event_writer("a", "s") as writer:
                        await writer.write(b"event")
        finally:
            await tap.stop(drain_s=0)


def test_commands_need_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a file"
    file.touch()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(file / "none"))  # cannot be created
    trace = tmp_path / "t.wtrace"
    serve = [*SEGSTORE, "serve", "--port", "0", "--controller-port", "0", "--announce", "json", "--record", str(trace)]
    with started(serve) as (server, line):
        monkeypatch.setenv("SEGSTORE_CONTROLLER", f"tcp://{json.loads(line)['controller']}")
        for arguments in (("scopes", "create", "a"), ("streams", "create", "a/s")):
            subprocess.run([*SEGSTORE, "admin", *arguments], check=True, timeout=PATIENCE_S)
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    report = [*SEGSTORE, "trace", "report", str(trace), "--engine", "local", "--out", str(tmp_path / "report")]
    done = subprocess.run(report, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, (tmp_path / "report" / "report.html").is_file()) == (0, True), done.stderr
