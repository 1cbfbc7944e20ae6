"""Make the pictures of the manual: `python docs/pictures.py`, by hand, with lightkit, Chromium and Graphviz.

It trains for a minute in a temporary folder, and writes `images/terminal.svg`, `images/ensemble-size.png`,
`images/tensorboard.png` and `images/graph.svg` beside this file. The first is what a terminal shows, drawn by rich; the
second is a figure of an ensemble, drawn by lightkit; the third is a page of `lightkit board`, drawn by Chromium; the
last is a model, drawn by `lightkit graph`. `images/report.png` is the top of a page of `lightkit report`.
`images/find-lr.png` is what `lightkit find lr experiment=digits_cnn` draws, and `images/table.png` is a page of
`lightkit board --table`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).resolve().parent / "images"
COLUMNS, LINES = 116, 40
COMMAND = ["train", "model=cnn", "trainer.epochs=8"]
SWEEP = ["train", "-m", "optim.lr=0.0003,0.001,0.003", "trainer.epochs=10"]
ENSEMBLE = ["train", "ensemble=bagging", "ensemble.size=12", "model.hidden=[32]", "trainer.epochs=8", "name=bag"]
MODEL = ["data=digits", "model=transformer", "model.depth=1", "finetune=lora", "--depth", "2"]
REPORTED = ["train", "data=wine", "cv=5", "trainer.epochs=5", "name=wine"]
RATES = ["train", "-m", "optim.lr=0.0003,0.001,0.003", "seed=0,1,2", "trainer.epochs=10", "name=rates"]
PORT = 6017
WIDTH, HEIGHT = 1260, 690
SETTINGS = 250
"""Width of the settings on the right of the page, which are cut off."""
THEME = TerminalTheme(
    (30, 33, 39),
    (215, 218, 224),
    [
        (30, 33, 39),
        (224, 108, 117),
        (152, 195, 121),
        (229, 192, 123),
        (97, 175, 239),
        (198, 120, 221),
        (86, 182, 194),
        (215, 218, 224),
    ],
)
_TOKEN = re.compile(r"\x1b\[(?P<numbers>[0-9;?]*)(?P<letter>[A-Za-z])|(?P<plain>.)", re.S)


class Screen:
    """What a terminal shows after a text with escape sequences: as many of them as rich writes."""

    def __init__(self) -> None:
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self.style = ""

    def write(self, text: str) -> None:
        """Write a text as a terminal does."""
        for token in _TOKEN.finditer(text):
            if token["letter"]:
                self._control(token["letter"], token["numbers"])
            elif token["plain"] == "\n":
                self.row += 1
                self.lines += [[] for _ in range(self.row + 1 - len(self.lines))]
            elif token["plain"] == "\r":
                self.column = 0
            else:
                line = self.lines[self.row]
                line += [(" ", "")] * (self.column + 1 - len(line))
                line[self.column] = (token["plain"], self.style)
                self.column += 1

    def _control(self, letter: str, numbers: str) -> None:
        if letter == "m":
            self.style = "" if numbers in ("", "0") else f"{self.style}\x1b[{numbers}m"
        elif letter == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column] if numbers in ("", "0") else []

    def text(self) -> Text:
        """Give all lines with their colours."""
        lines = ["".join(f"{style}{sign}\x1b[0m" for sign, style in line).rstrip() for line in self.lines]
        return Text.from_ansi("\n".join(lines).strip("\n"))


def run_in_terminal(arguments: list[str], folder: Path) -> str:
    """Run lightkit in a terminal of a fixed size and return all that it writes there."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    command = [sys.executable, "-m", "lightkit", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    written = bytearray()
    with contextlib.suppress(OSError):  # Linux raises when the other side is closed
        while chunk := os.read(leader, 65536):
            written += chunk
    if process.wait():
        raise SystemExit(f"{' '.join(command)}\n{written.decode()}")
    return written.decode()


def draw_terminal(folder: Path) -> None:
    """Train, and draw what the terminal shows."""
    screen = Screen()
    screen.write(run_in_terminal(COMMAND, folder).replace(str(folder), "~/project"))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    prompt = Text("$ ", "bold green")
    console.print(Text.assemble(prompt, ("lightkit " + " ".join(COMMAND), "bold")))
    console.print(screen.text())
    console.print(prompt)
    console.save_svg(str(IMAGES / "terminal.svg"), title="lightkit", theme=THEME)


def draw_ensemble(folder: Path) -> None:
    """Train an ensemble, and keep its figure of the metric over its size."""
    subprocess.run([sys.executable, "-m", "lightkit", *ENSEMBLE], cwd=folder, check=True)
    (drawn,) = folder.glob("outputs/runs/*/*-bag/figures/over_size.png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(64).save(IMAGES / "ensemble-size.png", optimize=True)


def photograph(address: str, picture: Path, width: int, height: int) -> None:
    """Write what Chromium shows of a page, as a PNG file."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("Chromium is missing: apt install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    options += ["--virtual-time-budget=30000", f"--screenshot={picture}"]
    subprocess.run([browser, *options, address], check=True)


def draw_report(folder: Path) -> None:
    """Cross-validate, and take a picture of the report."""
    for command in (REPORTED, ["report", "wine"]):
        subprocess.run([sys.executable, "-m", "lightkit", *command], cwd=folder, check=True)
    (page,), picture = folder.glob("outputs/runs/*/*-wine/report.html"), IMAGES / "report.png"
    photograph(page.resolve().as_uri(), picture, 1100, 1420)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(64).save(picture, optimize=True)


def draw_board(folder: Path) -> None:
    """Sweep, and take a picture of its curves in TensorBoard."""
    subprocess.run([sys.executable, "-m", "lightkit", *SWEEP], cwd=folder, check=True)
    picture = IMAGES / "tensorboard.png"
    command = [sys.executable, "-m", "lightkit", "board", "outputs/sweeps", "--port", str(PORT)]
    board = subprocess.Popen(command, cwd=folder)
    try:
        address = f"http://127.0.0.1:{PORT}/"
        for _ in range(60):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}data/runs") as answer:
                if len(answer.read()) > 10:
                    break
            time.sleep(1)
        # Curves are drawn by WebGL otherwise, which leaves no trace in the picture.
        photograph(f"{address}?forceSVG=true&smoothing=0#timeseries", picture, WIDTH + SETTINGS, HEIGHT)
    finally:
        board.send_signal(signal.SIGTERM)
        board.wait()
    with Image.open(picture) as image:
        cut = image.convert("RGB").crop((0, 0, WIDTH, HEIGHT))
    cut.quantize(128).save(picture, optimize=True)


def draw_table(folder: Path) -> None:
    """Sweep, and take a picture of the table of its runs, with the curve of the third."""
    sys.path.insert(0, str(IMAGES.parents[1]))
    from tests.browser import browser

    best = ["--where", "optim.lr=0.003"]
    for command in (
        RATES,
        ["runs", "tag", "paper", *best],
        ["board", "outputs/sweeps", "--table", "-d", "--port", str(PORT)],
    ):
        subprocess.run([sys.executable, "-m", "lightkit", *command], cwd=folder, check=True)
    columns = "&".join(
        f"column={name}" for name in ("name", "metric", "best", "test/accuracy", "epochs", "started", "tags")
    )
    with browser(folder / "browser", size=(WIDTH, 560)) as page:
        page.open(f"http://127.0.0.1:{PORT}/#sort=best&where=name~rates*&{columns}", "rates/optim.lr=0.001,seed=2")
        page.evaluate("""document.querySelectorAll("tr.run")[2].dispatchEvent(
            new MouseEvent("mouseenter", {clientX: 800, clientY: 130}))""")
        page.wait_for_elements("#card polyline", 1)
        content = base64.b64decode(page.call("Page.captureScreenshot")["data"])
    subprocess.run(
        [sys.executable, "-m", "lightkit", "board", "outputs/sweeps", "--table", "--stop"], cwd=folder, check=True
    )
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").crop((0, 0, WIDTH, 440)).quantize(128).save(IMAGES / "table.png", optimize=True)


def draw_model(folder: Path) -> None:
    """Draw a small model."""
    command = [sys.executable, "-m", "lightkit", "graph", *MODEL, "--output", str(IMAGES / "graph.svg")]
    subprocess.run(command, cwd=folder, check=True)


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        (folder / "conf").mkdir(parents=True)
        draw_terminal(folder)
        draw_ensemble(folder)
        draw_board(folder)
        draw_table(folder)
        draw_report(folder)
        draw_model(folder)


if __name__ == "__main__":
    main()
