"""Settings come from arguments and from the environment, are checked, and do not show passwords."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from segstore.client.config import ClientSettings
from segstore.client.retry import Backoff
from tests.looped import looped


def test_the_environment_gives_settings_by_name_and_arguments_go_before_it() -> None:
    settings = ClientSettings.from_environment(
        {
            "SEGSTORE_CLIENT_MAX_CONNECTIONS_PER_STORE": "4",
            "SEGSTORE_CLIENT_POOL_POLICY": "least_busy",
            "SEGSTORE_CLIENT_CONNECTIONS_SETUP_TIMEOUT_MS": "700",
            "SEGSTORE_CLIENT_RECONNECT_BACKOFF": '{"initial_ms": 5, "max_ms": 6}',
            "SEGSTORE_CLIENT_READ_SIZE_BYTES": "9",
            "PATH": "/bin",
        },
        read_size_bytes=10,
    )
    assert settings.max_connections_per_store == 4
    assert settings.pool_policy == "least_busy"
    assert settings.socket_connection_setup_timeout_ms == 700
    assert settings.reconnect_backoff.max_ms == 6
    assert settings.read_size_bytes == 10


@looped(
    "environment",
    [
        {"SEGSTORE_CLIENT_NO_SUCH_THING": "1"},
        {"SEGSTORE_CLIENT_MAX_CONNECTIONS_PER_STORE": "0"},
        {"SEGSTORE_CLIENT_POOL_POLICY": "any"},
        {"SEGSTORE_CLIENT_USERNAME": "only"},
        {"SEGSTORE_CLIENT_RETRY": "soon"},
    ],
)
def test_what_is_no_setting_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ClientSettings.from_environment(environment)


@looped(
    "environment",
    [
        {"SEGSTORE_CLIENT_PASSWORD": "secret-word"},
        {
            "SEGSTORE_CLIENT_USERNAME": "u",
            "SEGSTORE_CLIENT_PASSWORD": "p",
            "SEGSTORE_CLIENT_BEARER_TOKEN": "secret-word",
        },
        {"SEGSTORE_CLIENT_PASSWROD": "secret-word"},
    ],
)
def test_a_password_is_not_shown_when_settings_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        ClientSettings.from_environment(environment)
    assert "secret-word" not in str(caught.value)


GIVEN: dict[str, tuple[str, object]] = {
    "pool_policy": ("least_busy", "least_busy"),
    "append_batching": ("blocks", "blocks"),
    "reconnect_backoff": ('{"initial_ms": 2, "max_ms": 3}', Backoff(initial_ms=2, max_ms=3)),
    "retry": ('{"initial_ms": 2, "max_ms": 3}', Backoff(initial_ms=2, max_ms=3)),
    "control_api": ("http://localhost:1", "http://localhost:1"),
    "control_api_token": ("word", SecretStr("word")),
    "tls_ca_file": ("/some/ca.pem", Path("/some/ca.pem")),
}


@looped("name", sorted(ClientSettings.model_fields.keys() - {"username", "password", "bearer_token"}))
def test_every_setting_can_come_from_the_environment(name: str) -> None:
    default = ClientSettings.model_fields[name].default
    if name in GIVEN:
        text, value = GIVEN[name]
    else:
        value = not default if isinstance(default, bool) else default / 2 if isinstance(default, float) else default - 1
        text = str(value).lower()
    assert getattr(ClientSettings.from_environment({f"SEGSTORE_CLIENT_{name.upper()}": text}), name) == value != default


def test_credentials_come_from_the_environment_and_exclude_each_other() -> None:
    pair = {"SEGSTORE_CLIENT_USERNAME": "ann", "SEGSTORE_CLIENT_PASSWORD": "secret"}
    bearer = {"SEGSTORE_CLIENT_BEARER_TOKEN": "token"}
    password = ClientSettings.from_environment(pair).password
    token = ClientSettings.from_environment(bearer).bearer_token
    assert (password.get_secret_value(), token.get_secret_value()) == ("secret", "token")
    with pytest.raises(ValidationError, match="bearer"):
        ClientSettings.from_environment(pair | bearer)
