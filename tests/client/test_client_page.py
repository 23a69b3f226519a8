"""The pages about the client: their programs run, the table has every setting with its default, the errors exist."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from segstore.client import ClientSettings, connect, errors
from segstore.client.config import ENVIRONMENT_PREFIX
from segstore.client.retry import Backoff
from segstore.server.cluster import MockCluster
from tests.client.support import settings, until

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "use-the-client.md").read_text(encoding="utf-8")
GROUPS = (DOCS / "how-to" / "use-reader-groups.md").read_text(encoding="utf-8")
SETTINGS = (DOCS / "reference" / "client-settings.md").read_text(encoding="utf-8")
ERRORS = (DOCS / "topics" / "client-errors.md").read_text(encoding="utf-8")
ALL = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SYNCHRONOUS = [each for each in ALL if "segstore.client.sync" in each]
PROGRAMS = [each for each in ALL if each not in SYNCHRONOUS]


def shown(default: Any) -> str:
    """A default as the table has it."""
    if isinstance(default, Backoff):
        most = "" if default.max_attempts is None else f", {default.max_attempts} attempts"
        return f"{default.initial_ms:g} ms ×{default.multiplier:g} to {default.max_ms:,g} ms{most}"
    if isinstance(default, bool) or default is None:
        return str(default).lower().replace("none", "null")
    return f"{default:,g}" if isinstance(default, float) else f"{default:,}" if isinstance(default, int) else default


def rows() -> dict[str, str]:
    """The settings and their defaults, as the table should have them."""
    return {
        ENVIRONMENT_PREFIX + name.upper(): shown(field.default) for name, field in ClientSettings.model_fields.items()
    }


def test_the_table_has_every_setting_with_its_variable_and_default() -> None:
    table = dict(re.findall(r"^\| `(SEGSTORE_CLIENT_\w+)` \| (\S.*?) \| \S.* \|$", SETTINGS, re.MULTILINE))
    assert table == rows()


def test_the_errors_of_the_page_exist_and_lie_in_their_branch() -> None:
    table = re.findall(r"^\| `(\w+)` \| .* \| (`.*`) \|$", ERRORS, re.MULTILINE)
    assert {branch for branch, _ in table} == {
        subclass.__name__ for subclass in errors.ClientError.__subclasses__() if subclass.__module__ == errors.__name__
    }
    for branch, examples in table:
        for name in re.findall(r"\w+", examples):
            assert issubclass(getattr(errors, name), getattr(errors, branch))


def test_the_first_program_runs_as_it_stands_but_for_its_address(
    grpc_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        async with MockCluster(watched=False) as mock:
            program = PROGRAMS[0].replace("127.0.0.1:9090", mock.controller_uri).replace("asyncio.run(main())", "")
            names: dict[str, Any] = {}
            exec(program, names)
            await names["main"]()

    assert PROGRAMS[0].endswith("asyncio.run(main())\n")
    asyncio.run(run())
    assert capsys.readouterr().out == "b'tea'\n"


async def run_on(program: str, page: str, names: dict[str, Any]) -> None:
    """Runs a program, which may await, with these names; its own are added."""
    code = compile(program, f"docs/how-to/{page}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


async def test_the_other_programs_run_one_after_the_other(grpc_runs: None) -> None:
    before = set(REGISTRY._collector_to_names)
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await pravega.controller.create_scope("shop")
        await pravega.controller.create_stream("shop", "orders", segments=2)
        (synchronous,) = SYNCHRONOUS
        await asyncio.to_thread(exec, synchronous.replace("127.0.0.1:9090", mock.controller_uri), {})
        for program in PROGRAMS[1:]:
            await run_on(program, "use-the-client.md", {"pravega": pravega})
        async with pravega.event_reader("shop", "orders") as events:
            got = []
            while len(got) < 1_004:
                event = await events.read()
                got.append(event.data)
        assert {b"coffee", b"cake", b"order 999"} <= set(got)
    for name in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(name)


async def test_listeners_and_checkpoints_are_what_the_page_about_groups_says(
    grpc_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", GROUPS, re.DOTALL | re.MULTILINE)
    changes, checkpoints = [
        program for program in programs if "def on_change" in program or "group.checkpoint(" in program
    ]
    saved: list[Any] = []
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", "stream")
        async with pravega.reader_group("scope", "group", streams=["stream"], refresh_ms=20) as group:
            names: dict[str, Any] = {"group": group, "save": saved.append}
            await run_on(changes, "use-reader-groups.md", names)
            async with names["reader"] as reader, pravega.event_writer("scope", "stream") as writer:
                reading = asyncio.ensure_future(reader.read())
                await run_on(checkpoints, "use-reader-groups.md", names)
                await writer.write(b"tea")
                assert (await reading).data == b"tea"
            automatic = asyncio.ensure_future(names["automatic"]())
            await until(lambda: len(saved) == 2)
            automatic.cancel()
            await asyncio.gather(automatic, return_exceptions=True)
    assert UUID(saved[0]), "a random name"
    assert saved[1].cuts == {"scope/stream": {0: 8 + len(b"tea")}}
    assert "SegmentsAcquired {'scope/stream/0.#epoch.0': 0}" in capsys.readouterr().out
