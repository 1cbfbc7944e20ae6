"""Runs of several processes: how they end, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_SECONDS, until
from tests.warm import Warm

RUN = [
    "data=wine",
    "device=cpu",
    "device.parallel=ddp",
    "device.nproc=2",
    "logger.console.style=lines",
    "metrics.figures=[]",
    "model.hidden=[8]",
    "data.batch_size=16",
]


def test_processes_notice_that_the_launcher_is_gone(tmp_path: Path) -> None:
    inner = f"""
from lightkit.cli import ranks
ranks._watch_launcher.__globals__['os'].kill = lambda pid, number: open('{tmp_path}/end', 'w').write(str(int(number)))
import sys; sys.stdin.readline(); ranks._watch_launcher()"""
    process = subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE)
    process.stdin.write(b"job\n")  # type: ignore[union-attr]
    process.stdin.close()  # type: ignore[union-attr]
    assert process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "end").read_text() == str(int(signal.SIGTERM))


@pytest.fixture
def run(process: Callable[..., Any], project: Path) -> Callable[..., Any]:
    """Train into `project/run`."""
    return lambda *args, **options: process("train", *RUN, f"hydra.run.dir={project}/run", *args, **options)


@pytest.mark.thorough
@pytest.mark.slow
def test_one_run_folder_one_log_and_a_resume_in_one_process(
    run: Callable[..., Any], process: Callable[..., Any], project: Path
) -> None:
    done = run("trainer.epochs=2")
    assert done.code == 0, done.err
    assert done.out.count("result after 16 steps") == 1
    assert done.err == ""
    assert (project / "run" / "run.log").read_text().count("DistributedDataParallel over 2") == 1
    assert len(list((project / "run").glob("**/events.out.*"))) == 1
    again = process("resume", "run", "trainer.epochs=3", "device.nproc=1")
    assert (again.code, "result after 24 steps" in again.out) == (0, True), again.err
    last = process("resume", "run", "trainer.epochs=4", "device.nproc=2")
    assert (last.code, "result after 32 steps" in last.out) == (0, True), last.err


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_to_one_process_ends_the_run(
    sign: int, project: Path, process: Callable[..., Any], warm: Warm
) -> None:
    command = ("train", *RUN, f"hydra.run.dir={project}/run", "trainer.epochs=1000000")
    manifest = project / "run" / "checkpoints" / "manifest.json"
    with (project / "told").open("w+") as file:
        started = warm.start(command, project, [file.fileno()] * 3)
    until(lambda: manifest.is_file() or started.code is not None, "the first checkpoint")
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    os.kill(int(children[1]), sign)
    code, told = started.wait(), (project / "told").read_text()
    assert code == 128 + sign, told
    assert ("was ended by SIGKILL" in told) == (sign == signal.SIGKILL)
    assert "gloo" not in told, "PyTorch's own words are for the log"
    result = json.loads((project / "run" / "result.json").read_text())
    assert result["status"] == ("failed" if sign == signal.SIGKILL else "interrupted")
    step = max(int(path.stem.partition("-")[2]) for path in manifest.parent.glob("step-*.pt"))
    again = process("resume", "run", f"trainer.epochs={step // 8 + 2}")
    assert again.code == 0, again.err


@pytest.mark.slow
def test_torchrun(project: Path, warm: Warm) -> None:
    variables = {**os.environ, "PYTHON_EXEC": str(warm.client(project / "python"))}
    torchrun = warm.client(project / "torchrun", "-m", "torch.distributed.run")
    args = [text for text in RUN if "nproc" not in text]
    command = [torchrun, "--standalone", "--nproc-per-node=2", "-m", "lightkit", "train", *args, "trainer.epochs=1"]
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result after 8 steps") == 1
    assert len(list((project / "outputs").glob("runs/*/*/config.yaml"))) == 1


@pytest.mark.parametrize(("style", "lines"), [("auto", 1), ("quiet", 0)])
def test_a_line_is_there_before_torch_is(
    style: str, lines: int, cli: Callable[..., Any], runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    done = cli("train", "data=wine", f"logger.console.style={style}")
    assert done.code == 0, done.err
    assert done.out.count("wine_mlp: PyTorch, data and model are being prepared …") == lines
