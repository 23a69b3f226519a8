"""What a Java client wrote for reader groups: a recording of its connections, and objects made for tests."""

import json
from pathlib import Path
from typing import Any

from segstore.wire.inspect import payload_parts

__all__ = ["java_configs", "java_events", "java_updates"]

_FIXTURES = Path(__file__).parents[3] / "fixtures"
_RECORDED = _FIXTURES / "traces/java.jsonl"
_MADE = _FIXTURES / "reader-groups/updates.ndjson"
_BYTES = 796


def java_events() -> list[bytes]:
    """All events that a Java client wrote to the stream of a reader group."""
    for line in _RECORDED.read_text("utf-8").splitlines():
        record = json.loads(line)
        if record.get("type") == "SEGMENT_READ" and record["fields"]["segment"].startswith("scope/_RG"):
            data = bytes.fromhex(record["fields"]["data"])
            if record["fields"]["offset"] == 0 and len(data) == _BYTES:
                return [bytes(part.data) for part in payload_parts(data)]
    raise AssertionError("the recording has no stream of a group")


def _made() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _MADE.read_text("utf-8").splitlines()]


def java_configs() -> dict[str, bytes]:
    return {each["config"]: bytes.fromhex(each["hex"]) for each in _made() if "config" in each}


def java_updates() -> list[tuple[str, bytes, bytes]]:
    """What each update does, its bytes, and the whole state after it; in order."""
    made = [each for each in _made() if "update" in each]
    return [(each["update"], bytes.fromhex(each["hex"]), bytes.fromhex(each["state"])) for each in made]
