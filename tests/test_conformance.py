"""The conformance runner: it sees what disagrees, says where, and passes nothing over."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from segstore.wire import encode
from segstore.wire.inspect import command_named
from tests.conformance import dialogues, read_lines
from tests.conformance.__main__ import main
from tests.conformance.recorded import recorded_files

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def records(name: str) -> list[dict[str, Any]]:
    return [line.what for line in read_lines(FIXTURES / name)]


def folder_of(folder: Path, *lines: object, name: str = "some.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def flipped(data: str, at: int) -> str:
    """Hex with one bit of the byte at that offset turned."""
    turned = bytearray.fromhex(data)
    turned[at] ^= 1
    return turned.hex()


def test_all_vectors_of_the_fixtures_agree() -> None:
    status, output = run("--only-vectors", FIXTURES)
    counts = re.findall(r"^(\S+): (\d+) of (\d+) agree$", output, re.MULTILINE)
    assert status == 0, output
    assert {Path(name).name for name, _, _ in counts} == {path.name for path in recorded_files(FIXTURES)}
    assert all(int(agree) == int(all_of) > 0 for _, agree, all_of in counts)


def test_all_conversations_of_the_fixtures_agree_with_a_fresh_server() -> None:
    status, output = run(FIXTURES / "conversations")
    assert status == 0, output
    assert len(re.findall(r": (\d+) of \1 agree", output)) == 5


def a_dialogue(name: str) -> dict[str, Any]:
    return next(record for record in records("conversations/plain.jsonl") if record["name"] == name)


def test_a_wrong_byte_in_a_recorded_reply_is_seen_and_shown_by_field(tmp_path: Path) -> None:
    good, bad = a_dialogue("setup_append"), a_dialogue("keepalive")
    reply = next(step for step in bad["steps"] if step.get("replies"))["replies"][0]
    assert reply["type"] == "HELLO"
    reply["hex"] = flipped(reply["hex"], 11)
    status, output = run(folder_of(tmp_path, good, bad))
    assert status == 1
    assert "1 of 2 agree" in output
    assert "high_version: expected 16, found 17" in output
    assert re.search(r"-\s+000008  00 00 00 10 +high_version +16\n\s+\+\s+000008  00 00 00 11", output), output


def test_replies_and_closes_that_do_not_come_or_were_not_recorded_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogues, "REPLY_TIMEOUT_S", 0.5)
    more, fewer, closed = (a_dialogue("keepalive") for _ in range(3))
    reply = next(step for step in more["steps"] if step.get("replies"))["replies"][0]
    more["name"] = "keepalive_more"
    more["steps"] = [{"op": "open", "conn": "A"}, {"op": "wait", "ms": 1, "replies": [reply]}]
    fewer["name"] = "keepalive_fewer"
    next(step for step in fewer["steps"] if step.get("replies"))["replies"] = []
    closed["name"] = "keepalive_closed"
    closed["steps"] = [{"op": "open", "conn": "A"}, {"op": "wait", "ms": 1, "closed": [{"conn": "A"}]}]
    status, output = run(folder_of(tmp_path, fewer))
    assert status == 1
    assert "A: expected no such reply, found HELLO" in output
    status, output = run(folder_of(tmp_path, more, closed))
    assert status == 1
    assert "A: expected HELLO high_version=17 low_version=5, found no such reply" in output
    assert "closed: expected ['A'], found none" in output


def test_deviations_are_counted_by_name_and_excuse_nothing_else(tmp_path: Path) -> None:
    sealed = command_named("SEAL_TABLE_SEGMENT")
    frame = encode(sealed.from_dict({"request_id": 1, "segment": "t", "delegation_token": ""}))
    refused = {"category": "unknown_type", "case": "code 72", "hex": frame.hex(), "ok": False}
    status, output = run(folder_of(tmp_path, refused))
    assert status == 0
    assert "0 of 1 agree, 1 deviation (legacy-table-commands 1)" in output
    hello = {"category": "unknown_type", "case": "code -127", "hex": "ffffff81000000080000001100000005", "ok": False}
    status, output = run(folder_of(tmp_path, refused, hello))
    assert status == 1
    assert "0 of 2 agree, 1 deviation" in output


DEVIATIONS = {
    "legacy-table-commands",
    "tail-reads-end",
    "exact-values",
    "first-error-ends",
    "shared-writer-id",
    "append-beyond-a-frame",
    "bounded-writers",
    "bounded-connections",
    "bounded-memory",
    "merged-indexes",
    "merges-across-containers",
    "older-versions",
    "nothing-after-the-end",
    "reader-groups-again",
    "watermark-streams",
    "watermark-offsets",
    "no-system-scope",
    "completed-transactions",
    "bounded-calls",
    "tag-lists",
    "lease-slack",
    "calls-that-end",
    "cuts-with-gaps",
    "page-tokens",
    "password-files",
    "access-patterns",
    "own-words",
}


def test_every_deviation_has_its_section_in_the_docs() -> None:
    text = (ROOT / "docs" / "project" / "deviations.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == DEVIATIONS
    for name, section in sections.items():
        assert "\nWhy: " in section, name
        for path in re.findall(r"^Test: `([^`]+)`", section, re.MULTILINE) or ["none is named"]:
            assert (ROOT / path).exists(), f"{name}: {path}"
