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


def test_answers_up_to_the_last() -> None:
    code = "import sys; job = sys.stdin.readline(); print(job.strip()); print('{\"end\": true}')"
    with child(code, '{"lr": 1}') as process:
        assert [*process.answers()] == [{"lr": 1}, {"end": True}]


def test_an_answer_that_is_an_error() -> None:
    said = json.dumps(failure(UserError("no such file", key="data.path")))
    with child(f"print('''{said}''')") as process, pytest.raises(UserError, match="no such file") as caught:
        [*process.answers()]
    assert caught.value.exit_code == 2


def test_what_ends_by_itself_is_told_with_what_it_said() -> None:
    code = "import sys; sys.stderr.write('Segfault or worse'); sys.exit(3)"
    with child(code) as process, pytest.raises(UserError, match=r"ended with status 3:\nSegfault or worse") as caught:
        process.answer()
    assert caught.value.exit_code == 1
    assert "trainer.find_lr=false" in str(caught.value)


def test_what_still_runs_ends_with_the_block(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); print('{{}}', flush=True); time.sleep(600)"
    )
    with child(code) as process:
        assert process.answer() == {}
    if sys.platform == "linux":
        until(lambda: not Path(f"/proc/{file.read_text()}").exists(), "the end of the process")


def test_an_error_in_code_and_memory_that_ran_out() -> None:
    assert failure(KeyError("x")) == {"error": "KeyError: 'x'", "exit_code": 1}
    assert failure(MemoryError())["exit_code"] == 4


def test_of_several_processes_it_sees_the_gpus_that_this_one_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = compose(["data=wine", "device=ddp", "device.gpus=[0,1]"]).cfg
    assert "gpus:\n" in single_process(cfg)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "gpus: null" in single_process(cfg)


def test_it_is_alone() -> None:
    cfg = compose(["data=wine", "device=ddp", "device.nproc=3", "device.name=cpu", "trainer.find_lr=true"]).cfg
    text = single_process(cfg, {"data.num_workers": 0})
    assert "nproc: 1" in text
    assert "parallel: none" in text
    assert "find_lr: false" in text
    assert cfg.device.nproc == 3
