"""The recipes for suites in other languages run as the pages have them, with a writer of events as the code under test.

Each page's code runs with the file that readers copy. Only the part that stands for their own code is made here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import JUNIT

VECTORS = Path(__file__).parent.parent / "fixtures" / "vectors" / "commands.jsonl"
DOCS = Path(__file__).parent.parent / "docs" / "how-to"
SUITES = DOCS / "suites"
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that ends soon."""
ORDERS = """
import asyncio, sys
from segstore.client import connect

async def main():
    async with connect(sys.argv[1]) as pravega, pravega.event_writer("shop", "orders") as writer:
        await writer.write(sys.argv[2].encode(), routing_key="customer-7")

asyncio.run(main())
"""
"""The code under test: writes an event. Arguments: the controller's URI, and the event."""
JAVASCRIPT_ORDERS = f"""import {{ execFileSync }} from 'node:child_process';
export const writeOrder = async (...given) => execFileSync('{sys.executable}', ['orders.py', ...given]);
"""
JAVA_ORDERS = f"""class Orders {{
    static void write(java.net.URI controller, String order) {{
        try {{
            var command = new ProcessBuilder("{sys.executable}", "orders.py", controller.toString(), order);
            if (command.inheritIO().start().waitFor() != 0) {{
                throw new AssertionError(order);
            }}
        }} catch (java.io.IOException | InterruptedException error) {{
            throw new AssertionError(error);
        }}
    }}
}}
"""
RUST_ORDERS = f"""pub fn write(controller: &str, order: &str) {{
    let status = std::process::Command::new("{sys.executable}").args(["orders.py", controller, order]).status();
    assert!(status.unwrap().success());
}}
"""
GO_ORDERS = f"""package orders

import "os/exec"

func Write(controller, order string) error {{
	return exec.Command("{sys.executable}", "orders.py", controller, order).Run()
}}
"""
PYTHON_ORDERS = """
import subprocess, sys

def write_order(*words):
    subprocess.run([sys.executable, "write.py", *words], check=True)
"""
FAILING = """
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class FailingTest {
    @RegisterExtension
    static final SegstoreExtension segstore = new SegstoreExtension("--stores", "2");

    @Test
    void whatIsVerifiedIsNotSo() {
        segstore.verify("type = DELETE_SEGMENT", 1);
    }
}
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def ended(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that has run, which found `segstore` on its path."""
    bin_ = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("SEGSTORE", None)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def run(folder: Path, *command: str | Path) -> str:
    """What a command prints. Fails if it fails."""
    done = ended(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(ORDERS, encoding="utf-8")
    return tmp_path


def test_the_commands_of_the_page_about_any_language_print_what_it_shows(folder: Path) -> None:
    program = folder / "orders"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" orders.py "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    shown = [
        each.partition("\n")[::2]
        for block in blocks("steer-from-any-language.md", "console")
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    assert len(shown) >= 20
    mark = "=== next"
    script = "".join(f"{command}\necho\necho '{mark}'\n" for command, _ in shown)
    ending = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"  # also if a command fails
    printed = run(folder, "bash", "-u", "-c", ending + script).split(f"\n{mark}\n")
    assert len(printed) == len(shown) + 1
    for (command, expected), found in zip(shown, printed, strict=False):
        pattern = re.escape(expected.strip()).replace("…", ".*")
        assert re.fullmatch(pattern, found.strip()), f"{command}\n{found}"
    assert (folder / "last-requests.wtrace").stat().st_size > 100


@pytest.mark.needs("node")
def test_the_suite_in_javascript_passes(folder: Path) -> None:
    shutil.copy(SUITES / "segstore.mjs", folder)
    (test,) = blocks("test-in-javascript.md", "js")
    (folder / "orders.test.mjs").write_text(test, encoding="utf-8")
    (folder / "orders.mjs").write_text(JAVASCRIPT_ORDERS, encoding="utf-8")
    printed = run(folder, "node", "--test")
    assert re.search(r"\bpass 2\b", printed), printed
    missing = "import { Segstore } from './segstore.mjs'; await Segstore.start({ command: 'no-such-command' });"
    assert "spawn no-such-command ENOENT" in ended(folder, "node", "--input-type=module", "-e", missing).stderr
    twice = """import { Segstore } from './segstore.mjs';
const segstore = await Segstore.start();
await segstore.stop();
await segstore.stop();
console.log('stopped');"""
    assert run(folder, "node", "--input-type=module", "-e", twice) == "stopped\n"


@pytest.mark.needs("JUnit 5 and a Java compiler")
def test_the_suite_in_java_passes_with_the_extension(folder: Path) -> None:
    shutil.copy(SUITES / "SegstoreExtension.java", folder)
    (test,) = blocks("test-in-java.md", "java")
    (folder / "OrdersTest.java").write_text(test, encoding="utf-8")
    (folder / "Orders.java").write_text(JAVA_ORDERS, encoding="utf-8")
    (folder / "FailingTest.java").write_text(FAILING, encoding="utf-8")
    jars = os.pathsep.join(str(each) for each in JUNIT)
    options = ("-cp", jars, "-d", "out", *(f"-J{option}" for option in SHORT_LIVED))
    run(folder, "javac", *options, *(each.name for each in folder.glob("*.java")))
    launcher = ("org.junit.platform.console.ConsoleLauncher", "--scan-classpath", "out")
    done = ended(folder, "java", *SHORT_LIVED, "-cp", f"{jars}{os.pathsep}out", *launcher)
    assert re.search(r"\b2 tests successful\b", done.stdout), done.stdout + done.stderr
    assert re.search(r"\b1 tests failed\b", done.stdout)
    assert "expected exactly 1 request with type = DELETE_SEGMENT, 0 were received" in done.stdout
    assert 'the latest requests: {"last":' in done.stderr


@pytest.mark.needs("rustc")
def test_the_test_in_rust_passes(folder: Path) -> None:
    shutil.copy(SUITES / "segstore.rs", folder)
    (test,) = blocks("test-in-rust.md", "rust")
    (folder / "orders_test.rs").write_text(test, encoding="utf-8")
    (folder / "orders.rs").write_text(RUST_ORDERS, encoding="utf-8")
    run(folder, "rustc", "-D", "warnings", "--edition", "2021", "--test", "orders_test.rs")
    assert "1 passed" in run(folder, folder / "orders_test")


@pytest.mark.needs("Go")
def test_the_test_in_go_passes(folder: Path) -> None:
    for name in ("segstore", "orders"):
        (folder / name).mkdir()
    shutil.copy(SUITES / "segstore.go", folder / "segstore")
    (folder / "orders.py").rename(folder / "orders" / "orders.py")
    (test,) = blocks("test-in-go.md", "go")
    (folder / "go.mod").write_text("module example.com/shop\n\ngo 1.19\n", encoding="utf-8")
    (folder / "orders" / "orders_test.go").write_text(test, encoding="utf-8")
    (folder / "orders" / "orders.go").write_text(GO_ORDERS, encoding="utf-8")
    run(folder, "go", "vet", "./...")
    assert "ok" in run(folder, "go", "test", "./orders")


@pytest.mark.parametrize(
    ("language", "program", "command"),
    [
        pytest.param("python", "check.py", (sys.executable,), id="Python"),
        pytest.param("js", "check.mjs", ("node",), marks=pytest.mark.needs("node"), id="Node"),
        pytest.param("go", "check.go", ("go", "run"), marks=pytest.mark.needs("Go"), id="Go"),
        pytest.param(
            *("java", "Check.java", ("java", *SHORT_LIVED)),
            marks=pytest.mark.needs("JUnit 5 and a Java compiler"),
            id="Java",
        ),
    ],
)
def test_a_check_of_a_codec_agrees_with_the_vectors_and_shows_a_difference(
    tmp_path: Path, language: str, program: str, command: tuple[str, ...]
) -> None:
    (text,) = blocks("check-your-codec.md", language)
    (tmp_path / program).write_text(text, encoding="utf-8")
    assert run(tmp_path, *command, program, VECTORS.parent) == "134 of 134 agree\n"
    hello, rest = VECTORS.read_text("utf-8").split("\n", 1)
    (tmp_path / "commands.jsonl").write_text(hello.replace('"i32",17', '"i32",16') + "\n" + rest, encoding="utf-8")
    done = ended(tmp_path, *command, program, ".")
    assert done.returncode == 1
    expected, found = (f"ffffff8100000008000000{version:02x}00000005" for version in (17, 16))
    assert done.stdout == f"HELLO typical: {expected} expected, {found} found\n133 of 134 agree\n"


def test_a_history_that_python_writes_is_judged(tmp_path: Path) -> None:
    (example,) = (block for block in blocks("judge-a-history.md", "python") if "def operation" in block)
    (tmp_path / "test.py").write_text(example)
    assert ended(tmp_path, sys.executable, "test.py").returncode == 0
    result = ended(tmp_path, "segstore", "check", "history.jsonl")
    assert (result.returncode, result.stdout) == (0, "2 records, 0 verdicts\n"), result.stderr


JAVA_MAIN = """
    public static void main(String[] arguments) throws Exception {
        var history = new History(new java.io.PrintWriter("history.jsonl"), IllegalArgumentException.class);
        history.operation("w", "send", "{\\"segment\\": \\"s\\", \\"event\\": \\"a\\"}", () -> "{\\"offset\\": 0}");
        history.operation("r", "poll", "{\\"segment\\": \\"s\\"}", () -> "{\\"events\\": [[0, \\"b\\"]]}");
    }
}
"""
GO_MAIN = """
type fields = map[string]any

func main() {
	file, _ := os.Create("history.jsonl")
	history := History{out: json.NewEncoder(file)}
	history.Operation("w", "send", fields{"segment": "s", "event": "a"}, func() (any, error) {
		return fields{"offset": 0}, nil
	})
	history.Operation("r", "poll", fields{"segment": "s"}, func() (any, error) {
		return fields{"events": [][]any{{0, "b"}}}, nil
	})
}
"""


@pytest.mark.parametrize(
    ("program", "command"),
    [
        pytest.param("History.java", "java", marks=pytest.mark.needs("Java 17 or newer")),
        pytest.param("history.go", "go run", marks=pytest.mark.needs("Go")),
    ],
)
def test_a_history_that_another_language_writes_is_judged(tmp_path: Path, program: str, command: str) -> None:
    (example,) = blocks("judge-a-history.md", program.partition(".")[2])
    if program.endswith(".java"):
        source = example.rstrip().removesuffix("}") + JAVA_MAIN
    else:
        source = f'package main\n\nimport ("encoding/json"; "errors"; "os"; "sync")\n\n{example}{GO_MAIN}'
    (tmp_path / program).write_text(source)
    run = ended(tmp_path, *command.split(), program)
    assert run.returncode == 0, run.stderr
    result = ended(tmp_path, "segstore", "check", "history.jsonl")
    assert result.returncode == 1
    assert "event 'b' was read, and no writer sent it" in result.stdout


@pytest.mark.parametrize(
    ("language", "program", "orders", "build", "command"),
    [
        pytest.param("python", "explored.py", PYTHON_ORDERS, "", "python explored.py", id="Python"),
        pytest.param(
            *("js", "explored.mjs", JAVASCRIPT_ORDERS, "", "node explored.mjs"),
            marks=pytest.mark.needs("node"), id="Node",
        ),
        pytest.param(
            *("java", "Explored.java", JAVA_ORDERS, "javac -d out Explored.java Orders.java"),
            *("java -XX:TieredStopAtLevel=1 -cp out Explored",),
            marks=pytest.mark.needs("JUnit 5 and a Java compiler"), id="Java",
        ),
        pytest.param(
            *("go", "explored/main.go", GO_ORDERS, "go build -o main ./explored", "./main"),
            marks=pytest.mark.needs("Go"), id="Go",
        ),
        pytest.param(
            *("rust", "explored.rs", RUST_ORDERS, "rustc explored.rs", "./explored"),
            marks=pytest.mark.needs("rustc"), id="Rust",
        ),
    ],
)  # fmt: skip
def test_a_program_in_each_language_is_explored(
    folder: Path, language: str, program: str, orders: str, build: str, command: str
) -> None:
    named = {"java": "Orders.java", "go": "orders/orders.go"}.get(language, f"orders{Path(program).suffix}")
    (folder / "orders.py").rename(folder / "write.py")
    code = orders.replace("orders.py", str(folder / "write.py"))
    files = {
        program: blocks("explore-in-ci.md", language)[0],
        named: code,
        "go.mod": "module example.com/shop\n\ngo 1.19\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if build:
        run(folder, *build.split())
    (explore,) = blocks("explore-in-ci.md", "sh")
    explore = explore.partition(" -- ")[0]
    done = ended(folder, "bash", "-c", f"{explore} -f 'type = APPEND_BLOCK_END' --failures 'cut after' -- {command}")
    assert (done.returncode, "3 runs, 0 broke" in done.stderr) == (0, True), done.stdout + done.stderr
