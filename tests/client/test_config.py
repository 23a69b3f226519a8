"""Settings come from arguments and from the environment, are checked, and do not show passwords."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from segstore.client.config import ClientSettings


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


@pytest.mark.parametrize(
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


def test_a_password_is_not_shown() -> None:
    settings = ClientSettings(username="u", password="secret-word")
    assert "secret-word" not in repr(settings)
    assert settings.password is not None
    assert settings.password.get_secret_value() == "secret-word"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        ClientSettings().max_connections_per_store = 3  # type: ignore[misc]
