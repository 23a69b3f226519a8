"""`segstore serve --faults`: rules act, and those of no use are said when it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from segstore.wire import CreateSegment, FrameDecoder, Hello, WrongHost, encode


def test_rules_act_on_what_is_served_and_idle_ones_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "rules:\n  - {match: type = CREATE_SEGMENT, do: WrongHost}\n"
        "  - {match: type = MERGE_SEGMENTS, do: close, name: never}\n"
    )
    command = [sys.executable, "-m", "segstore", "serve", "--port", "0", "--controller-port", "0", "--announce", "json"]
    with subprocess.Popen(
        [*command, "--faults", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            host, _, port = json.loads(process.stdout.readline())["segment_store"].rpartition(":")
            with socket.create_connection((host, int(port)), timeout=60) as peer:
                peer.sendall(encode(Hello(17, 5)) + encode(CreateSegment(3, "a/b/0.#epoch.0", 0, 0, "", 0)))
                decoder, replies = FrameDecoder(), []
                while len(replies) < 2:
                    replies += decoder.feed(peer.recv(4096))
            assert replies[1] == WrongHost(3, "a/b/0.#epoch.0", "", "")
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "fault 'never' has matched nothing: name 'never', match 'type = MERGE_SEGMENTS'" in said
