"""`segstore ctl` against a served store: tables, JSON, refusals in one line, shell completion."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

from segstore.cli import main
from segstore.testing import RunningServer, ServerThread
from segstore.traces import TraceFile
from segstore.wire import CreateSegment, Hello, SegmentCreated, encode
from segstore.wire.trace import RecordKind
from tests.looped import looped
from tests.processes import PATIENCE_S, invoke

Run = Callable[..., Result]


def _start_the_only_worker(_: object) -> None:
    """One thread for what the server's loop does in threads, from the start: no test leaves another behind."""
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    executor.submit(int).result()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ServerThread() as servers:
        served = servers.serve(http_port=0, rest_port=0)
        served._do(_start_the_only_worker)
        assert served.controller_uri  # starts the controller, for all tests
        yield served


@pytest.fixture
def run(server: RunningServer) -> Run:
    server.reset()

    def ctl(*given: str) -> Result:
        return invoke("ctl", "--url", server.http_url, *given)

    return ctl


def test_rules_are_added_listed_released_and_removed(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n- {match: type = READ_SEGMENT, do: hold, name: held reads}\n", encoding="utf-8")
    assert run("faults", "add", "-f", str(rules)).output == "name: held reads\n"
    assert run("faults", "list").output.splitlines() == [
        "name        matched  fired  held  enabled",
        "held reads  0        0      0     true",
    ]
    assert run("faults", "release", "held reads").output == "released: 0\n"
    assert run("faults", "remove", "held reads").exit_code == 0
    missing = run("faults", "release", "held reads")
    assert missing.exit_code == 1
    assert missing.output == "segstore: no rule has the name 'held reads'; there are no rules\n"
    rules.write_text("rules: [{do: nothing}]", encoding="utf-8")
    wrong = run("faults", "add", "-f", str(rules))
    assert (wrong.exit_code, wrong.output.count("\n"), "rules.yaml: line 1" in wrong.output) == (1, 1, True)


def test_rules_and_toxics_are_added_as_they_are_typed(run: Run) -> None:
    assert run("faults", "add", "type = HELLO", "--nth", "3", "--do", "close after").output == "name: rule 1\n"
    assert run("faults", "add", "--do", "{delay_ms: 5}", "--do", "close", "--name", "two").output == "name: two\n"
    both = json.loads(run("api", "GET", "faults").output)["rules"]
    assert [(each["rule"]["match"], each["rule"]["nth"], len(each["rule"]["do"])) for each in both] == [
        ("type = HELLO", [3], 1),
        ("", [], 2),
    ]
    assert run("toxics", "add", "latency", "latency=100", "jitter=50").output == "name: latency_downstream\n"
    assert '"latency": 100.0' in run("toxics", "list").output
    for wrong in (
        ["faults", "add", "type = HELLO"],
        ["toxics", "add", "latency", "jitter"],
        ["faults", "add", "--do", "{"],
    ):
        assert run(*wrong).exit_code == 2
    refused = run("toxics", "add", "latency", "jiter=50")
    assert (refused.exit_code, "(jitter?)" in refused.output) == (1, True)


def test_a_fault_file_is_added_or_replaces_all(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text("rules: [{do: hold, name: one}]\ntoxics: [{type: latency, latency: 1}]\n", encoding="utf-8")
    assert run("faults", "add", "-f", str(file)).output == "name: one\nname: latency_downstream\n"
    assert run("toxics", "list").output.splitlines()[1].startswith("latency_downstream  0 ")
    file.write_text("seed: 3\nround_trip_ms: 2\nrules: [{do: hold, name: two}]\n", encoding="utf-8")
    refused = run("faults", "add", "-f", str(file))
    assert (refused.exit_code, "seed replaces that of the server; use faults replace" in refused.output) == (1, True)
    assert run("faults", "replace", "-f", str(file)).output.splitlines()[1].startswith("two ")
    assert run("toxics", "list").output.splitlines() == ["name  connections  toxic"]
    found = json.loads(run("--json", "faults", "list").output)
    assert (found["seed"], found["round_trip_ms"]) == (3, 2)
    assert run("faults", "round-trip", "0").output == "round_trip_ms: 0.0\n"
    unmatched = run("faults", "unmatched")
    assert (unmatched.exit_code, unmatched.output) == (1, "fault 'two' has matched nothing: name 'two'\n")
    run("faults", "remove")
    assert (run("faults", "unmatched").exit_code, run("faults", "unmatched").output) == (0, "")


def test_decisions_and_connections_are_listed_and_connections_cut(run: Run, server: RunningServer) -> None:
    server.faults.add("type = HELLO", do={"delay_ms": 0}, name="slow")
    with socket.create_connection((server.host, server.port)) as peer:
        peer.sendall(encode(Hello(17, 5)))
        assert peer.recv(100)
        _, line = run("faults", "decisions").output.splitlines()
        assert line.split()[1:3] == ["slow", server.faults.decisions[0].action.split()[0]]
        number = run("connections", "list").output.splitlines()[1].split()[0]
        assert run("connections", "cut", number).output.startswith("peer: 127.0.0.1:")
        assert run("connections", "cut", number).exit_code == 1
    assert run("connections", "cut").output == "connections: 0\n"


def test_the_bytes_of_a_segment_are_written_in_pieces(
    run: Run, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.cli.ctl._READ_BYTES", 3)
    server.create_stream("shop", "orders")
    with httpx.Client(base_url=server.http_url, trust_env=False) as http:
        assert http.post("/v1/streams/shop/orders/events", json={"events": [{"text": "event"}]}).is_success
    assert run("read", "shop/orders/0.#epoch.0").stdout_bytes == server.read("shop/orders/0.#epoch.0")
    assert run("read", "shop/orders/1.#epoch.0").exit_code == 1


def test_a_store_of_several_is_steered() -> None:
    with ServerThread() as servers:
        url = servers.serve(stores=2, containers=2, http_port=0).http_url

        def stores(*words: str) -> Any:
            answer = invoke("ctl", "--url", url, "--json", "stores", *words)
            assert answer.exit_code == 0, answer.output
            return json.loads(answer.output)

        before = stores("list")["stores"][1]
        assert stores("stop", "1", "--drain-s", "0.01") == {**before, "serving": False}
        for command in ("start", "cut-session", "heal-session"):
            assert stores(command, "1") == before
        assert stores("expire-session", "1")["store"] == 1
        until = time.monotonic() + PATIENCE_S
        while stores("list")["stores"][1]["serving"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        refused = invoke("ctl", "--url", url, "stores", "expire-session", "1")
        assert (refused.exit_code, "store 1 has no session" in refused.output) == (1, True)
        assert stores("start", "1") == before


def test_a_group_without_a_command_lists(run: Run) -> None:
    groups = ["connections", "faults", "groups", "record", "scopes"]
    for group in [*groups, "snapshot", "stores", "streams", "tables", "toxics"]:
        listed = run(group)
        assert listed.exit_code == 0
        assert listed.output == run(group, "list").output
        assert json.loads(run(group, "--json").output) == json.loads(run("--json", group, "list").output)


def test_traffic_is_recorded_and_downloaded_in_each_form(run: Run, server: RunningServer, tmp_path: Path) -> None:
    assert "name: mine\n" in run("record", "start", "mine").output
    server.create_stream("scope", "recorded", 1)
    with socket.create_connection((server.host, server.port)) as peer:
        peer.sendall(encode(Hello(17, 5)))
        assert peer.recv(100)
    assert run("record", "stop", "mine").output.splitlines()[1] == "running: false"
    for form in ("wtrace", "jsonl", "pcapng"):
        file = tmp_path / f"run.{form}"
        done = run("record", "download", "mine", str(file))
        assert (done.exit_code, done.output) == (0, "")
        with TraceFile(file) as trace:
            frames = [record for record in trace.records() if record.kind is RecordKind.FRAME]
        assert encode(Hello(17, 5)) in [frame.data for frame in frames]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.jsonl", "run.pcapng", "run.wtrace"]
    assert json.loads(run("record", "download", "mine", "-").output.splitlines()[0])["segstore_trace"] == 2
    again = run("record", "download", "mine", str(tmp_path / "run.jsonl"))
    assert (again.exit_code, "never overwrites a file" in again.output) == (1, True)
    assert run("record", "download", "mine", str(tmp_path / "run.txt")).exit_code == 2
    assert run("record", "list").output.splitlines()[1].startswith("mine  false ")
    assert run("record", "delete", "mine").exit_code == 0
    missing = run("record", "download", "mine", str(tmp_path / "new.wtrace"))
    assert missing.exit_code == 1
    assert missing.output == "segstore: no recording has the name 'mine'; there are no recordings\n"
    assert not (tmp_path / "new.wtrace").exists()


def test_data_is_snapshotted_restored_and_reset(run: Run, server: RunningServer) -> None:
    server.create_stream("scope", "stream", 1)
    assert run("snapshot", "take", "a/b").exit_code in (0, 1)
    taken = json.loads(run("--json", "snapshot", "take", "base").output)
    assert (taken["name"], taken["segments"]) == ("base", 2)
    assert run("reset").output == "all data and fault rules are removed: 0 connections were cut\n"
    assert run("segments").output.splitlines() == ["name  store  container  start_offset  length  sealed"]
    assert run("snapshot", "restore", "base").output == "the snapshot is restored: 0 connections were cut\n"
    assert run("segments", "--after", "scope/z").output.splitlines()[1:] == []
    assert run("segments", "scope/").output.splitlines()[1].startswith("scope/stream/0.#epoch.0  0 ")
    assert "base" in run("snapshot", "list").output
    assert run("snapshot", "delete", "base").exit_code == 0
    assert len(json.loads(run("--json", "containers").output)["containers"]) == 4


def create_segment(server: RunningServer, name: str) -> None:
    with socket.create_connection(server.address, 20) as client, client.makefile("rb") as heard:
        client.sendall(encode(Hello(17, 5)) + encode(CreateSegment(1, name, 0, 0, "", 0)))
        expected = encode(SegmentCreated(1, name))
        assert heard.read(len(encode(Hello(17, 5))) + len(expected)).endswith(expected)


def test_requests_are_waited_for_and_verified(run: Run, server: RunningServer) -> None:
    assert run("verify", "--exactly", "0").output == "count: 0\n"
    assert "one of exactly, at_least and at_most is needed" in run("verify", "type = READ_SEGMENT").output
    failed = run("verify", "type = READ_SEGMENT", "--at-least", "1")
    assert failed.exit_code == 1
    assert failed.output.startswith("segstore: expected at least 1 request with type = READ_SEGMENT, 0 were received")
    create_segment(server, "scope/stream/0")
    near = r"  near: request \d+: CREATE_SEGMENT of scope/stream/0 on connection \d+: .*: not segment = scope/bill/0"
    for command in ("verify", "wait"):
        bound = ("--at-least", "1") if command == "verify" else ("--timeout-s", "0.01")
        missed = run(command, "type = CREATE_SEGMENT and segment = scope/bill/0", *bound)
        sentence, *lines = missed.output.splitlines()
        assert (missed.exit_code, " 0 " in sentence, len(lines)) == (1, True, 1)
        assert re.fullmatch(near, lines[0])
    assert run("wait", "--timeout-s", "0.01", "type = READ_SEGMENT").exit_code == 1
    assert re.fullmatch(r"last: \d+\n", run("keep").output)
    assert run("keep", "--end").output == "segstore: this server keeps requests from its start to its end\n"
    assert run("requests", "type =").output.startswith("segstore: query.match: ")


def test_what_a_cluster_holds_is_listed_and_shown(run: Run, server: RunningServer) -> None:
    server.create_stream("scope", "stream", 2)
    with httpx.Client(base_url=server.http_url, trust_env=False) as http:
        events = {"events": [{"text": "a\x1b[31m"}, {"json": {"a": [1]}}]}
        assert http.post("/v1/streams/scope/stream/events", json=events).is_success
        begun = http.post("/v1/streams/scope/stream/transactions").json()["id"]
        assert http.put("/v1/tables/scope/kv", json={"primary_key_bytes": 2}).is_success
        entries = {"entries": [{"key": {"base64": "/wA="}, "value": {"json": {"c": 1}}}]}
        assert http.post("/v1/tables/scope/kv/entries", json=entries).is_success
    assert run("scopes", "list").output == "scope\nscope\n"
    follows = invoke("ctl", "scopes", "list", "--url", server.http_url)
    assert follows.output == "scope\nscope\n"
    assert "tables: 1\n" in run("scopes", "show", "scope").output
    assert run("streams", "list", "scope").output.splitlines()[1].split() == ["stream", "false", "0", "2", "1"]
    assert run("streams", "list").output.splitlines()[1].split()[:2] == ["scope", "stream"]
    assert run("tables", "list").output.splitlines()[1].split()[:2] == ["scope", "kv"]
    server.create_stream("zoo", "stream", 1)
    first = run("streams", "list", "--limit", "1")
    assert (len(first.stdout.splitlines()), "there are more" in first.stderr) == (2, True)
    both = json.loads(run("streams", "--json").output)["streams"]
    assert [(each["scope"], each["stream"]) for each in both] == [("scope", "stream"), ("zoo", "stream")]
    assert "head: 0:0,1:0\n" in run("streams", "show", "scope/stream").output
    page = run("streams", "segments", "scope/stream", "--limit", "1")
    assert page.output.splitlines()[1].startswith("0   0                   0.0  0.5   open    0             31 ")
    assert page.output.endswith("segstore: there are more: --after 0\n")
    assert [line.split(maxsplit=4)[4] for line in run("streams", "tail", "scope/stream").output.splitlines()] == [
        "text",
        "611b5b33316d",
        '{ "a": [ 1 ] }',
    ]
    assert run("transactions", "list", "scope/stream").output.splitlines()[1].startswith(f"{begun}  OPEN ")
    assert "\n\nname  " in run("transactions", "show", "scope/stream", begun).output
    assert run("groups", "list", "scope").output == "group  kind\n"
    assert run("groups", "show", "scope/none").output == "segstore: reader group scope/none does not exist\n"
    assert "scope/kv_kvtable/0.#epoch.0  0.0  1.0   1" in run("tables", "show", "scope/kv").output
    assert run("tables", "entries", "scope/kv").output.splitlines()[1] == 'ff00  { "c": 1 }  0'
    assert json.loads(run("--json", "tables", "list", "scope").output)["tables"][0]["table"] == "kv"
    for wrong in ("kv", "/kv", "scope/", "scope/kv/0"):
        found = run("tables", "show", wrong)
        assert (found.exit_code, "is not SCOPE/NAME" in found.output) == (2, True)


@looped("url", ["https://127.0.0.1:1", "127.0.0.1:80", "http://a@127.0.0.1:1", "http://127.0.0.1/v1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    found = invoke("ctl", "--url", url, "reset")
    assert (found.exit_code, "a URL is http://HOST:PORT" in found.output) == (2, True)


def test_a_server_that_is_not_there_is_named_in_one_line(server: RunningServer) -> None:
    gone = invoke("ctl", "--url", "http://127.0.0.1:1", "reset")
    hint = "start the server with --http-port, or give its address with --url"
    assert (gone.exit_code, gone.output) == (1, f"segstore: http://127.0.0.1:1: Connection refused; {hint}\n")
    other = invoke("ctl", "--url", f"http://127.0.0.1:{server.port}", "reset")
    assert (other.exit_code, other.output.count("\n")) == (1, 1)


def test_a_server_of_another_kind_is_refused_by_every_command() -> None:
    class Strange(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 — as the base class has it

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Strange) as server, ThreadPoolExecutor(1) as serving:
        serving.submit(server.serve_forever, 0.01)
        url = f"http://127.0.0.1:{server.server_port}"
        for command in ("faults list", "read a", "reset", "wait", "keep", "scopes show a", "snapshot take a"):
            for body in (b"[]", b"1", b"null", b"{}", b'{"rules": 1}'):
                ran = invoke("ctl", *command.split(), "--url", url)
                assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1), (command, body, ran.output)
                assert ran.stderr.startswith(f"segstore: {url}: this is not the HTTP API")
        server.shutdown()


def test_the_port_of_the_rest_api_is_refused_with_the_option_of_the_right_one(server: RunningServer) -> None:
    said = "this is not the HTTP API, whose port --http-port sets and --announce json shows as http"
    for command in ("scopes show scope", "--json scopes list", "faults remove", "api GET faults"):
        found = invoke("ctl", "--url", server.rest_url, *command.split())
        assert found.output == f"segstore: {server.rest_url} answered 404 Not Found: {said}\n"
        assert found.exit_code == 1


def test_a_shell_completes_commands_and_names_that_the_server_has(
    run: Run, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(line: str) -> list[str]:
        *words, last = line.split(" ")
        offered = ShellComplete(main, {}, "segstore", "_SEGSTORE_COMPLETE").get_completions(words, last)
        return [each.value for each in offered]

    monkeypatch.setenv("SEGSTORE_URL", server.http_url)
    server.create_stream("scope", "stream", 1)
    server.create_stream("scope", "other", 1)
    assert completed("ctl connections ") == ["cut", "list"]
    assert completed("ctl streams show s") == ["scope/"]
    assert completed("ctl streams show scope/") == ["scope/other", "scope/stream"]
    assert completed("ctl groups list s") == ["scope"]
    server.faults.add(do="ok", name="slow-append")
    server.faults.add(do="ok", name="$(not one word)")
    server.faults.toxics.add("latency")
    server.snapshot("base")
    run("record", "start", "login")
    assert completed("ctl faults remove ") == ["slow-append"]
    assert completed("ctl faults release x") == []
    assert completed("ctl toxics remove ") == ["latency_downstream"]
    assert completed("ctl snapshot restore b") == ["base"]
    assert completed("ctl record stop ") == ["login"]
    assert completed("ctl --url http://127.0.0.1:1 streams show scope/") == []
