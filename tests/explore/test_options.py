"""The options of the explorer."""

from __future__ import annotations

from segstore.explore import CommandClient, ExploreOptions
from segstore.explore.options import ExplorerSetting


def test_options_are_the_fields_of_a_setting() -> None:
    own = {"client", "prepared", "leaked", "streams"}
    assert ExploreOptions.__annotations__.keys() == set(ExplorerSetting._fields) - own


def test_a_command_that_names_the_http_api_is_given_one() -> None:
    named, unnamed = CommandClient(["curl", "{http}/requests"]), CommandClient(["app", "{host}", "{port}"])
    for setting, needed in (
        (ExplorerSetting(named), True),
        (ExplorerSetting(unnamed), False),
        (ExplorerSetting(unnamed, prepare=named), True),
        (ExplorerSetting(unnamed, with_http=True), True),
    ):
        assert setting.needs_http is needed
