"""The official client, explored: what docs/reference/explorer.md and docs/topics/findings-in-clients.md say of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from segstore.explore import CommandClient, explore, words_of

pytestmark = [pytest.mark.needs("pravega, the official client"), pytest.mark.usefixtures("grpc_runs")]

WRITES = """
import os, sys
import pravega_client
manager = pravega_client.StreamManager("tcp://" + sys.argv[1], False, False)
manager.create_scope("scope")
manager.create_stream("scope", "stream", 1)
writer = manager.create_writer("scope", "stream")
for number in range(5):
    writer.write_event(f"event{number}", "key")
writer.flush()
os._exit(0)
"""


def writer(folder: Path) -> CommandClient:
    script = folder / "client.py"
    script.write_text(WRITES)
    return CommandClient(words_of([sys.executable, str(script), "{controller}"]))


@pytest.mark.timeout(300)
async def test_the_official_writer_breaks_at_no_cut_of_its_connection(tmp_path: Path) -> None:
    explored = await explore(writer(tmp_path), timeout_s=60, match="kind = frame", failures=["cut *"], jobs=2)
    assert explored.findings == []
    # Hello, the set-up and the classes of appends at the least, cut in three ways each.
    assert explored.runs >= 4 * 3 + 2
    assert explored.unreached == []


@pytest.mark.timeout(300)
async def test_two_wrong_hosts_at_a_set_up_make_the_official_writer_panic(tmp_path: Path) -> None:
    failures = ["WrongHost", "WrongHost for ever"]
    explored = await explore(writer(tmp_path), timeout_s=60, match="type = SETUP_APPEND", failures=failures, jobs=2)
    (finding,) = explored.findings
    assert (finding.name, finding.kinds) == ("WrongHost for ever at SETUP_APPEND 1", {"crashed"})
    assert "must have connection" in finding.broken[0]
