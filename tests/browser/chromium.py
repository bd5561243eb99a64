"""A headless Chromium, driven by the DevTools protocol over a pipe: what a person would see, click and be told."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REASON = "chromium is not installed: pages are not opened in a browser"
needs_chromium = pytest.mark.skipif(BINARY is None, reason=REASON)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
LIMIT_S = 90.0


class Page:
    """One tab: messages that it printed, addresses that it asked for, what is on it."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self._loads = 0
        self.requests: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what the browser answers to a command of the DevTools protocol."""
        return self._browser.call(method, session=self._session, **parameters)

    def close(self) -> None:
        """Close the tab, and with it the connections that it holds."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def open(self, url: str) -> None:
        """Open an address and return when the page has been loaded and drawn."""
        self.loading(lambda: self.call("Page.navigate", url=url))

    def loading(self, act: Callable[[], object]) -> None:
        """Do what leads to another page, and return when that one has been loaded and drawn."""
        loads, deadline = self._loads, time.monotonic() + LIMIT_S
        act()
        while self._loads == loads:  # asking the old page whether it is complete would be answered at once
            assert time.monotonic() < deadline, "no page was loaded"
            self._browser.call("Browser.getVersion")  # events come along; what the page is asked may end with it
            time.sleep(0.02)
        self.wait_until("document.readyState === 'complete'")
        self.settle()

    def settle(self) -> None:
        """Return when two more frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Return when a JavaScript expression has become true."""
        deadline = time.monotonic() + LIMIT_S
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the window a size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if mobile else 1, mobile=mobile,
        )  # fmt: skip
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Let the person who looks prefer "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """Note an event of this tab."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(parameters["entry"]))


class Browser:
    """A running Chromium; commands go through one pipe, answers and events come back through another."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._unread = b""
        self._last_id = 0
        self._pages: dict[str, Page] = {}

    def new_page(self) -> Page:
        """Return a new tab that notes what happens in it from the start."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return what the browser answers to a command."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._next_message(deadline)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            if page := self._pages.get(answer.get("sessionId", "")):
                page.take(answer["method"], answer["params"])

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0], "no answer"
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser went away"
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, ended with the block."""
    assert BINARY is not None
    with contextlib.ExitStack() as stack:
        theirs_in, commands = _pipe(stack.callback)
        answers, theirs_out = _pipe(stack.callback)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        process = subprocess.Popen(
            ["bash", "-c", shell, BINARY, *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        try:
            browser = Browser(commands, answers)
            yield browser
            browser.call("Browser.close")
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _pipe(later: Callable[..., object]) -> tuple[int, int]:
    """Return a pipe whose descriptors are above those that Chromium uses."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
        later(os.close, ends[-1])
    return ends[0], ends[1]
