"""The page is made of the results that are kept, in a fixed order, and of nothing else; all benchmarks run in turn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import every, pages
from bench.harness import Figure, Report, machine
from bench.pictures import Bars

PICTURE = Bars("two-bars", "Rates", "writers", "events/s", {"here": [1.0, 2.0]}, groups=["1", "10"])


def a_report(title: str = "Codec", value: float = 0.8) -> Report:
    report = Report(title, [Figure("decode", value, 0.85, at_most=True)], "Is it fast?", "It is.", pictures=[PICTURE])
    report.tables += [(("command", "ns"), [("HELLO", "1")]), (("more", "ns"), [("BYE", "2")])]
    report.notes.append("as seen")
    return report


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RESULTS", "FIGURES", "FOLDER"):
        monkeypatch.setattr(pages, name, tmp_path / name.lower())
    monkeypatch.setattr(pages, "PAGE", tmp_path / "performance.md")
    return tmp_path


def test_a_result_is_kept_and_the_page_written(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.finish({"pooling": (a_report("Pooling"), 3.0)}, quick=False, write_docs=True) == 0
    assert pages.finish({"codec": (a_report(value=0.9), 125.0)}, quick=True, write_docs=True) == 1
    kept = json.loads((folders / "figures" / "codec.json").read_text())
    assert kept == json.loads((folders / "results" / "codec.json").read_text())
    assert (kept["name"], kept["quick"], kept["figures"][0]["met"]) == ("codec", True, False)
    assert (folders / "folder" / "two-bars.svg").exists()
    said = capsys.readouterr()
    assert "| decode | 0.90 × | ≤ 0.85 × | **no** |" in said.out
    assert "codec took 125.0 s" in said.out
    assert said.err == "missed: decode: 0.90 ×, goal ≤ 0.85 ×\n"
    page = (folders / "performance.md").read_text()
    facts = machine()
    assert f"{facts['cores']} cores" in page
    assert facts["system"] in page
    assert "Of 2 figures that have a goal, 1 meet it." in page
    assert "| [Pooling](#pooling) | decode | 0.80 × | ≤ 0.85 × | yes |" in page
    assert page.index("\n## Summary\n") < page.index("\n## Codec\n") < page.index("\n## Pooling\n")
    assert '- `make bench ARGS="codec"`, 2 min' in page
    assert "- `make bench-pooling`, 3 s" in page
    assert page.count("quick look with a small load") == 1


def test_without_the_flag_the_page_stays(folders: Path) -> None:
    pages.finish({"codec": (a_report(), 1.0)}, quick=True, write_docs=False)
    assert [path.name for path in sorted(folders.iterdir())] == ["results"]


def test_a_section_has_its_parts_in_order_and_one_table_before_the_fold() -> None:
    found = {"name": "codec", "machine": {}, "quick": False, "seconds": 1.0, **a_report().to_dict()}
    text = pages.section(found)
    parts = [
        "## Codec",
        "*Is it fast?*",
        "It is.",
        "![Rates]",
        "| HELLO | 1 |",
        "<details markdown=",
        "| BYE | 2 |",
        "- as seen",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_results_of_several_machines_say_which_was_whose() -> None:
    def found(name: str, cores: int) -> dict[str, object]:
        facts = {"cpu": "a chip", "cores": cores, "python": "CPython 3", "system": "Linux 6"}
        return {"name": name, "machine": facts, "quick": False, "seconds": 1.0, **a_report(name.title()).to_dict()}

    one = pages.page([found("codec", 2), found("memory", 2)])
    assert one.count("a chip, 2 cores") == 1
    two = pages.page([found("codec", 2), found("memory", 4)])
    assert "1 s, on a chip, 2 cores" in two
    assert "1 s, on a chip, 4 cores" in two


def test_a_result_of_no_benchmark_is_refused(folders: Path) -> None:
    (folders / "figures").mkdir()
    (folders / "figures" / "odd.json").write_text('{"name": "odd"}')
    with pytest.raises(SystemExit, match="'odd', which is no benchmark"):
        pages.finish({"codec": (a_report(), 1.0)}, quick=True, write_docs=True)


def test_values_are_shown_with_their_units() -> None:
    shown = [Figure("", value, 1, True, unit).shown for value, unit in ((0.0004, "×"), (100000.0, ""), (3.14159, " s"))]
    assert shown == ["0.0004 ×", "100,000", "3.14 s"]


def test_the_page_and_the_makefile_know_every_benchmark() -> None:
    root = Path(pages.__file__).parent.parent
    makefile = (root / "Makefile").read_text()
    for each in pages.BENCHMARKS:
        assert (root / "bench" / f"{each.name}.py").is_file()
        assert f"\n{each.command.removeprefix('make ').partition(' ')[0]}: " in makefile
    known = {each.name for each in pages.BENCHMARKS}
    runs = {path.stem for path in (root / "bench").glob("*.py") if "\ndef run(effort: Effort" in path.read_text()}
    assert runs == known


def test_the_page_is_what_the_kept_results_make() -> None:
    assert pages.PAGE.read_text("utf-8") == pages.page(pages._kept())


# --- all of them ------------------------------------------------------------------------------------------------------


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_next_runs_when_one_fails_or_takes_too_long() -> None:
    ended = every.run_all(
        {
            "good": script(""),
            "missed": script("import sys; sys.stderr.write('missed: decode\\n'); sys.exit(1)"),
            "broken": script("raise ValueError('a reason')"),
            "killed": script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        },
        60.0,
    )
    ended += every.run_all({"endless": script("import time; time.sleep(600)"), "last": script("")}, 5.0)
    assert [(each.how, each.failed) for each in ended] == [
        ("ok", False),
        ("missed a goal", False),
        ("failed with status 1: ValueError: a reason", True),
        ("failed with status -9", True),
        ("ended after 5 s", True),
        ("ok", False),
    ]
    said = every.summary(ended, 12.0)
    assert said.endswith("in all                12.0 s  failed: broken, killed, endless")


def test_the_commands_are_those_of_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert every.command_of("codec", ["--quick"])[1:] == ["-m", "bench", "codec", "--quick"]
    assert every.command_of("pooling", [])[1:] == ["-m", "bench.pooling"]
    with pytest.raises(SystemExit, match="2"):
        every.main(["cdoec"])
    assert "'cdoec' is no benchmark" in capsys.readouterr().err
