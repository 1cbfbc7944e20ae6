"""Every command of the README runs, shortened, in a project folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


BASH = blocks("bash")
RunBash = Callable[[str], subprocess.CompletedProcess[str]]

# `lightkit` as the README's commands see it: a few steps instead of a whole training, and a board that ends by itself.
LIGHTKIT = """\
#!/bin/bash
case " $* " in *" --cfg "* | *" -sc "*) exec "{warm}" "$@" ;; esac
case "$1" in
  train) exec "{warm}" "$@" trainer.steps=30 device.name=cpu ;;
  resume) exec "{warm}" "$@" trainer.steps=35 ;;
  board)
    timeout -s TERM 4 "{python}" -m lightkit "$@"
    [ $? = 124 ] ;;
  *) exec "{warm}" "$@" ;;
esac
"""
# `torchrun` on this machine alone, with two processes: there are no others to meet.
TORCHRUN = """\
#!/bin/bash
while [ "$1" != "-m" ]; do shift; done
PYTHON_EXEC="{python}" exec "{agent}" --standalone --nproc-per-node=2 "$@" trainer.steps=30 device.name=cpu
"""
# `make` with the real Makefile of the repository, but with this test's interpreter and project in place of .venv.
MAKE = """\
#!/bin/bash
case "$1" in
  test|test-all|test-fast) args="--collect-only -p no:cacheprovider tests/test_layout.py" ;;
  *) args="" ;;
esac
export LIGHTKIT_PROJECT="$PWD"
exec "{make}" --no-print-directory -C "{root}" VENV="{venv}" ARGS="$args" "$@"
"""


@pytest.fixture(scope="module")
def tools(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for .venv, whose bin/ is put in front of the PATH."""
    venv = tmp_path_factory.mktemp("venv")
    binaries = venv / "bin"
    binaries.mkdir()
    forked = warm.client(venv / "lightkit", "-m", "lightkit")
    _script(binaries / "lightkit", LIGHTKIT.format(python=sys.executable, warm=forked))
    _script(
        binaries / "torchrun",
        TORCHRUN.format(
            python=warm.client(venv / "python"), agent=warm.client(venv / "agent", "-m", "torch.distributed.run")
        ),
    )
    _script(binaries / "python", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    _script(binaries / "make", MAKE.format(make=shutil.which("make"), root=ROOT, venv=venv))
    (venv / ".lightkit-installed").touch()
    return binaries


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def run_bash(tools: Path, project: Path) -> RunBash:
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)

    return run


def test_the_readme_has_commands() -> None:
    text = "\n".join(BASH)
    for command in ("make train", "make test", "train", "resume", "eval", "predict", "config", "runs", "board"):
        assert re.search(rf"^(lightkit )?{command}\b", text, re.M), command


@pytest.mark.slow
@pytest.mark.parametrize("block", BASH, ids=[block.split("#")[0].splitlines()[0].strip() for block in BASH])
def test_command(block: str, run_bash: RunBash) -> None:
    if re.search(r"\blast\b|^lightkit (runs|board)", block, re.M):
        before = run_bash("lightkit train data=wine")
        assert before.returncode == 0, before.stdout + before.stderr
    done = run_bash(block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_python(run_bash: RunBash) -> None:
    (code,) = blocks("python")
    done = run_bash(f"cat > example.py <<'END'\n{code}END\npython example.py")
    assert done.returncode == 0, done.stderr
