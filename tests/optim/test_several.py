"""Several optimizers by name: who moves what and when, and what is refused before training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.optim import Several
from lightkit.optim.several import Part

Cli = Callable[..., Any]
MODULE = """\
import torch
from torch import nn
from lightkit.trainer import StepOutput, Task


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.a.weight), nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.a(x), self.b(x)


class Chase(Task):
    parts = ("a", "b")

    def part(self, name, model, batch, criterion):
        a, b = model(torch.ones(1, 1))
        assert [each.requires_grad for each in model.parameters()] == [name == "a", name == "b"]
        loss = (a - 2 * b) ** 2 if name == "a" else (b - a - 1) ** 2
        return StepOutput(loss.mean(), log={f"{name}_is": (a if name == "a" else b).mean()})

    def step(self, model, batch, criterion):
        return StepOutput(self.part_free(model))

    def part_free(self, model):
        a, b = model(torch.ones(1, 1))
        return (a - b).square().mean()
"""
ONE = [
    "data=wine",
    "model=custom",
    "model._target_=two.Two",
    "optim=several",
    "metrics=none",
    "metrics.monitor=val/loss",
]
ONE += ["trainer.task._target_=two.Chase", "scheduler=constant", "logger.every_steps=1", "trainer.steps=6"]
GAN = ["experiment=gan_ring", "data.dataset.rows=700", "data.batch_size=128", "model.hidden=16"]
GAN += ["trainer.epochs=2", "trainer.validate_every=1", "logger.every_steps=1"]


def parts(**more: str) -> list[str]:
    named = {"a": "match: a, lr: 0.1", "b": "match: b, lr: 0.05", **more}
    kept = {name: text for name, text in named.items() if text}
    texts = [
        f"{name}: {{{'' if text.startswith('_target_') else '_target_: torch.optim.SGD, '}{text}}}"
        for name, text in kept.items()
    ]
    return [f"optim.parts={{{', '.join(texts)}}}"]


def rows(folder: Path, name: str) -> dict[int, float]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[name] for row in found if name in row}


@pytest.fixture
def train(project: Path, cli: Cli) -> Cli:
    (project / "two.py").write_text(MODULE)
    return lambda *more: cli("train", "logger.tensorboard.enabled=false", "device=cpu", *more)


def test_each_steps_by_its_own_loss_one_after_the_other(train: Cli, project: Path) -> None:
    done = train(*ONE, *parts(b="match: b, lr: 0.05, every: 2"), f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    state = torch.load(next((project / "run/checkpoints").glob("*.pt")), weights_only=False)["model"]
    a, b = 1.0, 0.0
    for step in range(1, 7):
        a -= 0.1 * 2 * (a - 2 * b)
        b -= 0.05 * 2 * (b - a - 1) if step % 2 == 0 else 0.0
    assert float(state["a.weight"]) == pytest.approx(a)
    assert float(state["b.weight"]) == pytest.approx(b)
    assert [*rows(project / "run", "grad/norm_b")] == [2, 4, 6]
    assert [*rows(project / "run", "lr/b")] == [1, 2, 3, 4, 5, 6]
    assert rows(project / "run", "train/loss_a") == rows(project / "run", "train/loss")
    assert rows(project / "run", "train/loss_b")


def test_limits_and_schedules_by_name(train: Cli, project: Path) -> None:
    cosine = "schedule: {_target_: lightkit.optim.Cosine, warmup_steps: 2}"
    named = parts(a="match: a, lr: 0.1, clip_norm: 0.5", b=f"match: b, lr: 0.05, {cosine}")
    done = train(*ONE, *named, "scheduler.warmup_steps=1", f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    state = torch.load(next((project / "run/checkpoints").glob("*.pt")), weights_only=False)["model"]
    assert float(state["a.weight"]) < 1.0
    assert rows(project / "run", "lr/a") == {1: 0.05, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.1, 6: 0.1}
    found = [*rows(project / "run", "lr/b").values()]
    assert found[:3] == pytest.approx([0.05 / 3, 0.1 / 3, 0.05])
    assert found[3:] == sorted(found[3:], reverse=True)
    assert found[5] < 0.03


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (parts(b=""), "not in one optimizer: b.weight"),
        (parts(b="match: '*'"), "not in one optimizer: a.weight"),
        (parts(b="match: c"), "optim.parts.b.match: the pattern matches no trainable parameter"),
        (parts(b="lr: 0.1"), "optim.parts.b.match: missing"),
        (parts(a="match: a, every: 2"), "optim.parts.a.every: the first optimizer steps after every window"),
        (parts(b="_target_: torch.optim.LBFGS, match: b"), "optim.parts.b: each optimizer steps by gradients alone"),
        (parts(b="match: b, ever: 2"), "optim.parts.b.ever"),
        (parts(b="match: b, every: 0"), "optim.parts.b.every"),
        (parts(b="match: b, lr: -1"), "optim.parts.b.lr: not a learning rate"),
        (parts(b="match: b, schedule: {_target_: lightkit.optim.Cosine, warm: 1}"), "optim.parts.b.schedule.warm"),
        (["optim=several"], "optim.parts"),
        (["optim=adam", "optim.parts={a: {_target_: torch.optim.SGD, match: '*'}}"], "optim.parts: there are several"),
        ([*parts(), "trainer.task._target_=lightkit.trainer.tasks.Supervised"], "one optimizer; a task of your own"),
        (["optim=adam"], "Chase has losses for other optimizers"),
        ([*parts(b="", c="match: b"), "seed=1"], "expected: a, b"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_before_training(train: Cli, words: list[str], text: str) -> None:
    done = train(*ONE, *words)
    assert (done.code, text in done.out + done.err) == (2, True), done.err


def test_it_is_told_that_they_train_on_one_device(train: Cli, process: Cli) -> None:
    done = process("train", *ONE, *parts(), "device=ddp", "device.name=cpu", "device.nproc=2")
    assert (done.code, "on one device" in done.out + done.err) == (2, True), done.err


def test_a_loss_that_is_missing_is_told(train: Cli, project: Path) -> None:
    body = "        return Chase.part(self, name, model, batch, criterion) if name == 'a' else None"
    lines = [
        "from two import Chase",
        "",
        "",
        "class Less(Chase):",
        "    def part(self, name, model, batch, criterion):",
    ]
    (project / "less.py").write_text("\n".join([*lines, body]))
    done = train(*ONE, *parts(), "trainer.task._target_=less.Less")
    assert (done.code, "the loss of b is missing" in done.err) == (2, True), done.err


def test_a_step_that_moves_what_is_not_its_own_ends_the_run() -> None:
    weights = {name: torch.nn.Parameter(torch.ones(1)) for name in "ab"}
    groups = [{"params": [each], "param_names": [name], "part": name, "lr": 0.1} for name, each in weights.items()]
    named = {name: Part(torch.optim.SGD([group])) for name, group in zip("ab", groups)}
    several = Several(groups, named)

    def step(name: str) -> None:
        with torch.no_grad():
            weights["b"].mul_(2)

    with pytest.raises(UserError) as error:
        several.step(step)
    assert error.value.exit_code == 6
    assert "parameters of another moved: b" in str(error.value)


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize(
    "more", [["device.precision=fp16", "optim.parts.generator.every=2"], ["device.precision=bf16"], []]
)
def test_a_killed_run_goes_on_with_the_same_bits(process: Cli, more: list[str]) -> None:
    done = process("verify-resume", *GAN, "trainer.accumulate=2", *more)
    assert done.code == 0, done.out + done.err


def test_freezing_composes(train: Cli, project: Path) -> None:
    kept = ["finetune=freeze", "finetune.freeze=[generator.0]", "optim.rules=[{match: generator.2, lr_scale: 0.1}]"]
    done = train(*GAN, *kept, "trainer.epochs=1", f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    first = json.loads((project / "run/metrics.jsonl").read_text().splitlines()[0])
    rates = {name: rate for name, rate in first.items() if name.startswith("lr/generator")}
    assert rates == {"lr/generator.generator.2": pytest.approx(2e-4), "lr/generator.head": pytest.approx(2e-3)}
