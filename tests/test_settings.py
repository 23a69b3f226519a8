"""The settings of `segstore serve`: one table, and three places in which users give them."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from segstore.cli import serving
from segstore.cli.serve import serve
from segstore.cli.settings import GROUPS, BadSetting, ServeSettings, groups, misspelt, read_settings, settings
from segstore.server import StoreSettings
from segstore.server.cluster import ClusterSettings, ZooKeeperSettings
from segstore.server.coordination import OwnershipSettings
from tests.looped import looped
from tests.processes import invoke

ALL = settings()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "segstore.toml"


def read(file: Path | None = None, text: str = "", environment: dict[str, str] | None = None, **options: Any) -> Any:
    if file is not None:
        file.write_text(text, "utf-8")
    return read_settings(options, environment or {}, file)


def run(*options: str, environment: dict[str, str] | None = None) -> Result:
    return invoke("serve", *options, env=environment)


def test_a_setting_is_in_one_group_and_leads_to_one_field() -> None:
    assert max(Counter(name for names in GROUPS.values() for name in names.split()).values()) == 1
    for each in ALL.values():
        found: Any = ServeSettings()
        for name in each.path:
            found = getattr(found, name)


@looped("model", [StoreSettings, OwnershipSettings, ServeSettings, ClusterSettings, ZooKeeperSettings])
def test_every_field_of_the_models_is_a_setting(model: Any) -> None:
    nested = {"cluster", "coordination", "store", "limits", "ownership", "controller"}
    assert model.model_fields.keys() - nested <= {each.path[-1] for each in ALL.values()}


def test_every_setting_has_help_of_one_sentence() -> None:
    for each in ALL.values():
        assert each.help.endswith("."), each.name
        assert len(each.help) <= 110, each.name
        assert each.description.startswith(each.help)


def test_help_lists_every_setting_in_its_group() -> None:
    shown = run("--help-all").output
    sections = [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == [*groups(), "Other options"]
    assert all(f"  {each.usage}" in shown for each in ALL.values())
    assert "--config FILE" in shown
    assert "  --record FILE  " in shown
    assert re.search(r"--no-rebalance +Move containers to stores that own fewer\.\s+\[default: on\]", shown)
    for_testers = run("--help").output
    hidden = {name for name, setting in ALL.items() if f"  {setting.usage}" not in for_testers}
    assert hidden == {name for name, setting in ALL.items() if setting.is_advanced}
    assert hidden > {*GROUPS["Cluster of several processes"].split(), "strict_auth", "stack_traces"}
    assert not hidden & {"data", "faults", "record", "stores", "token_ttl_s", "http_port"}
    assert "--help-all" in for_testers


def test_the_command_has_an_option_for_each_setting() -> None:
    names = {name for param in serve.get_params(click.Context(serve)) for name in param.opts}
    assert names - {"-h"} == {each.option for each in ALL.values()} | {"--config", "--help", "--help-all"}


def test_an_option_precedes_a_variable_and_that_the_file_and_that_the_default(file: Path) -> None:
    text = "port = 1\ncontainers = 9\nadmin_port = 2"
    made = read(file, text, {"SEGSTORE_PORT": "3", "SEGSTORE_ADMIN_PORT": "4"}, port="5").cluster
    assert (made.store.port, made.store.admin_port, made.store.containers, made.controller_port) == (5, 4, 9, 9090)


@pytest.mark.parametrize(
    ("name", "text", "written", "value"),
    [
        ("host", "::1", '"::1"', "::1"),
        ("own", "0,2", "[0, 2]", frozenset({0, 2})),
        ("long_poll_s", "1.5", "1.5", 1.5),
        ("long_poll_s", "2", "2", 2.0),
        ("preload", "yes", "true", True),
        ("rebalance", "0", "false", False),
        ("stale_node", "replace", '"replace"', "replace"),
        ("lease_cap_ms", "7", "7", 7),
        ("max_connections", "8", "8", 8),
    ],
)
def test_a_setting_is_the_same_from_each_source(file: Path, name: str, text: str, written: str, value: Any) -> None:
    for made in (read(**{name: text}), read(environment={ALL[name].variable: text}), read(file, f"{name} = {written}")):
        for each in ALL[name].path:
            made = getattr(made, each)
        assert made == value


def test_an_empty_variable_is_not_set() -> None:
    assert read(environment={"SEGSTORE_PORT": ""}) == read()


def test_a_path_of_the_file_is_beside_the_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").touch()
    (tmp_path / "key").write_text("of the file\n")
    (tmp_path / "key").chmod(0o600)
    text = 'faults = "faults.yaml"\ndata = "data"\nauth_key_file = "key"\nopen_controller = true'
    made = read(file, text)
    assert (made.faults, made.cluster.data) == (tmp_path / "faults.yaml", tmp_path / "data")
    assert made.cluster.store.signing_key == "of the file"


def test_a_key_and_a_file_with_it_are_alternatives_of_one_source(file: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("of the key file")
    key.chmod(0o600)
    either = {"SEGSTORE_AUTH_KEY": "of the variable", "SEGSTORE_OPEN_CONTROLLER": "true"}
    assert read(environment=either, auth_key_file=str(key)).cluster.store.signing_key == "of the key file"
    assert read(file, 'auth_key_file = "key"', either).cluster.store.signing_key == "of the variable"
    with pytest.raises(BadSetting, match=r"^give either SEGSTORE_AUTH_KEY or SEGSTORE_AUTH_KEY_FILE, not both$"):
        read(environment={**either, "SEGSTORE_AUTH_KEY_FILE": str(key)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", r"prot: there is no such setting \(port\?\)$"),
        ("[limits]\nmax_connections = 1", "limits: there is no such setting"),
        ('port = "1"', "port: a whole number is needed, not '1'$"),
        ("own = [0, [1]]", r"own: \[0, \[1\]\] is no list of containers such as 0,2$"),
        ("port = true", "port: a whole number is needed, not True$"),
        ("port = 70000", "port: it must be less than or equal to 65535, not 70000$"),
        ('preload = "yes"', "preload: true or false is needed, not 'yes'$"),
        ("data = 1", "data: text is needed, not 1$"),
        ("port = 2000-01-01", "port: a date is not a value of a setting$"),
        ('faults = "none"', "faults: file 'none' does not exist$"),
        ('auth_key_file = "none"', "auth_key_file: .*none: No such file or directory$"),
        ("port =", r"this is not TOML: .*\(at .*\)$"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_key(file: Path, text: str, said: str) -> None:
    with pytest.raises(BadSetting, match=f"^{file}: {said}"):
        read(file, text)


@looped(
    ("name", "text", "said"),
    [
        ("port", "x", "a whole number is needed, not 'x'"),
        ("containers", "0", "it must be greater than 0, not '0'"),
        ("stale_node", "x", "it must be 'wait' or 'replace', not 'x'"),
        ("own", "0,x", "'0,x' is no list of containers such as 0,2"),
        ("tls_cert", "/none", "file '/none' does not exist"),
    ],
)
def test_what_is_wrong_in_an_option_or_a_variable_is_said_with_its_name(name: str, text: str, said: str) -> None:
    option = run(ALL[name].option, text)
    assert (option.exit_code, option.stderr) == (2, f"main serve: {ALL[name].option}: {said}\n")
    variable = run(environment={ALL[name].variable: text})
    assert (variable.exit_code, variable.stderr) == (2, f"main serve: {ALL[name].variable}: {said}\n")


def test_a_variable_that_resembles_a_setting_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "serve", lambda _: None)
    warned = run(environment={"SEGSTORE_ADMIN_PROT": "1"})
    said = "main serve: the variable SEGSTORE_ADMIN_PROT is ignored; did you mean SEGSTORE_ADMIN_PORT?\n"
    assert (warned.exit_code, warned.stderr) == (0, said)
    others = ["SEGSTORE_CODEC", "SEGSTORE_CLIENT_USERNAME", "SEGSTORE_PORT_12345_TCP", "SEGSTORE_SERVICE_HOST", "PORT"]
    assert list(misspelt(dict.fromkeys(others, "1"))) == []


def test_a_settings_file_is_an_option_or_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[ServeSettings] = []
    monkeypatch.setattr(serving, "serve", served.append)
    file.write_text("port = 7\npreload = true")
    assert run("--config", str(file)).exit_code == 0
    assert run("--no-preload", environment={"SEGSTORE_CONFIG": str(file)}).exit_code == 0
    assert [each.cluster.store.port for each in served] == [7, 7]
    assert [each.cluster.ownership.preload for each in served] == [True, False]
    missing = run("--config", f"{file}.not")
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
