"""The synchronous classes are up to date, and what has no synchronous form is refused."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest

from segstore import client
from segstore.client import EventReader

ROOT = Path(__file__).parent.parent.parent
make_sync = runpy.run_path(str(ROOT / "tools" / "make_sync.py"))


def test_the_committed_classes_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert (make_sync["main"](["--check"]), capsys.readouterr().err) == (0, "")


def test_an_option_that_is_not_there_ends_with_status_2() -> None:
    assert make_sync["main"](["--no-such"]) == 2


def test_what_is_left_out_exists() -> None:
    for name in make_sync["LEFT_OUT"]:
        cls, _, member = name.partition(".")
        found = getattr(client, cls)
        assert hasattr(found, member) or f"self.{member}:" in Path(sources_of(found)).read_text("utf-8")


def sources_of(cls: Any) -> str:
    return inspect.getsourcefile(cls) or ""


class Odd:
    """Has a method that takes objects of the loop."""

    async def all_of(self, others: list[EventReader]) -> None:
        """Takes objects of the loop."""


def test_a_method_without_a_synchronous_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.EventReader, "all_of", Odd.all_of, raising=False)
    with pytest.raises(make_sync["Unfit"], match=r"EventReader.all_of takes {'EventReader'}"):
        make_sync["sources"]()
