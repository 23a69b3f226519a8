"""A client in TypeScript, generated from the served description. `make test` installs the generator with npm."""
