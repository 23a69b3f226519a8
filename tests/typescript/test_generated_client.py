"""A client that another project's generator makes of the served description compiles, and steers the server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from segstore.client import connect
from tests.conftest import TYPESCRIPT
from tests.processes import PATIENCE_S, SERVE, started

HERE = Path(__file__).parent
pytestmark = pytest.mark.needs("node", "npm's packages openapi-ts and typescript")


def run(folder: Path, tool: str, *given: str) -> str:
    done = subprocess.run(
        ["node", TYPESCRIPT / "node_modules" / tool, *given],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    with started(SERVE) as (process, line):
        yield json.loads(line)
        process.terminate()


@pytest.fixture(scope="module")
def program(addresses: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that uses the client, which was generated and compiled with it."""
    folder = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "tsconfig.json", "openapi-ts.config.mjs", "drive.ts"):
        shutil.copy(HERE / name, folder)
    description = httpx.get(f"http://{addresses['http']}/v1/openapi.json", trust_env=False, timeout=PATIENCE_S)
    (folder / "openapi.json").write_bytes(description.content)
    run(folder, "@hey-api/openapi-ts/bin/index.cjs")
    run(folder, "typescript/bin/tsc")
    return folder / "out" / "drive.js"


async def _append(controller: str) -> None:
    async with connect(f"tcp://{controller}") as pravega, pravega.event_writer("shop", "orders") as writer:
        await writer.write(b"from another client", routing_key="a")


@pytest.fixture(scope="module")
def seen(addresses: dict[str, str], program: Path) -> dict[str, Any]:
    """What the program has seen, while another client wrote one event."""
    with started(["node", str(program), f"http://{addresses['http']}"]) as (process, line):
        if line == "ready\n":
            asyncio.run(_append(addresses["controller"]))
        printed, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, line, errors) == (0, "ready\n", "")
    found: dict[str, Any] = json.loads(printed)
    return found


def test_a_stream_is_created_and_its_events_are_written_and_read(seen: dict[str, Any]) -> None:
    assert (seen["segments"], seen["written"]) == (2, 2)
    assert seen["read"] == [{"order": 1}, "hello"]


def test_another_clients_append_meets_a_rule_and_is_waited_for_verified_and_shown(seen: dict[str, Any]) -> None:
    assert (seen["added"], seen["fired"], seen["matched"], seen["verified"]) == ("late", 1, "APPEND_BLOCK_END", 1)
    assert seen["unverified"] == 409
    assert seen["payload"] == ["from another client"]
    assert seen["trace"] > 100


def test_a_restored_snapshot_has_what_was_there_before(seen: dict[str, Any]) -> None:
    assert seen["restored"] == 2


def test_refusals_are_typed_problems(seen: dict[str, Any]) -> None:
    assert seen["wrongAction"]["detail"] == "body.do[0]: 'WrongHots' is not a reply (WrongHost?)"
    assert seen["wrongAction"]["where"] == "body.do[0]"
    assert seen["missing"]["status"] == 404
