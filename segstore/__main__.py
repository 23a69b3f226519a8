"""`python -m segstore` is `segstore`."""

from segstore.cli.commands import main

__all__: list[str] = []

if __name__ == "__main__":
    main(prog_name="segstore")
