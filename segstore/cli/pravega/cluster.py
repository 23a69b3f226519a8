"""What the commands for a cluster share: the options that name it, names of streams, and how a command ends.

Exit status: 0; 1 for an error of the cluster or of the input; 2 for wrong options; 128 and the signal's number if
SIGINT or SIGTERM ended it. The first signal ends reading, and what was read is finished; a second ends the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from segstore.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_URI: Final = "tcp://127.0.0.1:9090"
_SECRETS: Final = ("password", "bearer_token", "control_api_token")


class Cluster(NamedTuple):
    """A cluster's controllers, and the settings of its client, as options give them."""

    uri: str
    ca: Path | None
    properties: tuple[str, ...]

    def client(self) -> Client:
        """Returns an unopened client. Raises UsageError."""
        from pydantic import ValidationError

        from segstore.client import ClientSettings, connect

        given: dict[str, Any] = dict(map(_property, self.properties))
        if self.ca is not None:
            given["tls_ca_file"] = self.ca
        try:
            settings = ClientSettings.from_environment(**given)
            return connect(self.uri, settings)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            if first["type"] == "extra_forbidden":
                said = "there is none of this name"
            raise click.UsageError(f"client setting {name}: {said}" if name else said) from error
        except ValueError as error:
            raise click.UsageError(str(error)) from error


def _property(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.UsageError(f"-X {text!r} is not NAME=VALUE")
    if name in _SECRETS:
        variable = f"SEGSTORE_CLIENT_{name.upper()}"
        raise click.UsageError(f"give {name} as {variable}: all users of a machine see the options of its processes")
    return name, value


def cluster_options(command: F) -> F:
    """Adds the options of a cluster; the command gets them as `cluster`."""

    def made(context: click.Context, _: click.Parameter, properties: tuple[str, ...]) -> Cluster:
        return Cluster(context.params.pop("controller"), context.params.pop("ca"), properties)

    return click.option(
        "-b",
        "--controller",
        metavar="URI",
        is_eager=True,
        default=lambda: os.environ.get("SEGSTORE_CONTROLLER", _URI),
        show_default=_URI,
        help="Controllers, tcp://HOST:PORT,… or tls://…; the variable SEGSTORE_CONTROLLER gives them, too.",
    )(
        click.option(
            "--ca",
            is_eager=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="CA certificates to trust for tls:// (PEM); default: the system's.",
        )(
            click.option(
                "-X",
                "cluster",
                metavar="NAME=VALUE",
                multiple=True,
                callback=made,
                help="A setting of the client; SEGSTORE_CLIENT_NAME in the environment gives it, too.",
            )(command)
        )
    )


class StreamName(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """A scoped name, SCOPE/NAME."""

    name = "SCOPE/NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        scope, found, name = str(value).partition("/")
        if not found or not scope or not name or "/" in name:
            self.fail(f"{value!r} is not SCOPE/NAME", param, ctx)
        return scope, name


class Interruption:
    """Ends a block at the first SIGINT or SIGTERM.

    Attributes:
        number: the signal that came, 0 for none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._scope: asyncio.Timeout | None = None

    def come(self, number: int, task: asyncio.Task[Any]) -> None:
        """A signal came; the second one cancels the task."""
        if self.number:
            task.cancel()
        self.number = number
        self.end_block()

    def end_block(self) -> None:
        """Ends the block if it runs."""
        if self._scope is not None:
            self._scope.reschedule(0)

    @asynccontextmanager
    async def ends(self) -> AsyncIterator[None]:
        """Runs the block until it ends or `end_block` is called, which is no error."""
        scope = asyncio.timeout(0 if self.number else None)
        try:
            async with scope:
                self._scope = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scope = None


def run(cluster: Cluster, work: Callable[[Client, Interruption], Awaitable[None]]) -> int:
    """Runs a command's work with an open client; returns the exit status. Raises ClickException and Abort."""
    from segstore import loops
    from segstore.client import ClientError

    async def main() -> int:
        task, interruption = asyncio.current_task(), Interruption()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loops.on_signal(number, interruption.come, number, task)
        async with client:
            await work(client, interruption)
        return 128 + interruption.number if interruption.number else 0

    client = cluster.client()
    try:
        return asyncio.run(main())
    except ClientError as error:
        raise click.ClickException(error.message) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        raise click.Abort from None


class Pace:
    """Spaces events evenly. per_s: events per second; None for no limit."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._count = 0
        self._began_s = 0.0

    async def next(self) -> None:
        """Waits until the next event is due."""
        if self._per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        if not self._count:
            self._began_s = now_s
        due_s = self._began_s + self._count / self._per_s
        self._count += 1
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)


RATE = click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="At most N events per second; default: no limit.",
)
STREAM = StreamName()
