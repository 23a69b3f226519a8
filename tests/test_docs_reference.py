"""The tables of docs/reference are complete: conditions and actions of rules, filter names, HTTP resources, options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from segstore.pipeline.stream.options import read_stream_options
from segstore.pipeline.trace.options import OptionError, read_options
from segstore.server.control_api.app import application
from segstore.server.faults import Rule
from segstore.wire.trace.filters import NAMES
from tests.looped import looped

DOCS = Path(__file__).parent.parent / "docs"


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the first table below a heading."""
    text = f"\n{(DOCS / page).read_text('utf-8')}".partition(f"\n{heading}\n")[2]
    lines = text[text.index("|---") :].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def listed(page: str, heading: str) -> set[str]:
    return {name for row in table(page, heading) for name in names(row[0])}


def test_the_conditions_of_a_rule_are_listed() -> None:
    assert listed("reference/fault-rules.md", "## Conditions") == Rule.model_fields.keys() - {"do"}


@looped("word", sorted(listed("reference/fault-rules.md", "## Actions")))
def test_a_word_of_the_actions_is_one(word: str) -> None:
    assert len(Rule.model_validate({"do": word}).do) == 1


def test_the_names_of_the_filter_language_are_listed() -> None:
    alias = "writer"
    assert listed("reference/filter-language.md", "# The filter language") - {alias} == NAMES.keys()


def test_the_resources_of_the_http_api_are_listed() -> None:
    shown = set()
    for row in table("reference/http-api.md", "## Resources"):
        paths = list(names(row[0]))
        for path in paths:
            method, _, where = path.rpartition(" ")
            if where.startswith("…"):
                method, where = "POST", "/v1/faults/NAME" + where.removeprefix("…")
            shown.add((method, re.sub(r"\b[A-Z]+\b", "{}", where.partition("?")[0])))
    described = application("stores").openapi()["paths"]
    served = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, methods in described.items() for method in methods
    }
    assert shown == served | {("GET", "/v1/openapi.json")}


def test_the_options_of_the_spark_formats_are_listed() -> None:
    with pytest.raises(OptionError) as unknown:
        read_options({"none such": ""})
    known = set(str(unknown.value).partition("there are ")[2].split(", "))
    assert listed("reference/spark-traces.md", "## Options") == known - {"path", "paths"}
    with pytest.raises(OptionError) as unknown:
        read_stream_options({"none such": ""})
    known = set(str(unknown.value).partition("there are ")[2].split(", "))
    page = "how-to/use-streams-on-spark.md"
    of_kafka = (DOCS / page).read_text("utf-8").partition("\nKafka's names stand")[2].partition("\n\n")[0]
    assert listed(page, "## Options") | names(of_kafka) == known | {"earliest", "latest"}
