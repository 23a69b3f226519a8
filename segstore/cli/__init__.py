"""The command line."""

from segstore.cli.commands import main

__all__ = ["main"]
