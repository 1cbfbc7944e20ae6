"""A headless Chromium that is told what to do over a pipe, without further packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.waiting import until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RELOAD_SECONDS = 40
"""What a page has at first to show what it is waited for."""
_TEXT = """
(() => {
  const found = [];
  const walk = node => {
    if (node.nodeType === Node.TEXT_NODE) { found.push(node.data.trim()); return; }
    if (["STYLE", "SCRIPT", "TEMPLATE"].includes(node.tagName)) return;
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return found.filter(text => text).join("\\n");
})()
"""
_COUNT = """
(selector => {
  let found = 0;
  const walk = root => {
    found += root.querySelectorAll(selector).length;
    root.querySelectorAll("*").forEach(node => { if (node.shadowRoot) walk(node.shadowRoot); });
  };
  walk(document);
  return found;
})
"""


class Page:
    """A page of the browser. What is inside of web components counts as part of it.

    Args:
        send: End of the pipe that takes commands.
        receive: End of the pipe that answers come from.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = os.fdopen(send, "wb", buffering=0), os.fdopen(receive, "rb")
        self._numbers, self._session = count(1), None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command of the DevTools protocol, and return what came of it."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._send.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _next(self) -> bytes:
        found = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser has ended"
            found += byte
        return bytes(found)

    def close(self) -> None:
        """Close the pipe."""
        self._send.close()
        self._receive.close()

    def open(self, url: str, *words: str) -> None:
        """Go to a page, and wait until all words are on it.

        What a page asks for once, and a busy machine does not answer in time, never comes: it is loaded again, with
        twice the patience each time.
        """
        asked, patience = float("-inf"), RELOAD_SECONDS / 2

        def is_there() -> bool:
            nonlocal asked, patience
            if time.monotonic() > asked + patience:
                asked, patience = time.monotonic(), 2 * patience
                self.call("Page.navigate", url="about:blank")  # else a change behind `#` loads nothing
                self.call("Page.navigate", url=url)
            text = self.text()
            return all(word in text for word in words)

        until(is_there, f"{words}")

    def evaluate(self, script: str) -> Any:
        """Return the value of a line of JavaScript."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def text(self) -> str:
        """Return all text of the page, a line for each piece."""
        return str(self.evaluate(_TEXT) or "")

    def count(self, selector: str) -> int:
        """Count the elements that a CSS selector finds."""
        return int(self.evaluate(f"{_COUNT}({json.dumps(selector)})") or 0)

    def wait_for_elements(self, selector: str, least: int) -> None:
        """Wait until a CSS selector finds so many elements."""
        until(lambda: self.count(selector) >= least, f"{least} of {selector}")


@contextmanager
def browser(folder: Path, *, size: tuple[int, int] = (1400, 1000)) -> Iterator[Page]:
    """Open a browser with one page; it ends with the block.

    Args:
        folder: For what it keeps.
        size: Of the window.
    """
    assert CHROMIUM is not None
    (command_out, command_in), (answer_out, answer_in) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    options += [f"--window-size={size[0]},{size[1]}", f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    # It reads from descriptor 3 and writes to 4, which the shell can give it whatever numbers ours have.
    script = f'exec "$0" "$@" 3<&{command_out} 4>&{answer_in}'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *options],
        pass_fds=(command_out, answer_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_out)
    os.close(answer_in)
    try:
        page = Page(command_in, answer_out)
        yield page
        page.close()
    finally:
        process.kill()
        process.wait()
