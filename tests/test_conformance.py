"""The conformance runner: it sees what disagrees, says where, and passes nothing over."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from segstore.wire import COMMANDS, decode, encode
from segstore.wire.inspect import command_named
from tests.conformance import Kind, Unreadable, dialogues, kind_of, read_lines, servers
from tests.conformance.__main__ import main
from tests.conformance.masking import TransientNames, mask, prints_a_buffer
from tests.conformance.recorded import recorded_files

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
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


# What is recorded agrees -----------------------------------------------------------------------------------------


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


def test_traces_are_no_records_of_the_reference() -> None:
    passed_over = set(FIXTURES.rglob("*.jsonl")) - set(recorded_files(FIXTURES))
    assert passed_over == {*(FIXTURES / "traces").glob("*.jsonl"), *(FIXTURES / "reference").glob("*.jsonl")}


def test_the_fixtures_hold_every_kind_of_record() -> None:
    found = {line.kind for path in recorded_files(FIXTURES) for line in read_lines(path)}
    assert found == set(Kind)


def test_64_bit_integers_are_text_that_any_json_parser_reads_exactly() -> None:
    numbers: list[int] = []
    for path in recorded_files(FIXTURES / "vectors"):
        for line in path.read_text("utf-8").splitlines():
            json.loads(line, parse_int=lambda digits: numbers.append(int(digits)))
    assert max(map(abs, numbers)) <= 1 << 31


# What does not is seen -------------------------------------------------------------------------------------------


def flip_hex(record: dict[str, Any]) -> None:
    record["hex"] = flipped(record["hex"], -1)


def flip_decoded(record: dict[str, Any]) -> None:
    record["decoded"] = {**record["decoded"], "requestId": "77"}


def flip_ok(record: dict[str, Any]) -> None:
    record["ok"] = not record["ok"]


def flip_case(record: dict[str, Any]) -> None:
    record["case"] = "new Padding(1)"


def flip_units(record: dict[str, Any]) -> None:
    record["utf16"] = [65, *record["utf16"]]


def flip_framing(record: dict[str, Any]) -> None:
    record["steps"][-1]["decoded"] = [{"type": "KEEP_ALIVE", "fields": {}}] * 2


def flip_stream(record: dict[str, Any]) -> None:
    record["out"] = flipped(record["out"], -1)


def flip_sha(record: dict[str, Any]) -> None:
    record["out_sha256"] = flipped(record["out_sha256"], 0)


def flip_append(record: dict[str, Any]) -> None:
    step = next(step for step in record["steps"] if step["out"] and step["out"][0]["kind"] == "append")
    step["out"][0]["data"] = flipped(step["out"][0]["data"], 0)


def flip_container(record: dict[str, Any]) -> None:
    record["container"]["1000"] += 1


def flip_fields(record: dict[str, Any]) -> None:
    record["fields_in_class_order"].reverse()


def flip_java_type(record: dict[str, Any]) -> None:
    record["fields_in_class_order"][0]["java_type"] = "byte"


def flip_reply_flag(record: dict[str, Any]) -> None:
    record["isReply"] = not record["isReply"]


def flip_request_id(record: dict[str, Any]) -> None:
    record["requestId"] += 1


def flip_ops(record: dict[str, Any]) -> None:
    record["ops"][0][1] += 1


FLIPS: list[tuple[str, Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], None], str]] = [
    ("commands", lambda r: r["type"] == "SEGMENT_CREATED", flip_hex, r"encode \(python\): byte \d+ \(segment\)"),
    ("commands", lambda r: r["type"] == "SEGMENT_CREATED", flip_request_id, "requestId: expected"),
    ("commands", lambda r: r["type"] == "SEGMENT_CREATED", flip_reply_flag, "isReply: expected"),
    ("commands", lambda r: "ops" in r and r["type"] == "HELLO", flip_ops, r"ops: byte \d+ \(high_version\)"),
    ("legacy", lambda r: "requestId" in r["decoded"], flip_decoded, "request_id: expected 77, found"),
    ("malformed", lambda r: "hex" in r and not r["ok"], flip_ok, "cannot be compared"),
    ("malformed", lambda r: "hex" in r and r["ok"], flip_ok, r"decode \(construct\): expected a refusal"),
    ("malformed", lambda r: "hex" not in r, flip_case, "expected a refusal"),
    ("mutations", lambda r: r["ok"] and "requestId" in r["decoded"], flip_decoded, "request_id: expected 77, found"),
    ("mutf8", lambda r: r["op"] == "encode" and r["string"] == "\0\0", flip_hex, r"encode \(construct\)"),
    ("mutf8", lambda r: r["op"] == "decode" and r["ok"], flip_units, r"decode \(python\): expected \[65"),
    ("framing", lambda r: r["case"] == "3 byte chunks", flip_framing, r"step \d+ \(construct\)"),
    ("append_streams", lambda r: r["complete"], flip_stream, r"whole stream: byte \d+"),
    ("append_streams_big", lambda r: True, flip_sha, "whole stream: expected SHA-256"),
    ("append_decode", lambda r: True, flip_append, r"step \d+: \[0\]\.data"),
    ("containers", lambda r: True, flip_container, "of 1000 containers: expected"),
    ("schema", lambda r: r["type"] == "HELLO", flip_fields, "fields: expected"),
    ("schema", lambda r: r["type"] == "HELLO", flip_java_type, "high_version: expected byte"),
]


@pytest.mark.parametrize(
    ("name", "chosen", "flip", "says"), FLIPS, ids=[f"{flip[0]} {flip[2].__name__}" for flip in FLIPS]
)
def test_a_wrong_expectation_in_a_vector_is_seen(
    tmp_path: Path,
    name: str,
    chosen: Callable[[dict[str, Any]], bool],
    flip: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    record = next(record for record in records(f"vectors/{name}.jsonl") if chosen(record))
    assert run(folder_of(tmp_path, record))[0] == 0
    flip(record)
    status, output = run(folder_of(tmp_path, record))
    assert status == 1
    assert "0 of 1 agree" in output
    assert re.search(says, output), output


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


def test_the_fields_beside_a_recorded_reply_are_held_against_the_codec(tmp_path: Path) -> None:
    record = a_dialogue("keepalive")
    next(step for step in record["steps"] if step.get("replies"))["replies"][0]["fields"]["lowVersion"] = 6
    status, output = run("--only-vectors", folder_of(tmp_path, record))
    assert status == 1
    assert "fields.low_version: expected 6, found 5" in output


def test_a_server_that_does_not_start_is_a_disagreement_that_says_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(servers.SETUPS, "plain", ("--own", "99"))
    status, output = run(folder_of(tmp_path, a_dialogue("keepalive")))
    assert status == 1
    assert "0 of 1 agree" in output
    assert "own names container 99" in output


# Nothing is passed over ------------------------------------------------------------------------------------------


def test_a_kind_is_determined_by_keys_and_not_by_the_name_of_the_file(tmp_path: Path) -> None:
    lines = [records(f"vectors/{name}.jsonl")[0] for name in ("containers", "mutf8", "schema", "append_decode")]
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    folder_of(inner, *lines, name="other name.json")
    status, output = run(tmp_path)
    assert status == 0
    assert "other name.json: 4 of 4 agree" in output


def test_a_folder_without_a_recorded_file_fails(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing", "utf-8")
    status, output = run(tmp_path)
    assert status == 1
    assert "no file whose name ends in .jsonl or .json" in output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"segment": "a", "container": {"1": 0}}\n{"segment": ', "line 2: not JSON"),
        ('{"what": "is this", "hex": "00"}\n', r"line 1: a record of no known kind \(what, hex\)"),
        ("[1, 2]\n", r"line 1: a record of no known kind \(list\)"),
        ("\n \n", "holds no record"),
        ("\udcff", "cannot be read"),
        ("[" * 100_000, "line 1: not JSON"),
        ('{"name": "a", "server": "moon", "steps": []}\n', "line 1: no server set-up 'moon'"),
        ('{"name": "a", "server": "plain", "steps": [{"op": "jump"}]}\n', "line 1: step 0: no such op: 'jump'"),
        ('{"name": "a", "server": "plain", "steps": [{"op": "open"}]}\n', "line 1: dialogue 'a': KeyError: 'conn'"),
    ],
    ids=["torn", "unknown", "list", "blank", "bytes", "deep", "set-up", "op", "step"],
)
def test_what_cannot_be_read_fails_and_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    folder_of(tmp_path, records("vectors/containers.jsonl")[0], name="good.jsonl")
    status, output = run(tmp_path)
    assert status == 1
    assert re.search(says, output), output
    assert "good.jsonl: 1 of 1 agree" in output


def test_a_record_of_a_wrong_shape_disagrees(tmp_path: Path) -> None:
    status, output = run(folder_of(tmp_path, {"segment": "a", "container": {"none": 0}}))
    assert status == 1
    assert "cannot be compared: ValueError" in output


@pytest.mark.parametrize("given", [{"expectedLength": 5}, {"expectedLength": -1}, {}], ids=["length", "any", "none"])
def test_an_append_with_an_expected_length_is_refused(tmp_path: Path, given: dict[str, int]) -> None:
    record = next(each for each in records("vectors/append_streams.jsonl") if each["name"] == "one event, block 100")
    at, good = next((at, step) for at, step in enumerate(record["steps"]) if step["op"] == "append")
    refused = {**good, "out": "", "flush": False, "exception": "java.lang.IllegalArgumentException", "message": None}
    record["steps"].insert(at, {**refused, **given})
    status, output = run(folder_of(tmp_path, record))
    assert status == 0, output
    record["steps"][at] = {**record["steps"][at], "exception": "io.pravega.InvalidMessageException"}
    assert run(folder_of(tmp_path, record))[0] == (0 if given else 1)


def test_an_encoder_case_that_cannot_be_expressed_disagrees(tmp_path: Path) -> None:
    status, output = run(folder_of(tmp_path, {"category": "encode", "case": "an odd thing", "ok": False}))
    assert status == 1
    assert "has no form that this runner knows" in output


@pytest.mark.parametrize(
    "case", ["new Padding(-1)", 'new SegmentCreated(1L, "a".repeat(65536))', "new Hello(2147483648, 1)"]
)
def test_encoder_cases_are_constructor_calls(tmp_path: Path, case: str) -> None:
    status, output = run(folder_of(tmp_path, {"category": "encode", "case": case, "ok": False}))
    assert status == 0, output


@pytest.mark.parametrize("cls", list(COMMANDS.values()), ids=lambda cls: str(cls.type_name))
def test_a_string_that_is_too_long_is_a_case_for_any_command(tmp_path: Path, cls: type[Any]) -> None:
    def case(size: int) -> dict[str, Any]:
        error = {"exception": "java.io.UTFDataFormatException", "message": f"encoded string too long: {size} bytes"}
        return {"category": "encode", "case": f"{cls.__name__} with a long string", "ok": False, **error}

    assert run(folder_of(tmp_path, case(65536)))[0] == 0
    assert run(folder_of(tmp_path, case(65535)))[0] == 1


def test_a_kind_of_nothing_is_none() -> None:
    assert kind_of({}) is None
    assert kind_of({"steps": [{"hex": ""}]}) is None
    with pytest.raises(Unreadable) as caught:
        read_lines(FIXTURES / "no such file")
    assert caught.value.line is None


# What is excused, and what is masked -----------------------------------------------------------------------------


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


def test_a_dialogue_that_shows_a_deviation_is_excused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogues, "REPLY_TIMEOUT_S", 0.5)
    listed = encode(command_named("STORAGE_CHUNKS_LISTED")(1, ())).hex()
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("SEAL_TABLE_SEGMENT", "t", {"replies": [], "closed": [{"conn": "A", "how": "eof"}]}),
        ("LIST_STORAGE_CHUNKS", "_system/containers/metadata_0", {"replies": [{"conn": "A", "hex": listed}]}),
    ]
    for type_name, segment, expected in cases:
        fields = {"requestId": 1, "segment": segment, "delegationToken": ""}
        frame = made(type_name, request_id=1, segment=segment, delegation_token="").hex()
        send = {"op": "send", "conn": "A", "send_hex": frame, "send": {"type": type_name, "fields": fields}}
        dialogue = {"name": type_name, "server": "plain-admin", "steps": [{"op": "open", "conn": "A"}, send | expected]}
        folder_of(tmp_path, dialogue, name=f"{type_name}.json")
    status, output = run(tmp_path)
    assert status == 0, output
    assert "1 deviation (legacy-table-commands 1)" in output
    assert "1 deviation (no-system-scope 1)" in output


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


def made(type_name: str, **fields: Any) -> bytes:
    return encode(command_named(type_name).from_dict(fields))


def test_a_stack_trace_is_masked_but_not_whether_there_is_one() -> None:
    one, other, none = (
        made("NO_SUCH_SEGMENT", request_id=1, segment="s", server_stack_trace=trace, offset=-1)
        for trace in ("at A", "at B\nat C", "")
    )
    assert mask(one) == mask(other)
    assert mask(one) != mask(none) == none


def test_every_failure_reply_with_a_stack_trace_is_masked() -> None:
    carrying = [cls for cls in COMMANDS.values() if "server_stack_trace" in cls.__struct_fields__]
    assert len(carrying) > 8
    for line in records("vectors/commands.jsonl"):
        if COMMANDS[line["code"]] in carrying and line["fields"]["serverStackTrace"]:
            frame = bytes.fromhex(line["hex"])
            masked: Any = decode(mask(frame))
            assert masked.server_stack_trace == "<stack trace>"


def test_times_are_masked_only_where_they_are_times() -> None:
    clock, number = 1_700_000_000_000, 12
    assert mask(made("SEGMENT_ATTRIBUTE", request_id=1, value=clock)) == made(
        "SEGMENT_ATTRIBUTE", request_id=1, value=0
    )
    assert mask(made("SEGMENT_ATTRIBUTE", request_id=1, value=number)) != mask(
        made("SEGMENT_ATTRIBUTE", request_id=1, value=number + 1)
    )

    def read(segment: str, time_ms: int) -> bytes:
        fields = {"segment": segment, "offset": 0, "at_tail": False, "end_of_segment": False, "request_id": 1}
        return made("SEGMENT_READ", **fields, data=struct.pack(">qqq", 5, 1, time_ms).hex())

    assert mask(read("a/b/0#index", 1)) == mask(read("a/b/0#index", 2))
    assert mask(read("a/b/0", 1)) != mask(read("a/b/0", 2))


def test_a_frame_that_is_not_what_it_decodes_to_is_not_masked() -> None:
    frame = bytearray(made("TABLE_SEGMENT_INFO", **dict.fromkeys(_info(), 0) | {"segment_name": "t"}))
    frame += b"tail"
    frame[7] += 4
    assert mask(bytes(frame)) == bytes(frame)
    assert mask(b"\0\0\0\x45\0\0\0\1x") == b"\0\0\0\x45\0\0\0\1x"
    assert mask(b"short") == b"short"


def _info() -> tuple[str, ...]:
    return command_named("TABLE_SEGMENT_INFO").__struct_fields__


def test_a_message_that_prints_a_buffer_is_masked_on_both_sides() -> None:
    def message(text: str) -> bytes:
        fields = {"request_id": 1, "segment": "s", "error_code": "ILLEGAL_ARGUMENT_EXCEPTION"}
        return made("ERROR_MESSAGE", **fields, message=text)

    assert prints_a_buffer(message("key ByteBuf(ridx: 0)"))
    assert not prints_a_buffer(message("key"))
    assert mask(message("one"), messages=True) == mask(message("other"), messages=True)
    assert mask(message("one")) != mask(message("other"))


def test_the_names_that_the_server_gave_replace_the_recorded_ones() -> None:
    recorded, given = ("p#transient." + digit * 32 + "." + digit * 32 for digit in "12")
    names = TransientNames()
    names.learn(
        [made("SEGMENT_CREATED", request_id=1, segment=recorded)],
        [made("SEGMENT_CREATED", request_id=1, segment=given)],
    )
    seal = made("SEAL_SEGMENT", request_id=2, segment=recorded, delegation_token="")
    assert names.put(seal) == made("SEAL_SEGMENT", request_id=2, segment=given, delegation_token="")


# Choosing --------------------------------------------------------------------------------------------------------


def test_dialogues_are_chosen_by_family_and_by_name(tmp_path: Path) -> None:
    folder_of(tmp_path, *records("conversations/plain.jsonl"))
    status, output = run("--families", "keepalive,padding", tmp_path)
    assert status == 0, output
    assert ": 2 of 2 agree" in output
    assert ": 1 of 1 agree" in run("--only", "^keep", tmp_path)[1]


@pytest.mark.parametrize("arguments", [["--only", "("], ["--at", "nowhere"], ["--admin-at", "h:1"], ["--no-such"]])
def test_wrong_options_end_with_status_2(tmp_path: Path, arguments: list[str]) -> None:
    assert run(*arguments, tmp_path)[0] == 2
