"""Pages of the documentation: their blocks, and a project folder in which they run one after the other.

A page is a session at a terminal. Its blocks run in their order in one project folder:

- `bash` runs; `python` runs as a program; a block with a title (`python title="nets.py"`) is written to that file.
- `text` shows what the block before it has printed, and is compared with that.

What is otherwise stands in a comment of HTML on the line before the block:

- `<!-- run: whole -->` runs it without shortening, `fresh` also in a process of its own, which a signal reaches;
  `exit=2` expects that status, `new` begins a new project folder.
- `<!-- run: needs=timm -->` leaves it out, and its output, where that package is not installed.
- `<!-- shown: why -->` neither runs nor compares it.

A whole block in a comment of HTML runs too, unseen: it makes the files that a page takes for the reader's own.

Training is cut to `LIGHTKIT_PAGES_STEPS` optimizer steps (30). `pytest tests/docs --rewrite` writes what was printed
into the pages; look at the difference before it is committed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
STEPS = int(os.environ.get("LIGHTKIT_PAGES_STEPS", "30"))
RUN, COMPARED = ("bash", "python", "yaml"), ("text",)
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}) ?(?P<language>\w*)(?P<rest>[^\n]*)$")
_COMMENT = re.compile(r"^ *<!-- (?P<kind>run|shown): (?P<words>.*) -->$")
_TITLE = re.compile(r'title="(?P<title>[^"]+)"')
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+±]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d(/|[ T]|$)|\d\d[-:]\d\d[-:]\d\d")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# `lightkit` as the pages see it: a few steps instead of a whole training, and a board that ends by itself.
_LIGHTKIT = """\
#!/bin/bash
[ -n "$FRESH" ] && exec "{python}" -m lightkit "$@"
[ -n "$WHOLE" ] && exec "{warm}" "$@"
case " $* " in *" --cfg "* | *" -sc "* | *" -h "* | *" --help "*) exec "{warm}" "$@" ;; esac
case "$1" in
  train) exec "{warm}" "$@" trainer.steps={steps} device.name=cpu ;;
  resume) exec "{warm}" "$@" trainer.steps={more} ;;
  board)
    timeout -s TERM 4 "{python}" -m lightkit "$@"
    [ $? = 124 ] ;;
  *) exec "{warm}" "$@" ;;
esac
"""
# `torchrun` on this machine alone, with two processes: there are no others to meet.
_TORCHRUN = """\
#!/bin/bash
while [ "$1" != "-m" ]; do shift; done
PYTHON_EXEC="{python}" exec "{agent}" --standalone --nproc-per-node=2 "$@" trainer.steps={steps} device.name=cpu
"""
# `make` with the Makefile of the repository, but with this interpreter and project in place of .venv.
_MAKE = """\
#!/bin/bash
case "$1" in
  test|test-all|test-fast) args="--collect-only -p no:cacheprovider tests/test_layout.py" ;;
  docs|install|check|conf|format|clean) echo "$1"; exit ;;
  *) args="" ;;
esac
export LIGHTKIT_PROJECT="$PWD"
exec "{make}" --no-print-directory -C "{root}" VENV="{venv}" ARGS="$args" "$@"
"""
# A file runs in milliseconds, too.
_PYTHON = """\
#!/bin/bash
case "$1" in *.py) exec "{script}" "$@" ;; *) exec "{python}" "$@" ;; esac
"""
# What would change the environment of the tests.
_PIP = """\
#!/bin/bash
exit 0
"""


@dataclass
class Block:
    """A fenced block of a page."""

    path: Path
    line: int
    """Of its fence, from 1."""
    language: str
    title: str
    code: str
    run: list[str] = field(default_factory=list)
    """Words of `<!-- run: … -->`."""
    shown: str = ""
    """Why it neither runs nor is compared."""

    @property
    def can_run(self) -> bool:
        """Tell whether the packages it needs are installed."""
        needed = [word[6:] for word in self.run if word.startswith("needs=")]
        return all(importlib.util.find_spec(package) for package in needed)

    @property
    def place(self) -> str:
        """Where it stands, as an editor opens it."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    """Read the fenced blocks of a page in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == opened["fence"])
        indent, before = len(opened["indent"]), lines[number - 1] if number else ""
        code = "".join(f"{line[indent:]}\n" for line in lines[number + 1 : end])
        title, said = _TITLE.search(opened["rest"]), _COMMENT.match(before)
        block = Block(path, number + 1, opened["language"], title["title"] if title else "", code)
        if said:
            block.run = said["words"].split() if said["kind"] == "run" else []
            block.shown = said["words"] if said["kind"] == "shown" else ""
        yield block
        number = end + 1


def pages() -> list[Path]:
    """List every page that shows blocks: README, docs/, and the README of each folder that has one."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [*found, *sorted((ROOT / "experiments").glob("*/README.md")), ROOT / "benchmarks" / "README.md"]


def comparable(text: str) -> list[str]:
    """Reduce what was printed to what is the same every time: no numbers, times, colours, rules or widths."""
    lines = []
    for line in text.splitlines():
        plain = _NUMBER.sub("0", _CLOCK.sub("0", _ESCAPE.sub("", line)))
        plain = " ".join(re.sub(r"[─━═-]{3,}", "---", plain).split())
        if plain:
            lines.append(plain)
    return lines


def differs(shown: str, printed: str) -> str:
    """Compare a block of output with what was printed, where `...` stands for any lines; empty where they agree."""
    wanted, found = comparable(shown), comparable(printed)
    position, anywhere = 0, False
    for line in wanted:
        if line in ("...", "…"):
            anywhere = True
            continue
        places = [i for i in range(position, len(found)) if found[i] == line]
        if not places or (places[0] != position and not anywhere):
            return f"this line is not printed there: {line}\nprinted:\n" + "\n".join(found[position:])
        position, anywhere = places[0] + 1, False
    if position < len(found) and not anywhere:
        return "more is printed:\n" + "\n".join(found[position:])
    return ""


class Terminal:
    """Runs the blocks of a page in a project folder.

    Args:
        folder: Where projects are made.
        tools: A stand-in for the `bin/` of an environment, put in front of the PATH.
    """

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self.tools, self.projects = folder, tools, 0
        self.new_project()

    def new_project(self) -> None:
        """Go to an empty project folder."""
        self.projects += 1
        self.project = self.folder / f"project{self.projects}"
        (self.project / "experiments").mkdir(parents=True)

    def run(self, block: Block) -> tuple[int, str]:
        """Run a block; returns its exit status and what it has printed."""
        if "new" in block.run:
            self.new_project()
        if block.title:
            target = self.project / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code, encoding="utf-8")
            return 0, ""
        if block.language == "python":
            program = self.project / "example.py"
            program.write_text(block.code, encoding="utf-8")
            script = "python example.py"
        else:
            script = block.code
        path = os.pathsep.join([str(self.tools), os.environ["PATH"]])
        asked = {word.upper(): "1" if word in block.run else "" for word in ("whole", "fresh")}
        env = {**os.environ, **asked, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout.replace(str(self.project), "~/project").replace(str(ROOT), "~/lightkit")


def make_tools(warm: Warm, venv: Path) -> Path:
    """Make a stand-in for an environment, in which programs start in milliseconds."""
    binaries = venv / "bin"
    binaries.mkdir(parents=True)
    python = warm.client(venv / "python")
    forked = warm.client(venv / "lightkit", "-m", "lightkit")
    agent = warm.client(venv / "agent", "-m", "torch.distributed.run")
    script = warm.client(venv / "script", "-m", "tests.docs.script")
    scripts = {
        "lightkit": _LIGHTKIT.format(python=sys.executable, warm=forked, steps=STEPS, more=STEPS + 5),
        "torchrun": _TORCHRUN.format(python=python, agent=agent, steps=STEPS),
        "make": _MAKE.format(make=shutil.which("make"), root=ROOT, venv=venv),
        "python": _PYTHON.format(script=script, python=sys.executable),
        "pip": _PIP,
    }
    for name, text in scripts.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    (venv / ".lightkit-installed").touch()
    return binaries


def check_page(path: Path, terminal: Terminal, *, rewrite: bool = False) -> None:
    """Run a page from top to bottom.

    Args:
        path: The page.
        terminal: Where it runs.
        rewrite: Write what is printed into the page, in place of comparing it.
    """
    printed, found, can_run = "", [], True
    for block in blocks(path):
        if block.shown:
            continue
        can_run = block.can_run if block.language in RUN else can_run
        if not can_run:
            continue
        if block.language in RUN:
            status, printed = terminal.run(block)
            expected = next((int(word[5:]) for word in block.run if word.startswith("exit=")), 0)
            assert status == expected, f"{block.place}: status {status}, not {expected}\n{printed}"
            assert expected or "Traceback" not in printed, f"{block.place}\n{printed}"
        elif rewrite:
            found.append((block, printed))
        else:
            assert not (wrong := differs(block.code, printed)), f"{block.place}: {wrong}"
    if rewrite:
        _rewrite(path, found)


def _rewrite(path: Path, found: list[tuple[Block, str]]) -> None:
    """Write what was printed into the page, from its end to its beginning; blocks with `...` are left as they are."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for block, printed in reversed(found):
        if any(line.strip() in ("...", "…") for line in block.code.splitlines()):
            assert not (wrong := differs(block.code, printed)), f"{block.place}: {wrong}"
            continue
        end = block.line + block.code.count("\n")
        lines[block.line : end] = [_ESCAPE.sub("", line).rstrip() for line in printed.strip("\n").splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
