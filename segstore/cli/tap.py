"""`segstore tap`: a proxy between any client and any Pravega cluster that records traffic and injects faults.

Exit status: 0 when a signal has ended it; 1 when it cannot start or cannot record; 2 for wrong options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from segstore.cli.terminal import NewPath, announce_option, ca_option, file_option, http_token_file, port_option

_STORE = "Segment store to proxy right away; others are added when the controller names them."


@click.command()
@click.option("--controller", metavar="URI", help="Controller to proxy, tcp://HOST:PORT or tls://HOST:PORT.")
@click.option("--store", metavar="HOST:PORT", help=_STORE)
@click.option(
    "--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address that all ports listen on."
)
@port_option("--port", "Port for the first store; further stores get the next ports. 0 picks free ports.", 0)
@port_option("--controller-port", "Port for the controller (gRPC); 0 picks a free port.", 0)
@port_option(
    "--http-port",
    "Port of the live page, the control API and metrics (HTTP); 0 picks a free port; disabled by default.",
)
@http_token_file
@click.option(
    "--history-bytes",
    metavar="BYTES",
    type=click.IntRange(0),
    show_default="16 MiB",
    help="With an HTTP port: bytes of the latest traffic to keep in memory; 0 for none.",
)
@click.option("--published-host", metavar="NAME", help="Host name to announce to clients; default: --host.")
@ca_option
@file_option("--tls-cert", "Certificate of the tap's own ports, with its chain (PEM).")
@file_option("--tls-key", "Key of the certificate (PEM).")
@click.option(
    "--record",
    type=NewPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record the traffic of the stores to a new file, .wtrace, .jsonl or .pcapng, or to standard output (-).",
)
@click.option("--record-tokens", is_flag=True, help="Include delegation tokens in the recording.")
@file_option("--faults", "File with fault rules and toxics (YAML or JSON).")
@announce_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level of log lines on standard error; by default warnings, and the addresses of stores.",
)
def tap(**options: Any) -> int:
    """Run a proxy between clients and a Pravega cluster.

    Point clients at the tap's controller; it replaces the addresses of stores with ports of the tap. It prints one line
    when it is listening. Stop it with Ctrl-C or SIGTERM. Give --controller, --store or both options.
    """
    from pydantic import ValidationError

    from segstore.server.faults import FaultFileError
    from segstore.tap import run_tap
    from segstore.wire.validation import first_error, message_of

    context = click.get_current_context()
    try:
        run_tap(**{name: value for name, value in options.items() if value is not None})
    except FaultFileError as error:
        raise click.ClickException(str(error)) from error
    except ValidationError as error:
        raise click.UsageError(message_of(first_error(error)), context) from error
    except ValueError as error:
        raise click.UsageError(str(error), context) from error
    return 0
