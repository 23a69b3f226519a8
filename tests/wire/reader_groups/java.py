"""Events that a Java client wrote to the stream of a reader group, from a recording of its connections."""

from __future__ import annotations

import json
from pathlib import Path

from segstore.wire.inspect import payload_parts

_RECORDED = Path(__file__).parents[3] / "fixtures/traces/java.jsonl"
_BYTES = 796


def java_events() -> list[bytes]:
    """All events that a Java client wrote to the stream of a reader group."""
    for line in _RECORDED.read_text("utf-8").splitlines():
        record = json.loads(line)
        if record.get("type") == "SEGMENT_READ" and record["fields"]["segment"].startswith("scope/_RG"):
            data = bytes.fromhex(record["fields"]["data"])
            if record["fields"]["offset"] == 0 and len(data) == _BYTES:
                return [bytes(each.data) for each in payload_parts(data)]
    raise AssertionError("the recording has no stream of a group")
