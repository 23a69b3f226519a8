"""A real browser, without a window, driven through the pipe of its DevTools protocol: no driver, no library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any, Self

__all__ = ["Chromium", "Page"]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1250,2000",
    "--remote-debugging-pipe", "--disable-features=BackForwardCache",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for number, each in enumerate(ends, 3):
    os.dup2(each, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and writes to 4."""
_CODES = {"Enter": 13, " ": 32, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "/": 191}
_AXE = Path(sys.prefix, "typescript", "node_modules", "axe-core", "axe.min.js")
_VIOLATIONS = """
axe.run(document).then(({ violations }) => violations.flatMap(
  ({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target.join(" ")}: ${failureSummary}`)))
"""
PATIENCE_S = 60.0


class Chromium:
    """The browser, which all tests of a process share. It starts at once."""

    def __init__(self, folder: Path) -> None:
        theirs_in, self._commands = os.pipe()
        self.answers, theirs_out = os.pipe()
        command = ["chromium", *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = count(1)
        self._unread = b""

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self.answers)

    def page(self) -> Page:
        """Its page, which is empty. One user at a time; storage stays, by origin."""
        return Page(self)

    def send(self, command: dict[str, Any]) -> int:
        """Returns the number of the command, which its answer has."""
        number = next(self._numbers)
        os.write(self._commands, json.dumps(command | {"id": number}).encode() + b"\0")
        return number

    def received(self) -> list[dict[str, Any]]:
        """Returns the messages that arrived. Blocks if there is nothing to read.

        Raises:
            EOFError: The browser has ended.
        """
        if not (data := os.read(self.answers, 1 << 20)):
            raise EOFError
        *messages, self._unread = (self._unread + data).split(b"\0")
        return [json.loads(message) for message in messages]


class Page:
    """One page. complaints: what stands on its console, and what its policy has kept from it."""

    def __init__(self, chromium: Chromium) -> None:
        self.complaints: list[str] = []
        self._chromium = chromium
        self._session: str | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._chromium.answers, self._read)
        targets = await self.do("Target.getTargets")
        page = next(target for target in targets["targetInfos"] if target["type"] == "page")
        attached = await self.do("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.do(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.open("about:blank")
            await self.do("Log.clear")
            # The end of the session ends what it has emulated, but the width returns later.
            await self.do("Emulation.clearDeviceMetricsOverride")
            session, self._session = self._session, None
            await self.do("Target.detachFromTarget", sessionId=session)
        finally:
            asyncio.get_running_loop().remove_reader(self._chromium.answers)

    def _read(self) -> None:
        try:
            messages = self._chromium.received()
        except EOFError:
            asyncio.get_running_loop().remove_reader(self._chromium.answers)
            for awaited in self._answers.values():
                awaited.cancel()
            return
        for message in messages:
            if "id" in message:
                answer = self._answers.pop(message["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif message.get("sessionId") != self._session:
                continue
            elif message["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif message["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(message["params"]))

    async def do(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol and its result."""
        command: dict[str, Any] = {"method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        answer = asyncio.get_running_loop().create_future()
        self._answers[self._chromium.send(command)] = answer
        async with asyncio.timeout(PATIENCE_S):
            told = await answer
        assert "error" not in told, (method, told)
        return told["result"]

    async def open(self, url: str) -> None:
        """Shows a page, and returns when it is loaded."""
        self._loaded.clear()
        await self.do("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE_S):
            await self._loaded.wait()
            while await self.get("location.href") != url:  # that was the empty page
                self._loaded.clear()
                await self._loaded.wait()

    async def get(self, expression: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        told = await self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Waits until an expression is true in the page; what it gives then."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (found := await self.get(expression)):  # noqa: ASYNC110 — the page tells nobody
                    await asyncio.sleep(0.02)
        except TimeoutError:
            text = await self.get("document.body.innerText")
            raise AssertionError(f"never true: {expression}; {self.complaints}; the page: {text[:3000]}") from None
        return found

    async def click(self, within: str, label: str) -> None:
        """Presses the first visible button with a text, inside the element of a selector, which is unfolded."""
        folded = f"document.querySelector({json.dumps(within)})?.closest('details:not([open])')"
        await self.get(f"{folded}?.querySelector('summary').click()")
        found = f"[...document.querySelectorAll({json.dumps(f'{within} button')})]"
        found += f".find((each) => each.textContent === {json.dumps(label)} && each.checkVisibility())"
        await self.until(f"!!{found}")
        await self.get(f"{found}.click()")

    async def fill(self, selector: str, value: str) -> None:
        """Sets the value of a field, as a user does."""
        await self.until(f"!!document.querySelector({json.dumps(selector)})")
        await self.get(
            f"{{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input', {bubbles: true}));"
            " field.dispatchEvent(new Event('change', {bubbles: true})); }"
        )

    async def look(self, width: int, *, dark: bool = False) -> int:
        """Shows the page at a width, in light or dark colours. Returns by how many pixels it scrolls sideways."""
        await self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.do("Emulation.setEmulatedMedia", features=colours)
        wide: int = await self.get("Math.max(0, document.documentElement.scrollWidth - innerWidth)")
        return wide

    async def violations(self) -> list[str]:
        """What axe-core finds on the page: violations of WCAG and of its best practices, a line for each element."""
        await self.get(f"{await asyncio.to_thread(_AXE.read_text, 'utf-8')};0")
        found: list[str] = await self.get(_VIOLATIONS)
        return found

    async def type(self, selector: str, text: str) -> None:
        """Writes into a field, and presses Enter there."""
        await self.get(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.do("Input.insertText", text=text)
        await self.press("Enter", "\r")

    async def press(self, key: str, text: str = "") -> None:
        """Presses a key where the focus is."""
        code = _CODES[key] if key in _CODES else ord(key.upper())
        await self.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
