"""A process that measures: it is told in a line, answers in lines, and does not outlive its block."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.finders.child import MeasuringProcess, failure, single_process
from tests.waiting import until


def child(code: str, job: str = "{}") -> MeasuringProcess:
    return MeasuringProcess(job, ("-c", code), key="trainer.find_lr", fix="trainer.find_lr=false")


def test_answers_up_to_the_last_and_an_error_as_one() -> None:
    code = "import sys; job = sys.stdin.readline(); print(job.strip()); print('{\"end\": true}')"
    with child(code, '{"lr": 1}') as process:
        assert [*process.answers()] == [{"lr": 1}, {"end": True}]
    wrong = json.dumps(failure(UserError("no such file", key="data.path")))
    with child(f"print('''{wrong}''')") as process, pytest.raises(UserError, match="no such file") as caught:
        [*process.answers()]
    assert caught.value.exit_code == 2
    assert failure(KeyError("x")) == {"error": "KeyError: 'x'", "exit_code": 1}
    assert failure(MemoryError())["exit_code"] == 4


def test_what_ends_by_itself_is_told_with_what_it_said() -> None:
    code = "import sys; sys.stderr.write('Segfault or worse'); sys.exit(3)"
    with child(code) as process, pytest.raises(UserError, match=r"ended with status 3:\nSegfault or worse") as caught:
        process.answer()
    assert (caught.value.exit_code, "trainer.find_lr=false" in str(caught.value)) == (1, True)


def test_what_still_runs_ends_with_the_block() -> None:
    code = "import os, time; print('{\"pid\": %d}' % os.getpid(), flush=True); time.sleep(600)"
    with child(code) as process:
        pid = (process.answer() or {})["pid"]
    if sys.platform == "linux":
        until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process")


def test_it_is_alone_with_the_gpus_that_this_one_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = compose(["data=wine", "device=ddp", "device.nproc=3", "device.name=cpu", "trainer.find_lr=true"]).cfg
    text = single_process(cfg, {"data.num_workers": 0})
    for line in ("nproc: 1", "parallel: none", "find_lr: false"):
        assert line in text
    assert cfg.device.nproc == 3
    cfg = compose(["data=wine", "device=ddp", "device.gpus=[0,1]"]).cfg
    assert "gpus:\n" in single_process(cfg)
    monkeypatch.setenv("WORLD_SIZE", "2")  # of several processes
    assert "gpus: null" in single_process(cfg)
