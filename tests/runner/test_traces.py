"""Where two runs part, by their traces, and what a replay of both says of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightkit.runner.verify as verify
from lightkit.common import run_files
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.traces import FirstDifference, first_difference
from lightkit.trainer.callbacks import Callback
from tests.conftest import Cli
from tests.resume.harness import forked

HERE = "tests.runner.test_traces"
PLAIN = ["data=wine", "data.batch_size=32", "device=cpu", "metrics.figures=[]", "logger=quiet", "trainer.epochs=2"]
PLAIN += ["trainer.test=none", "data.leak_check=false"]
DEEP = [*PLAIN, "model=custom", f"model._target_={HERE}.Deep", "logger.trace=4"]


class Deep(nn.Module):
    """A chain of blocks, one of which may be another."""

    def __init__(self, in_features: int, num_classes: int, odd: int = -1) -> None:
        super().__init__()
        kinds = [nn.Tanh() if at == odd else nn.ReLU() for at in range(9)]
        self.first = nn.Linear(in_features, 6)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), kind) for kind in kinds))
        self.last = nn.Linear(6, num_classes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.blocks(self.first(x)))


class Flip(Callback):
    """Changes the last bit of one weight, or a little of one gradient, at a step."""

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.step and self.what == "weight":
            with torch.no_grad():
                trainer.model.blocks[4][0].weight.view(torch.int32)[0, 0] ^= 1

    def on_batch(self, trainer: Any, loss: torch.Tensor, outputs: Any) -> None:
        if trainer.state.step == self.step - 1 and self.what == "gradient":
            trainer.model.blocks[2][0].weight.grad[0, 0] += 1e-3


def nudged(x: torch.Tensor) -> torch.Tensor:
    return x + 0.25


def write(folder: Path, *rows: dict[str, Any], member: str = "") -> None:
    place = folder / run_files.MEMBERS / member if member else folder
    place.mkdir(parents=True, exist_ok=True)
    (place / run_files.TRACE).write_text("".join(f"{json.dumps({'number': 0, **row})}\n" for row in rows))


def line(step: int, **facts: Any) -> dict[str, Any]:
    return {"phase": "step" if step else "start", "step": step, "rows": "a", "gradients": "b", "weights": "c", **facts}


@pytest.fixture
def parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FirstDifference | None]:
    """Train two runs and compare them, with forked children in place of new processes, which take seconds to start."""

    def finished(file: Path, *, want: int = 0, **variables: str) -> None:
        forked(lambda: os.environ.update(variables) or verify.run_job(file), file.with_suffix(".log"), want=want)

    monkeypatch.setattr(verify, "run_in_process", finished)

    def run(one: list[str], other: list[str], *tell: Callable[[str], Any]) -> FirstDifference | None:
        folders = [tmp_path / "one", tmp_path / "other"]
        for folder, overrides in zip(folders, (one, other)):
            Runner(compose(overrides).cfg, folder).run()
        return first_difference(*folders, *tell)

    return run


@pytest.mark.parametrize(("fact", "what"), [("rows", "batch"), ("gradients", "gradient"), ("weights", "weight")])
def test_the_first_step_that_differs_of_those_that_both_have(tmp_path: Path, fact: str, what: str) -> None:
    write(tmp_path / "a", line(0), line(2), line(4), line(6, **{fact: "x"}), line(8))
    write(tmp_path / "b", line(0), line(3), line(6), line(9))
    found = first_difference(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert (found.step, found.what, found.size, found.after) == (6, what, None, 0)
    assert "from elsewhere are not replayed" in found.note
    assert f"after step 0 and up to step 6 the {what} differs first: " in str(found)
    assert first_difference(tmp_path / "a", tmp_path / "a") is None
    write(tmp_path / "d", line(0, weights="x"))
    assert str(first_difference(tmp_path / "a", tmp_path / "d")).startswith("at step 0 the weight differs ")
    (tmp_path / "c").mkdir()
    assert first_difference(tmp_path / "a", tmp_path / "c") is None


def test_each_member_has_its_own_and_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    for name, last in (("a", "c"), ("b", "x")):
        write(tmp_path / name, line(0), line(2), member="m0")
        write(tmp_path / name, line(0), {"step": []}, {"phase": 3}, line(2, weights=last), member="m1")
    found = first_difference(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert (found.step, found.member) == (2, "m1")
    assert "of member m1 differs first: members, " in str(found)


FLIP = f"trainer.callbacks={{flip: {{_target_: {HERE}.Flip, step: 6, what: "
AUGMENTED = [*PLAIN, "logger.trace=4", "model.hidden=[4]"]
CASES: dict[str, tuple[list[str], list[str], tuple[int, str, str]]] = {
    "one module of a deep model": (DEEP, [*DEEP, "+model.odd=6"], (1, "output", "blocks.6.1")),
    "one bit of a weight": (DEEP, [*DEEP, f"{FLIP}weight}}}}"], (6, "weight", "blocks.4.0.weight")),
    "one gradient": (DEEP, [*DEEP, f"{FLIP}gradient}}}}"], (6, "gradient", "blocks.2.0.weight")),
    "an augmentation": (
        AUGMENTED,
        [*AUGMENTED, f"data.augment=[{{_target_: {HERE}.nudged, _partial_: true}}]"],
        (1, "batch", "[0]"),
    ),
    "the order of the data": (AUGMENTED, [*AUGMENTED, "data.batch_size=31"], (1, "batch", "rows")),
    "the rate": (DEEP, [*DEEP, "optim.lr=0.02"], (1, "weight", "first.weight")),
    "the seed": (DEEP, [*DEEP, "seed=5"], (0, "weight", "first.weight")),
    "another loss": (DEEP, [*DEEP, "loss.label_smoothing=0.1"], (1, "output", "loss")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_replay_names_the_step_the_module_and_the_size(
    parted: Callable[..., FirstDifference | None], case: str
) -> None:
    one, other, expected = CASES[case]
    found = parted(one, other)
    assert found is not None
    assert (found.step, found.what, found.module) == expected, found
    assert not found.note
    assert found.size is None if found.module == "rows" else found.size > 0, found


def test_a_replay_begins_at_the_checkpoint_that_both_have(parted: Callable[..., Any], tmp_path: Path) -> None:
    saves = ["checkpoint.every_steps=3", "checkpoint.keep_last=9"]
    seen = list[str]()
    found = parted([*DEEP, *saves], [*DEEP, *saves, f"{FLIP}weight}}}}"], seen.append)
    assert found is not None
    assert (found.step, found.module, found.after) == (6, "blocks.4.0.weight", 4)
    assert seen[0] == "replaying both runs from step 4 to step 8"
    assert not [*Path(os.environ.get("TMPDIR", "/tmp")).glob(f"lightkit-why-*/{tmp_path.name}")]


def test_lines_further_apart_than_the_run_is_long_tell_of_the_start_alone(parted: Callable[..., Any]) -> None:
    assert parted([*DEEP[:-1], "logger.trace=99"], [*DEEP, "optim.lr=0.02"]) is None


@pytest.mark.thorough
def test_members_have_traces_of_their_own_and_why_tells(cli: Cli, project: Path) -> None:
    ensemble = ("ensemble=voting", "ensemble.size=2", "logger.trace=2")
    for name, lr in (("a", 0.01), ("b", 0.02)):
        assert cli("train", *PLAIN, *ensemble, f"name={name}", f"optim.lr={lr}").code == 0
    assert len([*(project / "outputs").rglob(run_files.TRACE)]) == 4
    done = cli("why", "a", "b")
    assert done.code == 0
    assert "after step 0 and up to step 2 the output of member 00 differs first" in done.out
    assert "are not replayed" in done.out
    first = json.loads(cli("why", "a", "b", "--json").out)["first"]
    assert (first["step"], first["after"], first["size"]) == (2, 0, None)
    (folder,) = (project / "outputs" / "runs").glob("*/*-b")
    shutil.rmtree(folder / run_files.MEMBERS)
    assert json.loads(cli("why", "a", "b", "--json").out)["first"] is None
