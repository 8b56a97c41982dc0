"""A headless Chromium for tests, spoken to over a pipe in the DevTools protocol: no driver, no port, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe")
PATIENCE_S = 60.0


class Tab:
    """One page of a browser. `said` holds what it wrote to its console as errors, `asked` every address it tried to load."""

    def __init__(self, to: int, answers: Iterator[dict[str, Any]]) -> None:
        self._to, self._answers, self._count, self._session = to, answers, 0, ""
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        body = {"id": self._count, "method": method, "params": params, **({"sessionId": self._session} if self._session else {})}
        os.write(self._to, json.dumps(body).encode() + b"\0")
        for answer in self._answers:
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._heard(answer)
        raise AssertionError(f"the browser ended before it answered {method}")

    def _heard(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(params["exceptionDetails"].get("exception", {}).get("description") or params["exceptionDetails"]["text"])
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.said.append(params["entry"]["text"])

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False, offline: bool = True) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1)
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What `expression` is in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """The first value of `expression` that counts as true."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"never became true: {expression}; console: {self.said}"
            time.sleep(0.05)
        return found

    def hover(self, expression: str) -> None:
        """The mouse moves to the middle of the element that `expression` names."""
        box = self.value(f"(e => {{ e.scrollIntoView({{block: 'center', inline: 'center'}}); const b = e.getBoundingClientRect(); "
                         f"return [b.x + b.width / 2, b.y + b.height / 2] }})({expression})")
        for dx in (-2, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + dx, y=box[1])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, *, clip: dict[str, float] | None = None, whole: bool = False) -> None:
        """A PNG of the window, of `clip` {x, y, width, height}, or of the `whole` page."""
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        area = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **area)["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A tab of a browser that is gone afterwards. profile   empty folder for its files"""
    assert CHROMIUM is not None, "guard the test with needs_chromium"
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    start = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
    lifted = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]          # out of the way of 3 and 4
    command = [sys.executable, "-c", start, *map(str, lifted), CHROMIUM, *QUIET, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=lifted, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in (theirs_in, theirs_out, *lifted):
        os.close(end)
    try:
        tab = Tab(ours_out, _answers(ours_in))
        yield tab
        tab._session = ""
        tab.call("Browser.close")
        process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for end in (ours_out, ours_in):
            os.close(end)


def _answers(source: int) -> Iterator[dict[str, Any]]:
    held = b""
    while chunk := os.read(source, 1 << 16):
        *lines, held = (held + chunk).split(b"\0")
        yield from map(json.loads, lines)
