"""Turn the lower bounds of pyproject.toml into pip constraints, so that `make test-lowest` tries exactly those.

Invariant: every dependency of the distribution, core or of an extra that ships, has a lower bound and is listed.
Refuses a requirement without a lower bound, by name. The extras `test` and `dev` are left out: they serve this
repository alone.
"""

import re
import sys
import tomllib
from pathlib import Path

__all__ = ["lowest_versions"]

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?P<versions>[^;]*)(?:;(?P<marker>.*))?")
_LOWER_BOUND = re.compile(r"[>=~]=\s*(?P<version>[A-Za-z0-9.+!-]+)")


def lowest_versions(pyproject: str) -> list[str]:
    """Give one `name==version` for each requirement that ships, with its environment marker."""
    project = tomllib.loads(pyproject)["project"]
    requirements = list(project["dependencies"])
    for extra, members in project.get("optional-dependencies", {}).items():
        if extra not in ("test", "dev"):
            requirements += members
    pins = set()
    for requirement in requirements:
        parts = _REQUIREMENT.fullmatch(requirement.strip())
        bound = _LOWER_BOUND.search(parts["versions"]) if parts else None
        if parts is None or bound is None:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
        marker = f" ;{parts['marker']}" if parts["marker"] else ""
        pins.add(f"{parts['name']}=={bound['version']}{marker}")
    return sorted(pins)


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_versions(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
