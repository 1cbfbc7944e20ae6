"""`lightkit why --bisect`: the keys that make the difference, found by reruns; `train --from RUN --code`."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.waiting import until
from tests.warm import Warm

NET = """
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self, in_features: int, num_classes: int, one: bool = False, two: bool = False, draws: bool = False):
        super().__init__(in_features, num_classes)
        if draws:
            torch.nn.init.normal_(self.weight, generator=torch.Generator().manual_seed(torch.Generator().seed()))
        self.scale = 2.0 if one and two else 1.0

    def forward(self, x):
        return super().forward(x) * self.scale
"""
QUICK = ("data=wine", "model=custom", "model._target_=net.Net", "trainer.epochs=1", "logger.console.style=quiet")
Process = Callable[..., Outcome]


@pytest.fixture
def trained(process: Process, project: Path) -> Process:
    """Trains a run of a name; `a` is there already."""
    (project / "net.py").write_text(NET)

    def train(name: str, *words: str) -> Outcome:
        done = process("train", *QUICK, f"name={name}", *words)
        assert done.code == 0, done.err
        return done

    train("a", "+model.one=false", "+model.two=false")
    return train


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("+model.one=true", "+model.two=true", "data.eval_batch_size=32"), {"model.one", "model.two"}),
        (("optim.lr=0.02", "data.eval_batch_size=32", "checkpoint.keep_last=3"), {"optim.lr"}),
    ],
    ids=["two keys together", "one key"],
)
@pytest.mark.thorough(first=1)
def test_the_keys_that_make_the_difference_are_found(
    process: Process, trained: Process, project: Path, words: tuple[str, ...], cause: set[str]
) -> None:
    given = [word for word in ("+model.one=false", "+model.two=false") if word.replace("false", "true") not in words]
    trained("b", *given, *words)
    done = process("why", "a", "b", "--bisect", "--json")
    assert ({*json.loads(done.out)["cause"]}, done.code) == (cause, 0)
    assert "6 reruns at most" in done.err
    assert len(process("runs", "--json").out.split('"folder"')) == 3
    assert [*(project / "outputs" / "find" / ".found").iterdir()] == []


def test_kept_code_is_one_more_key_and_is_taken_by_a_new_run(process: Process, trained: Process, project: Path) -> None:
    (project / "net.py").write_text(NET.replace("* self.scale", "* 3.0"))
    trained("b", "+model.one=false", "+model.two=false", "data.eval_batch_size=32")
    assert process("why", "a", "b", "--bisect").out == "the cause: code\n"
    assert process("train", "--from", "a", "--code", "name=c").code == 0
    text = process("why", "a", "c").out
    assert "the runs are the same in all that is known of them" in text
    assert "--from RUN" in process("train", "--code").err


def test_what_reruns_cannot_tell_is_said(process: Process, trained: Process, project: Path) -> None:
    trained("b", "+model.draws=true")
    trained("c", "optim.lr=0.02")
    done = process("why", "b", "c", "--bisect")
    assert (done.code, "does not repeat itself" in done.out) == (1, True)
    done = process("why", "a", "b", "--bisect")
    assert (done.code, "something else" in done.out) == (1, True)
    (folder,) = (project / "outputs" / "runs").glob("*/*-c")
    shutil.copytree(folder, folder.with_name("00-00-00-d"), ignore=shutil.ignore_patterns(".mark*", ".sign*"))
    assert "this project wrote" in process("why", "a", "d", "--bisect").err
    (folder / "result.json").unlink()
    assert "lightkit resume" in process("why", "a", "c", "--bisect").err


def test_ctrl_c_leaves_nothing_behind(warm: Warm, trained: Process, project: Path, tmp_path: Path) -> None:
    trained("b", "optim.lr=0.02")
    with (tmp_path / "out").open("w+") as out:
        running = warm.start(["why", "a", "b", "--bisect"], project, [out.fileno()] * 3)
        until(lambda: [*project.glob("outputs/find/.found/*/0/run/*")], "the first rerun")
        os.kill(running.pid, signal.SIGINT)
        assert running.wait() == 130
    assert [*project.glob("outputs/find/.found/*")] == []
