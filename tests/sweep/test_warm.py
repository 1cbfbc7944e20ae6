from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.sweep.warm import Pulse
from tests.conftest import ROOT
from tests.waiting import until
from tests.warm import Running, Warm

SCENARIOS = (
    "bits_are_those_of_a_fresh_process",
    "statuses_are_those_of_a_fresh_process",
    "a_server_that_is_killed",
    "a_server_that_forks_nothing",
    "a_job_that_hangs",
    "a_job_is_as_a_fresh_process_and_reads_the_project_anew",
)


def begin(warm: Warm, project: Path, scenario: str) -> Running:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(os.devnull) as none, (project / "said.txt").open("w") as out:
        streams = [none.fileno(), out.fileno(), out.fileno()]
        variables = {**os.environ, "PYTHONPATH": path}
        return warm.start([scenario], project, streams, variables=variables, module="tests.sweep.warm_jobs")


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_forked_jobs(warm: Warm, project: Path, scenario: str) -> None:
    code = begin(warm, project, scenario).wait()
    assert code == 0, (project / "said.txt").read_text()


def test_a_forked_job_saves_when_the_sweep_is_killed(warm: Warm, project: Path) -> None:
    running = begin(warm, project, "forever")
    until(lambda: (project / "pid").exists() and (project / "pid").read_text(), "the job to train")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    folder = project / "sweep-start" / "start"
    until((folder / "result.json").exists, "the job to save")
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
    assert list((folder / "checkpoints").glob("step-*.pt"))
    pid = int((project / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), "the job to end")


@pytest.mark.thorough(first=0)
def test_what_does_nothing_hangs(tmp_path: Path) -> None:
    idle = [sys.executable, "-c", "import time; time.sleep(600)"]
    parent = [sys.executable, "-c", "import subprocess as s; s.run(['sh', '-c', 'while :; do :; done'])"]
    for command, hangs in ((idle, True), (parent, False)):
        process = subprocess.Popen(command, start_new_session=True)
        try:
            pulse = Pulse(tmp_path, 0.4)
            looks = range(400 if hangs else 40)
            found = any(pulse.has_stopped(process.pid) or _pause() for _ in looks)
            assert found == hangs
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    trains = Pulse(tmp_path, 0.2)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    process = subprocess.Popen(idle)
    assert not any(trains.has_stopped(process.pid) or _pause() for _ in range(40))
    process.kill()
    process.wait()


def _pause() -> None:
    signal.sigtimedwait([], 0.025)
