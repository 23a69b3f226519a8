"""The official client, cut at every point of a dialogue: what docs/how-to/explore-disconnects.md says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from segstore.explore import explore_command

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
    found = await explore_command(f"{sys.executable} {script} {{controller}}", timeout_s=60)
    assert found.findings == []
    # The set-up and five appends at the least, cut in three ways each.
    assert found.runs >= 6 * 3 + 1
    assert found.unreached == []
