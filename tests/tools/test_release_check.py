"""What would be published is checked, and the workflow files name only what exists."""

from __future__ import annotations

import re
import runpy
import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PACKAGING = ROOT / "tools" / "packaging"


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        found = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "release_check.py")))
        sys.modules.pop("make_wheels", None)
    return found


def metadata(description: str, *classifiers: str, url: str = "Repository, https://example.org/it") -> Message:
    made = Message()
    made["Project-URL"] = url
    for each in classifiers:
        made["Classifier"] = f"Programming Language :: Python :: {each}"
    made.set_payload(description)
    return made


def test_metadata_that_can_be_published_has_no_fault(tool: SimpleNamespace) -> None:
    assert tool.faults(metadata("[a](https://example.org/b) [c](#d)", "3", "3 :: Only", "3.11")) == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (metadata("[a](docs/b.md)"), "the link docs/b.md is relative"),
        (metadata("![a](img.svg)"), "the link img.svg is relative"),
        (metadata(""), "there is no description"),
        (metadata("a", url="Home, x"), "there is no URL of the repository"),
        (metadata("a", "3.9"), "the classifier Programming Language :: Python :: 3.9 names a version that is not"),
    ],
)
def test_each_fault_of_the_metadata_is_named(tool: SimpleNamespace, made: Message, said: str) -> None:
    (fault,) = tool.faults(made)
    assert fault.startswith(said)


@pytest.mark.parametrize(
    ("changelog", "release", "said"),
    [
        ("# Changelog\n\n## Unreleased\n", False, []),
        ("## Unreleased\n", True, ["the changelog's first section is Unreleased, the version is 1.2"]),
        ("## 1.2 (today)\n\n## 1.1\n", True, []),
        ("## [1.1]\n", False, ["the changelog's first section is 1.1, the version is 1.2"]),
        ("", False, ["the changelog has no section"]),
    ],
)
def test_the_version_is_that_of_the_changelog(
    tool: SimpleNamespace, changelog: str, release: bool, said: list[str]
) -> None:
    assert tool.changelog_faults(changelog, "1.2", release=release) == said


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_only_what_exists(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    for job in jobs.values():
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= jobs.keys()
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands
    for command in commands:
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        for path in re.findall(r"(?<!\S)\.?[a-z]+/[a-z/]+(?!\S)", command):
            assert (ROOT / path).exists(), path
    assert all(re.search(r"@v?[\w./]+$", step["uses"]) for step in steps(workflow) if "uses" in step)


def test_every_change_is_tested_by_the_script_that_everybody_runs() -> None:
    assert [step["run"] for step in steps(ROOT / ".github" / "workflows" / "test.yml") if "run" in step] == [".ci/run"]


def test_publishing_needs_no_stored_password() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


def test_the_compose_file_publishes_the_ports_of_the_image_on_loopback() -> None:
    service = yaml.safe_load((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))["services"]["segstore"]
    assert service["ports"] == ["127.0.0.1:12345:12345", "127.0.0.1:9090:9090"]


def test_the_action_gives_the_addresses_that_serve_announces() -> None:
    action = yaml.safe_load((PACKAGING / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    for name, output in action["outputs"].items():
        assert output["value"] == f"${{{{ steps.{step['id']}.outputs.{name} }}}}"
    assert "$GITHUB_ACTION_PATH/../.." in step["run"]
    assert (PACKAGING / ".." / ".." / "pyproject.toml").is_file()
