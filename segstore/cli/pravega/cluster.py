"""Shared parts of the commands for a cluster: options for its address and settings, names of objects, stream cuts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from segstore.cli.terminal import Finite, Text, ca_option

if TYPE_CHECKING:
    from segstore.client import Client, ClientSettings, StreamCut

F = TypeVar("F", bound=Callable[..., Any])

_URI: Final = "tcp://127.0.0.1:9090"
_SECRETS: Final = ("password", "bearer_token", "control_api_token")


class ClusterOptions(NamedTuple):
    """A cluster's controllers, and the settings of its client, as options give them."""

    uri: str
    ca: Path | None
    properties: tuple[str, ...] = ()

    def client(self) -> Client:
        """Returns an unopened client. Raises UsageError."""
        from segstore.client import connect

        try:
            return connect(self.uri, self.settings())
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def settings(self) -> ClientSettings:
        """Returns the client's settings, including settings from the environment. Raises UsageError."""
        from pydantic import ValidationError

        from segstore.client import ClientSettings
        from segstore.wire.validation import place_and_problem

        given: dict[str, Any] = dict(map(_property, self.properties))
        if self.ca is not None:
            given["tls_ca_file"] = self.ca
        try:
            return ClientSettings.from_environment(**given)
        except ValidationError as error:
            name, problem = place_and_problem(error)
            raise click.UsageError(f"client setting {name}: {problem}" if name else problem) from error


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"-X {text!r} is not NAME=VALUE")
    if name in _SECRETS:
        variable = f"SEGSTORE_CLIENT_{name.upper()}"
        raise click.UsageError(f"give {name} as {variable}: all users of a machine see the options of its processes")
    return name, value


def _cluster(context: click.Context, _: click.Parameter, properties: tuple[str, ...]) -> ClusterOptions:
    return ClusterOptions(context.params.pop("controller"), context.params.pop("ca"), properties)


_controller_option: Final = click.option(
    "-b",
    "--controller",
    metavar="URI",
    is_eager=True,
    default=lambda: os.environ.get("SEGSTORE_CONTROLLER", _URI),
    show_default=_URI,
    help="Controllers, tcp://HOST:PORT,… or tls://…; also read from SEGSTORE_CONTROLLER.",
)
_property_option: Final = click.option(
    "-X",
    "cluster",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_cluster,
    help="A client setting; also read from SEGSTORE_CLIENT_NAME in the environment.",
)


def cluster_options(command: F) -> F:
    """Adds the options of a cluster; the command gets them as `cluster`."""
    return _controller_option(ca_option(_property_option(command)))


def cut_of(stream: tuple[str, str], text: str, takes: str) -> StreamCut:
    """Parses a text as a cut of a stream. Raises UsageError. takes: the accepted forms, for the message."""
    from segstore.client import CutError, StreamCut

    try:
        cut = StreamCut.from_text(text)
        cut.check(*stream)
    except CutError as error:
        raise click.UsageError(f"{takes} or the text of a stream cut: {error}") from error
    return cut


def part_name(text: str) -> str:
    """Parses a part of a scoped name."""
    name: str = Text()(text)
    if not name or "/" in name:
        raise click.BadParameter(f"{name!r} is not a name: it is empty or has a slash.")
    return name


RATE = click.option(
    "--rate", type=Finite(0, min_open=True), metavar="N", help="At most N events per second; default: no limit."
)
