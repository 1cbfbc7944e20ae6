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

from lightkit.cli import ranks
from lightkit.cli.ranks import Launcher
from tests.conftest import Cli
from tests.waiting import PATIENCE_SECONDS, until
from tests.warm import Warm

RUN = ["data=wine", "device=cpu", "device.parallel=ddp", "device.nproc=2", "logger.console.style=lines"]
RUN += ["metrics.figures=[]", "model.hidden=[8]", "data.batch_size=16"]


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


@pytest.mark.thorough
@pytest.mark.slow
def test_one_run_folder_one_log_and_a_resume_in_one_process(process: Cli, project: Path) -> None:
    done = process("train", *RUN, f"hydra.run.dir={project}/run", "trainer.epochs=1")
    assert (done.code, done.err, done.out.count("result after 8 steps")) == (0, "", 1)
    assert (project / "run" / "run.log").read_text().count("DistributedDataParallel over 2") == 1
    assert len(list((project / "run").glob("**/events.out.*"))) == 1
    for epochs, count in ((2, 1), (3, 2)):
        again = process("resume", "run", f"trainer.epochs={epochs}", f"device.nproc={count}")
        assert (again.code, f"result after {8 * epochs} steps" in again.out) == (0, True), again.err


@pytest.mark.thorough(first=0)
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


@pytest.mark.thorough(first=0)
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


def test_a_line_is_there_before_torch_is(cli: Cli, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for style, lines in (("auto", 1), ("quiet", 0)):
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        done = cli("train", "data=wine", f"logger.console.style={style}")
        assert done.out.count("wine_mlp: PyTorch, data and model are being prepared …") == lines


def launched(code: str, count: int = 2, log: Path | None = None) -> int:
    """Exit status of `count` processes that run Python code; `rank` and `job` are there."""
    head = "import os, sys, time, signal; rank = int(os.environ['RANK']); job = sys.stdin.readline().strip()\n"
    return Launcher([sys.executable, "-c", head + code], count, "the job").run(log)


def test_each_process_knows_which_it_is_and_what_to_do(tmp_path: Path) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    code = f"open(f'{tmp_path}/{{rank}}', 'w').write(' '.join([job, *(os.environ[n] for n in {names})]))"
    assert launched(code, 3) == 0
    found = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [row[:7] for row in found] == [["the", "job", str(r), str(r), "3", "3", "127.0.0.1"] for r in range(3)]
    assert len({row[7] for row in found}) == 1


def test_only_the_first_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    assert launched("print('out', rank); print('err', rank, file=sys.stderr)") == 0
    assert capfd.readouterr() == ("out 0\n", "err 0\n")


def test_the_one_that_failed_first_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "HUNG_SECONDS", PATIENCE_SECONDS)
    log = tmp_path / "run.log"
    log.write_text("before\n")
    code = f"""
sys.stdin.close()
if rank == 1:
    open('{tmp_path}/failing', 'w').close()
    raise RuntimeError('no such thing')
while not os.path.exists('{tmp_path}/failing'): time.sleep(0.01)
sys.exit(7)"""
    assert launched(code, 3, log) == 1
    told = capfd.readouterr().err
    assert "error: rank 1 ended with status 1\nTraceback" in told
    assert "RuntimeError: no such thing\n    fix:      `lightkit resume RUN` goes on" in told
    assert log.read_text() == f"before\n{told}"


def test_what_all_of_them_say_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert launched("sys.stderr.write('error: wrong\\n'); sys.exit(3)") == 3
    assert capfd.readouterr().err == "error: wrong\n"


def test_a_killed_process_ends_the_others(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.3)
    code = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nwhile True: signal.pause()"
    assert launched(code) == 128 + signal.SIGKILL
    assert "error: rank 1 (process" in (told := capfd.readouterr().err)
    assert "was ended by SIGKILL" in told


@pytest.mark.parametrize("how", ["hangs", "was stopped"])
def test_one_that_does_not_answer_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    monkeypatch.setattr(ranks, "HUNG_SECONDS", 0.3)
    monkeypatch.setattr(ranks, "TRACE_SECONDS", PATIENCE_SECONDS)
    code = f"""
import faulthandler, subprocess; faulthandler.enable()
def stuck():
    os.symlink(str(os.getpid()), '{tmp_path}/stuck')
    if {how == "was stopped"}: os.kill(os.getpid(), signal.SIGSTOP)
    while True: signal.pause()
def state():
    if not os.path.islink('{tmp_path}/stuck'): return ''
    words = ['ps', '-o', 'state=', '-p', os.readlink('{tmp_path}/stuck')]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()[:1]
if rank == 1: stuck()
while state() not in ({"'T'" if how == "was stopped" else "'S', 'R'"},): time.sleep(0.01)
sys.exit(7)"""
    assert launched(code) == 128 + signal.SIGABRT
    message = capfd.readouterr().err
    assert "did not answer; this is where it was" in message
    assert "in stuck" in message


def test_a_signal_reaches_each_once(tmp_path: Path) -> None:
    code = f"""
counted = []
def note(number, frame): counted.append(number)
signal.signal(signal.SIGTERM, note)
open(f'{tmp_path}/{{rank}}', 'w').close()
while not counted: time.sleep(0.02)
time.sleep(0.3)
sys.exit(100 + len(counted))"""
    here = os.getpid()
    waiting = f"""
import os, signal, time
while not all(os.path.exists(f'{tmp_path}/{{rank}}') for rank in (0, 1)): time.sleep(0.02)
os.kill({here}, signal.SIGTERM)"""
    with subprocess.Popen([sys.executable, "-c", waiting]) as process:
        try:
            assert launched(code) == 101
        finally:
            process.kill()
