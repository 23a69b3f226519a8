"""The official client in a process of its own, driven from a test: started, listened to, told to go on, killed.

Invariant: when the context ends the process is gone, whatever state it was in.
"""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["ClientCrashed", "ClientFailed", "OfficialClient", "interpreter", "run"]

SCRIPT: Final = Path(__file__).parent / "scenarios" / "run.py"
DEADLINE_S: Final = 120.0
"""How long a scenario may be silent. It takes moments; a machine that has other things to do takes longer."""
_LINE_BYTES: Final = 64 * 1024 * 1024


class ClientFailed(AssertionError):
    """The scenario did not end as expected: its output was different, or did not come in time."""


class ClientCrashed(ClientFailed):
    """The client itself failed: its process ended, or it raised an error of its own."""


_OURS: Final = ("AssertionError", "TimeoutError")
"""Errors that a scenario raises itself."""


def interpreter() -> str:
    """The Python that has the official client: this one, or the one that OFFICIAL_CLIENT_PYTHON names."""
    return os.environ.get("OFFICIAL_CLIENT_PYTHON") or sys.executable


class OfficialClient:
    """A scenario that runs.

    async with OfficialClient(uri, "events.write", scope="a") as client:
        await client.said("half is written")
        client.go_on()
        result = await client.result()
    """

    def __init__(self, uri: str, scenario: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> None:
        self._command = [interpreter(), str(SCRIPT), uri, scenario, json.dumps(arguments)]
        # The client's own settings for credentials and TLS are not to reach a test that does not give them.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("pravega_client_")}
        self._environment = {**inherited, "RUST_BACKTRACE": "0", **(environment or {})}
        self.scenario = scenario
        self._log: deque[bytes] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[bytes] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "the client is not started"
        return self._process

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment, limit=_LINE_BYTES
        )
        self._errors = asyncio.create_task(self._process.stderr.read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """End it as SIGKILL does; nothing if it has ended."""
        if self.process.returncode is None:
            self.process.kill()
        self.process.stdin.close()
        await self.process.stdout.read()
        if self._errors is not None:
            await self._errors
        await self.process.wait()

    def go_on(self) -> None:
        """Let the scenario that waits go on."""
        self.process.stdin.write(b"\n")

    async def said(self, what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the scenario says so. Raises `ClientFailed` if it says something else first."""
        line = await self._line(what, deadline_s)
        if line.get("said") != what:
            raise ClientFailed(f"{self.scenario} was to say {what!r}, not {line}")

    async def says(self, deadline_s: float = DEADLINE_S) -> str:
        """What the scenario says next, whatever it is. Raises `ClientFailed` if it ends instead."""
        line = await self._line("what it says next", deadline_s)
        if "said" not in line:
            raise ClientFailed(f"{self.scenario} was to say something, not {line}")
        return str(line["said"])

    async def result(self, deadline_s: float = DEADLINE_S, heard: Callable[[str], None] | None = None) -> Any:
        """What the scenario returns; what it says until then is given to `heard`."""
        line = await self._line("its result", deadline_s)
        while "said" in line:
            if heard is not None:
                heard(str(line["said"]))
            line = await self._line("its result", deadline_s)
        if "result" not in line:
            failed = str(line.get("failed", line))
            raise (ClientFailed if failed.startswith(_OURS) else ClientCrashed)(f"{self.scenario}: {failed}")
        return line["result"]

    async def _line(self, awaited: str, deadline_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(deadline_s):
                while (line := await self.process.stdout.readline()) and not line.startswith(b"{"):
                    self._log.append(line)  # the client logs to standard output
        except TimeoutError:
            await self.kill()
            said = await self._said()
            raise ClientFailed(f"{self.scenario} did not get to {awaited!r} in {deadline_s} s; {said}") from None
        if not line:
            raise ClientCrashed(f"{self.scenario} ended before {awaited!r}; {await self._said()}")
        found: dict[str, Any] = json.loads(line)
        return found

    async def _said(self) -> str:
        assert self._errors is not None
        text = b"".join([*self._log, await self._errors]).decode(errors="replace").strip()
        return f"it wrote: …{text[-2000:]}" if text else "it wrote nothing"


async def run(
    uri: str,
    scenario: str,
    *,
    deadline_s: float = DEADLINE_S,
    environment: dict[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """Run a scenario to its end; give what it returns."""
    async with OfficialClient(uri, scenario, environment=environment, **arguments) as client:
        return await client.result(deadline_s)
