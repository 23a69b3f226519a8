"""The page says what the report found, and no name from a trace becomes anything but text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from segstore.pipeline.report.analysis_rules import Status
from segstore.pipeline.report.page import page
from segstore.wire.history import RULES
from tests.looped import looped

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028\x00'


def table(*rows: dict[str, Any], more: int = 0) -> dict[str, Any]:
    return {"columns": list(rows[0]) if rows else [], "rows": list(rows), "all": len(rows) + more}


def facts(name: str = "scope/s/0.#epoch.0", **changed: Any) -> dict[str, Any]:
    wait = {"times": 3, "mean_ns": 2000, "least_ns": 1000, "p50_ns": 2000, "p90_ns": 2500, "p99_ns": 3000,
            "p99_9_ns": 3000, "most_ns": 3000}  # fmt: skip
    bad = {"file": name, "connection": 1, "life": 1, "block": 5, "record": 6, "segment": name, "request_id": 7}
    return {
        "engine": "DuckDB 2.0.0, 2 processes",
        "files": 1,
        "ticks": {"first": 0, "width_ns": 10, "start_ns": 0, "stop_ns": 100},
        "traffic": table({"direction": "request", "command": "READ_SEGMENT", "frames": 1234567, "bytes": 5,
                          "failures": 0, "malformed": 0}),
        "skipped": table({"file": name, "offset": 4711, "record": None, "kind": "skipped", "bytes": 99, "error": name}),
        "skipped_stretches": 1, "skipped_bytes": 99, "undecoded_frames": 0,
        "status": {str(status): 2 for status in Status}, "unpaired": 3, "lost_events": 17,
        "unanswered": table({**bad, "status": "lost", "command": "APPEND_BLOCK_END", "reply_command": None,
                             "first_event": 1, "last_event": 2}, more=41),
        "rules": [{"rule": rule.id, "text": rule.text, "broken": int(rule.id == "decodes"),
                   "unknown": 4 * (rule.id == "gap")} for rule in RULES.values()],
        "verdicts": table({**bad, "rule": "decodes", "kind": "connection", "name": name, "text": name}, more=5),
        "errors": table({"error": "NO_SUCH_SEGMENT", "request": "READ_SEGMENT", "times": 2, "segments": 1}),
        "calls": table({"rpc": name, "status": "STREAM_EXISTS", "failed": True, "times": 6}), "calls_made": 9,
        "calls_failed": 6,
        "latency_by_command": table({"command": "READ_SEGMENT", **wait}),
        "latency_by_segment": table({"segment": name, **wait}),
        "latency_by_flow": table(),
        "latency_histogram": table({"command": name, "least_ns": 100, "width_ns": 1, "times": 3}),
        "connections": table({**bad, "frames": 2, "sent_bytes": 1, "received_bytes": 1, "flows": 1, "segments": 1,
                              "writers": 1, "most_in_flight_bytes": 5, "closed": True}),
        "over_time": table({"tick": 0, "connections": 1, "frames": 1, "flows": 1, "segments": 1, "writers": 1}),
        "in_flight_over_time": table({"tick": 0, "most_bytes": 5}),
        "block_fill": table({"premature": True, "fill_percent": 40, "blocks": 3, "block_bytes": 300, "used_bytes": 9}),
        "streams": table({"stream": name, "segments": 1, "segments_written": 1, "writers": 1, "writers_idle": 0,
                          "connections": 1, "appends": 1, "events": 1, "bytes": 1}),
        "plan": {"components": 1, "parts": [{"part": 0, "connections": 1, "components": 1, "records": 5}],
                 "hubs": [{"file": name, "connection": 1, "shared": 2}]},
        **changed,
    }  # fmt: skip


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._script else data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_a_hostile_name_is_text_in_tables_plots_and_values() -> None:
    made = page(facts(HOSTILE))
    found = Elements(made)
    assert len(found.named("script")) == 3
    assert found.named("img") == []
    assert "alert(1)" in found.text
    values = re.search(r'id="plots">(.*?)</script>', made, re.DOTALL)
    assert values is not None
    shown = json.dumps(json.loads(values[1]))
    assert "&lt;/script&gt;" in shown
    assert "<" not in shown


def test_the_page_fetches_nothing() -> None:
    found = Elements(page(facts()))
    assert all("src" not in attrs for tag, attrs in found.tags)
    assert [attrs["href"] for attrs in found.named("link")] == ["data:,"]
    policies = [a["content"] for a in found.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert "default-src 'none'" in str(policies[0])


def test_what_was_skipped_stands_there_with_file_and_offset() -> None:
    text = Elements(page(facts(skipped_stretches=2))).text
    assert "2 parts of files with 99 bytes and 0 frames could not be read" in text
    assert "4711" in text
    assert "1,234,567" in text
    assert "17 events are, in 2 appends" in text
    assert "41 more in exchanges" in text


def test_controller_calls_and_how_many_failed_are_on_the_page() -> None:
    text = Elements(page(facts())).text
    assert "9controller calls6failed calls" in text
    assert "STREAM_EXISTSyes6" in text


def test_broken_rules_have_their_sentence_and_count_and_unknown_ones_a_line() -> None:
    text = Elements(page(facts())).text
    assert f"decodes1{RULES['decodes'].text}" in text
    assert f"1 of {len(RULES)} rules are broken. The records do not decide: 4 × gap." in text
    assert "5 more in verdicts" in text


@looped("empty", ["traffic", "skipped", "block_fill", "over_time", "latency_by_command"])
def test_a_table_without_rows_is_no_plot_and_no_error(empty: str) -> None:
    assert "none" in page(facts(**{empty: table()})) or empty in ("skipped", "block_fill")


def test_a_trace_without_records_has_a_page_too() -> None:
    bare = {name: table() for name in facts() if isinstance(facts()[name], dict) and "rows" in facts()[name]}
    assert "without a record" in page(facts(**bare, ticks=None))
