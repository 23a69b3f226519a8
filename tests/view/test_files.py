"""Writing the page of trace files."""

from __future__ import annotations

import base64
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segstore.traces import UnreadableTrace
from segstore.view import write_page
from segstore.view.files import SHARE
from tests.view.samples import FIXTURES, saved
from tests.view.test_pack import noise, tables, unpacked
from tests.view.test_page import dialogue

WRITE = FIXTURES / "traces" / "write.jsonl"


def sections_of(page: Path) -> dict[str, bytes]:
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', page.read_text("utf-8"))
    return {name: base64.b64decode(text) for name, text in found}


def test_a_page_is_a_file_for_its_owner_and_the_same_each_time(tmp_path: Path) -> None:
    page, again = tmp_path / "a.html", tmp_path / "b.html"
    written = write_page(page, [WRITE])
    assert written == (page.stat().st_size, ())
    assert page.stat().st_mode & 0o777 == 0o600
    write_page(again, [WRITE])
    assert page.read_bytes() == again.read_bytes()
    assert sorted(tmp_path.iterdir()) == [page, again]


def test_a_page_is_written_to_a_pipe_which_stays(tmp_path: Path) -> None:
    page, pipe = tmp_path / "a.html", tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(pipe.read_bytes)
        write_page(pipe, [WRITE])
        write_page(page, [WRITE])
        assert read.result() == page.read_bytes()
    assert pipe.is_fifo()


def test_a_page_is_written_where_a_link_points_to(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("page.html")
    written = write_page(link, [WRITE])
    assert link.is_symlink()
    assert written.size == (tmp_path / "page.html").stat().st_size > 0


def test_several_traces_have_sections_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(page, [WRITE, FIXTURES / "traces" / "seal.jsonl"])
    found = sections_of(page)
    assert "differences" not in found
    assert [tables({"tables": found[f"{at}-tables"]})["file"] for at in range(2)] == ["write.jsonl", "seal.jsonl"]


def test_a_large_trace_has_a_page_of_less_than_a_third_of_its_size(tmp_path: Path) -> None:
    trace = saved(tmp_path, list(noise(2_000, 10_000)))
    page = tmp_path / "page.html"
    written = write_page(page, [trace])
    assert written.size == page.stat().st_size < trace.stat().st_size / 3
    said = tables({"tables": sections_of(page)["0-tables"]})
    assert said["bytes"] == trace.stat().st_size
    assert said["left_out"] == 2_000
    assert SHARE < 1 / 3


def test_damage_is_returned_with_its_file_once(tmp_path: Path) -> None:
    trace = saved(tmp_path, dialogue())
    trace.write_bytes(trace.read_bytes()[:-10])
    written = write_page(tmp_path / "page.html", [WRITE, trace])
    ((path, damage),) = written.damages
    assert path == trace
    assert damage.torn


def test_a_trace_that_cannot_be_read_leaves_an_existing_page(tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "broken.jsonl"
    page.write_text("before")
    trace.write_text(WRITE.read_text("utf-8") + "{broken\n")
    with pytest.raises(UnreadableTrace, match=f"{trace}: line 62"):
        write_page(page, [trace])
    assert page.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [trace, page]


def test_values_that_differ_are_texts_of_bounded_length(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    one, other = dialogue(payload=b"a" * 5000), dialogue(payload=b"b" * 5000)
    write_page(page, [saved(tmp_path, one, "one.wtrace")], saved(tmp_path, other, "other.wtrace"))
    differences = json.loads(unpacked(sections_of(page)["differences"]))
    (found,) = [difference for difference in differences if not difference["direction"]]
    ((field, left, right),) = [tuple(each.values()) for each in found["fields"]]
    assert field == "data[0]"
    assert left.endswith("… (10000 characters)")
    assert left[:4] == "6161"
    assert right[:4] == "6262"
    assert found["places"] == [8, 8]
