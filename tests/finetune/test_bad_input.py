"""What cannot be meant is refused before anything trains: one report, exit status 2, nothing written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Outcome
from tests.finetune.whole import options

Cli = Callable[..., Outcome]
REFUSED = r"""
# A pattern that matches nothing
cnn ; freeze ; finetune.freeze=[stage.0]
    finetune.freeze: the pattern matches no parameter … nearest: stages.0
cnn ; lora ; finetune.lora.ranks={stage.0.conv0: 2}
    finetune.lora.ranks … nearest: stages.0.conv0
transformer ; prefix ; finetune.prefix.match=[blocks.*.atention]
    finetune.prefix.match … nearest: blocks.1.attn, blocks.0.attn
cnn ; prefix
    finetune.prefix.match: this matches no module … '@attention' … finetune=lora
transformer ; prompt
    finetune: no such option … fix: … finetune=prefix, or finetune=lora
transformer ; prefix ; finetune.prefix.softmax=joint
    finetune.prefix.softmax: unknown key … a prefix always has a softmax of its own
mlp ; adapter ; finetune.adapter.match=['@blocks']
    this matches no module … '@blocks' … layers
# Parts that contradict each other
cnn ; full ; optim.rules=[{match: stages, lr: 0.2, lr_scale: 2}]
    optim.rules[0] … either lr or lr_scale
cnn ; discriminative ; finetune.layer_decay=0.75
    the rates of the layers are set twice … finetune.slices and optim.layer_decay
cnn ; discriminative ; optim.layer_decay=0.75
    the rates of the layers are set twice … optim.layer_decay
cnn ; [lora,peft]
    LoRA … peft
cnn ; gradual ; finetune.gradual.every_epochs=1
    finetune.gradual … share … every_epochs
# Nothing that trains
cnn ; freeze ; finetune.freeze=['*']
    everything is frozen … finetune.train=[@head]
# Layers and sizes
cnn ; lora ; finetune.lora.rank=40 ; finetune.lora.match=[stages.0.conv0]
    finetune.lora.rank: the rank does not fit stages.0.conv0.weight … 1 to 8 … finetune.lora.ranks
cnn ; lora ; finetune.lora.rank=0
    finetune.lora.rank … 0
cnn ; adapter ; finetune.adapter.reduction=64
    finetune.adapter.reduction … stages.0 … 64
# Moments
cnn ; head ; finetune.schedule=[{epoch: 2, unfreeze: [stages]}]
    finetune.schedule[0].epoch: this comes after the last epoch … at most 1 … trainer.epochs=3
cnn ; head ; finetune.schedule=[{step: 6, unfreeze: [stages]}]
    finetune.schedule[0] … after the end of the run … step 6
cnn ; gradual ; finetune.gradual.share=null ; finetune.gradual.every_epochs=5
    finetune.gradual.every_epochs … after the last epoch
cnn ; head ; finetune.schedule=[{unfreeze: [stages]}]
    finetune.schedule[0] … at no moment
cnn ; head ; finetune.schedule=[{epoch: 1, step: 3, unfreeze: [stages]}]
    finetune.schedule[0] … at two moments
# Rates
cnn ; head ; finetune.head.lr=0
    finetune.head.lr … freeze them instead
cnn ; full ; optim.rules=[{match: stages.0, lr: 0}]
    optim.rules[0].lr … freeze them instead
cnn ; discriminative ; finetune.slices=[0, 1.0]
    finetune.slices … freeze
cnn ; full ; finetune.layer_decay=0
    optim.layer_decay
cnn ; full ; optim.rules=[{match: stages.0, warmup_steps: 60}]
    optim.rules[0] … 60
# Files
cnn ; full ; finetune.weights.path=base.pt
    finetune.weights.path … 'base.pt' … no such file
cnn ; lora ; finetune.weights.adapter=adapter.pt
    finetune.weights.adapter … no such file
cnn ; full ; finetune.distill.teacher=teacher
    finetune.distill.teacher … no such file
cnn ; full ; finetune.distill.teacher=.
    finetune.distill.teacher … not the folder of a run
cnn ; loar
    finetune … lora
"""
"""Model ; preset ; overrides, and below them what is said, in parts."""


def refused() -> list[Any]:
    """The cases of the table, each by what is typed."""
    rows = re.findall(r"^(\w.*)\n((?: {4}.*\n)+)", REFUSED, re.M)
    return [pytest.param(typed.split(" ; "), " ".join(said.split()).split(" … "), id=typed) for typed, said in rows]


@pytest.mark.thorough
@pytest.mark.parametrize(("typed", "texts"), refused())
def test_it_is_refused_in_one_report(cli: Cli, project: Path, typed: list[str], texts: list[str]) -> None:
    check(cli("train", *options(typed[0], typed[1], *typed[2:])), project, texts)


def check(done: Outcome, project: Path, texts: list[str]) -> None:
    assert done.code == 2, done.err
    for text in texts:
        assert text in done.err, done.err
    assert "Traceback" not in done.err
    assert done.err.count("error:") == 1, done.err
    assert not any(project.rglob("config.yaml"))
    assert not (project / "outputs").exists() or not any(path.is_file() for path in (project / "outputs").rglob("*"))


def test_several_mistakes_are_told_at_once(cli: Cli, project: Path) -> None:
    wrong = ["optim.rules=[{match: stages.0, lr: 0}]", "finetune.schedule=[{epoch: 7, freeze: [stages]}]"]
    done = cli("train", *options("cnn", "full", *wrong, "finetune.lora.rank=0"))
    assert done.code == 2
    assert "3 problems found" in done.err
    for key in ("optim.rules[0].lr", "finetune.schedule[0].epoch", "finetune.lora.rank"):
        assert key in done.err


def test_base_weights_of_another_shape(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    done = cli("train", *options("cnn", "full", path, "model.channels=[8,12]"))
    check(
        done,
        project,
        [
            "the weights were not loaded",
            "stages.1.conv0.weight",
            "12×8×3×3",
            "16×8×3×3",
            "finetune.weights.strict=matching",
        ],
    )
    done = cli("train", *options("resnet18", "full", path))
    check(done, project, ["the weights were not loaded", "missing", "conv1.weight"])


def test_a_head_of_another_shape_where_that_is_refused(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    path = f"finetune.weights.path={bases['cnn']}"
    done = cli("train", *options("cnn", "full", path, "finetune.weights.head=refuse"))
    check(done, project, ["the weights were not loaded", "head.weight", "finetune.weights.head=keep or reset"])


def test_a_file_that_is_none(cli: Cli, project: Path) -> None:
    (project / "base.pt").write_bytes(b"not weights at all")
    done = cli("train", *options("cnn", "full", "finetune.weights.path=base.pt"))
    assert done.code == 5, done.err
    assert "base.pt" in done.err
    assert "Traceback" not in done.err
    assert not any(project.rglob("config.yaml"))


def test_a_key_that_the_file_has_not(cli: Cli, project: Path) -> None:
    torch.save({"net": {"head.weight": torch.zeros(8, 16)}}, project / "base.pt")
    done = cli("train", *options("cnn", "full", "finetune.weights.path=base.pt", "finetune.weights.key=nett"))
    check_unreadable(done, project, ["nett", "net", "(finetune.weights.key)"])


def test_a_mapping_that_matches_nothing(cli: Cli, project: Path) -> None:
    torch.save({"head.weight": torch.zeros(8, 16), "head.bias": torch.zeros(8)}, project / "base.pt")
    mapping = "finetune.weights.mapping={encoder.*: stages.*}"
    done = cli("train", *options("cnn", "full", "finetune.weights.path=base.pt", mapping))
    check_unreadable(done, project, ["finetune.weights.mapping", "encoder.*"])


def check_unreadable(done: Outcome, project: Path, texts: list[str]) -> None:
    assert done.code in (2, 5), done.err
    assert all(text in done.err for text in texts), done.err
    assert "Traceback" not in done.err
    assert done.err.count("error:") == 1
    assert not any(project.rglob("config.yaml"))


def test_a_teacher_of_other_classes(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    done = cli("train", *options("cnn", "full", f"finetune.distill.teacher={bases['cnn']}"))
    check(done, project, ["finetune.distill.teacher", "outputs are not of the student's size", "(2, 4)"])


def test_zero_where_it_is_asked_for(cli: Cli, project: Path, bases: dict[str, Path]) -> None:
    rules = "optim.rules=[{match: stages.0, lr: 0, allow_zero: true}]"
    done = cli("train", *options("cnn", "full", rules, "hydra.run.dir=run"))
    assert done.code == 0, done.err
