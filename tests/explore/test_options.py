"""The options of the explorer."""

from __future__ import annotations

from segstore.explore import ExploreOptions
from segstore.explore.options import ExplorerSetting


def test_options_are_the_fields_of_a_setting() -> None:
    own = {"client", "prepared", "leaked", "streams"}
    assert ExploreOptions.__annotations__.keys() == set(ExplorerSetting._fields) - own
