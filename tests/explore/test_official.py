"""The official client, explored: what docs/reference/explorer.md says of it."""

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


@pytest.mark.timeout(300)
async def test_the_official_writer_breaks_at_no_cut_of_its_connection(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(WRITES)
    client = CommandClient(words_of([sys.executable, str(script), "{controller}"]))
    explored = await explore(client, timeout_s=60, match="kind = frame", failures=["cut *"], jobs=2)
    assert explored.findings == []
    # Hello, the set-up and the classes of appends at the least, cut in three ways each.
    assert explored.runs >= 4 * 3 + 2
    assert explored.unreached == []
