"""Chromium without a window, driven by its DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import connect

from tests.conftest import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-port=0",
)
KEY_CODES = {"ArrowRight": 39, "ArrowUp": 38, "KeyQ": 81, "KeyE": 69, "KeyP": 80, "Space": 32}
SECONDS = 60  # a guard


class Browser:
    def __init__(self, socket):
        self._socket, self._ids = socket, itertools.count(1)
        self._session = None

    def __call__(self, method, **params):
        """Call a method of the protocol; returns its result."""
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": number, "method": method, "params": params, **session}))
        while True:
            answer = json.loads(self._socket.recv(timeout=SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self("Page.enable")
        self("Page.navigate", url=url)

    def read(self, expression):
        found = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression):
        """Wait until an expression holds on the page."""
        assert wait_until(lambda: self.read(expression), SECONDS), self.read("document.body.innerText")

    def press(self, code, kind="keyDown"):
        self("Input.dispatchKeyEvent", type=kind, code=code, windowsVirtualKeyCode=KEY_CODES[code])

    def release(self, code):
        self.press(code, "keyUp")

    def screen(self, width, height, *, dark=False, scale=1):
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )
        scheme = "dark" if dark else "light"
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder):
    """Run Chromium with a new profile in a folder."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            ready = Path(folder) / "DevToolsActivePort"
            assert wait_until(lambda: ready.exists() and len(ready.read_text().splitlines()) == 2, SECONDS)
            port, path = ready.read_text().splitlines()
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as socket:
                found = Browser(socket)
                try:
                    yield found
                finally:
                    found._session = None
                    found("Browser.close")
            process.wait(SECONDS)
        finally:
            process.kill()
