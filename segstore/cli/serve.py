"""`segstore serve`: runs a mock segment store. Its options are derived lazily from the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from segstore.cli.terminal import EXISTING_FILE, echo

if TYPE_CHECKING:
    from segstore.cli.settings import Setting

_EVERYTHING: Final = f"{__name__}.everything"
"""The key in a context's `meta` that makes its help show every option."""


class _Serve(click.Command):
    """A command with an option for each setting, shown in groups."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from segstore.cli.settings import settings

        if len(self.params) == 2:
            for setting in settings().values():
                names = [
                    setting.name,
                    f"{setting.option}/--no-{setting.option[2:]}" if setting.is_flag else setting.option,
                ]
                self.params.append(click.Option(names, is_flag=setting.is_flag, default=None, metavar=setting.metavar))
        return super().get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from segstore.cli.settings import groups, settings

        everything = ctx.meta.get(_EVERYTHING, False)
        sections = {
            group: [_row(setting) for setting in members if everything or not setting.is_advanced]
            for group, members in groups().items()
        }
        others = [param.get_help_record(ctx) for param in self.get_params(ctx) if param.name not in settings()]
        for section, rows in {**sections, "Other options": [other for other in others if other]}.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def _row(setting: Setting) -> tuple[str, str]:
    default = f"  [default: {setting.shown_default}]" if setting.shown_default else ""
    return setting.usage, setting.help + default


def _show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_EVERYTHING] = True
        click.echo(context.get_help())
        context.exit()


@click.command(cls=_Serve)
@click.option(
    *("--help-all", "_"), is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show all options, also for clusters of processes and for the details of the protocol.",
)  # fmt: skip
@click.option("--config", type=EXISTING_FILE, envvar="SEGSTORE_CONFIG", metavar="FILE", help="Settings file (TOML).")
def serve(config: Path | None, **options: Any) -> int:
    """Run a mock segment store.

    When all ports are listening, it prints their addresses as one line on standard output; hints for clients go to
    standard error. Stop it with Ctrl-C or SIGTERM.

    Every option is also a key of the settings file and an environment variable: for --admin-port these are admin_port
    and SEGSTORE_ADMIN_PORT. Options take precedence over variables, and variables over the file.
    """
    from segstore.cli import serving
    from segstore.cli.settings import BadSetting, misspelt, read_settings
    from segstore.server.coordination import CoordinationError
    from segstore.server.durable import DataError
    from segstore.server.faults import FaultFileError

    context = click.get_current_context()
    chosen = {name: value for name, value in options.items() if value is not None}
    for name, near in misspelt(os.environ):
        echo(f"{context.command_path}: the variable {name} is ignored; did you mean {near}?", err=True)
    try:
        settings = read_settings(chosen, os.environ, config, max_memory=serving.machine_bytes() // 2)
        if "auth_key" in chosen:
            shown = "the process list shows --auth-key to every user of this machine"
            echo(f"{context.command_path}: {shown}; prefer --auth-key-file FILE, or SEGSTORE_AUTH_KEY", err=True)
        serving.serve(settings)
    except (BadSetting, serving.OptionsError) as error:
        raise click.UsageError(str(error), context) from error
    except (FaultFileError, CoordinationError, DataError, serving.StoreFailed) as error:
        raise click.ClickException(str(error)) from error
    return 0
