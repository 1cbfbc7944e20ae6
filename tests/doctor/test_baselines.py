"""The network beside answers that need none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.doctor.baselines import check
from lightkit.doctor.checks import ExaminedRun, examined
from lightkit.doctor.finding import Finding
from lightkit.doctor.training import trials as course

SMALL = ["model=mlp", "model.hidden=[16]", "optim.lr=0.01"]


@contextmanager
def examined_run(*overrides: str, seconds: float = 60) -> Iterator[ExaminedRun]:
    with examined(compose([*overrides]).cfg, seconds) as run:
        yield run


def compared_with(*overrides: str, seconds: float = 60) -> Finding:
    with examined_run(*overrides, seconds=seconds) as run:
        (found,) = check(run)
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "overrides",
    [
        ["data=wine"],
        ["data=diabetes"],
        ["data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary"],
        ["data=digits_multilabel"],
    ],
    ids=["classes", "numbers", "binary", "labels"],
)
def test_a_network_that_learns_is_better_than_both(overrides: list[str]) -> None:
    compared = compared_with(*overrides, *SMALL)
    assert compared.status == "ok"
    numbers = compared.numbers
    assert numbers["loss"] < 0.9 * numbers["without_inputs"]
    # The best constant answer and what a network without inputs comes to are the same thing.
    assert numbers["without_inputs"] == pytest.approx(numbers["constant"], rel=0.15)


@pytest.mark.usefixtures("project")
def test_right_answers_are_told_where_there_are_classes() -> None:
    compared = compared_with("data=wine", *SMALL)
    assert "% right" in compared.measured
    assert compared.numbers["accuracy"] > compared.numbers["accuracy_without_inputs"]


@pytest.mark.usefixtures("project")
def test_a_split_of_training_rows_alone_is_judged_by_itself() -> None:
    one = ["data=wine", "data.split.val=0", "data.split.test=0", "metrics.monitor=train/loss"]
    compared = compared_with(*one, *SMALL)
    assert "loss on train" in compared.measured


@pytest.mark.usefixtures("project")
def test_too_few_steps_are_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "_MOST_STEPS", 5)
    compared = compared_with("data=digits", "model=mlp", "model.hidden=[16]", "optim.lr=1e-9")
    assert compared.status == "skipped"
    assert "so few steps say nothing" in compared.measured


@pytest.mark.usefixtures("project")
def test_a_rate_of_nothing_shows() -> None:
    compared = compared_with("data=digits", "model=mlp", "model.hidden=[16]", "optim.lr=1e-9")
    assert compared.status == "warning"
    assert "learns nothing from its inputs" in compared.why


def test_a_network_that_cannot_do_without_inputs_raises_no_alarm(project: Path) -> None:
    (project / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Logarithmic(nn.Module):\n"
        "    def __init__(self, in_features, num_classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(in_features, num_classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(x.abs().log() - 1)\n"
    )
    compared = compared_with("data=wine", "data.normalize=none", "model=custom", "model._target_=mine.Logarithmic")
    assert not compared.is_bad


def test_samples_without_inputs_to_take_away_are_skipped(project: Path) -> None:
    (project / "mine.py").write_text(
        "import torch\nfrom lightkit.trainer.tasks import StepOutput, Task\n"
        "class Rows:\n"
        "    def __len__(self): return 60\n"
        "    def __getitem__(self, row): return {'x': torch.ones(3), 'y': 1.0}\n"
        "class Mine(Task):\n"
        "    def step(self, model, batch, criterion):\n"
        "        return StepOutput(model(batch['x'].float()).mean())\n"
    )
    custom = ["data=custom", "data.dataset._target_=mine.Rows", "loss=mse", "metrics=none", "metrics.monitor=val/loss"]
    sizes = ["model=mlp", "model.hidden=[4]", "model.in_features=3", "model.num_classes=1"]
    assert compared_with(*custom, *sizes, "trainer.task._target_=mine.Mine").status == "skipped"


@pytest.mark.usefixtures("project")
@pytest.mark.thorough
@pytest.mark.parametrize("experiment", ["retrieval", "char_lm"])
def test_losses_without_a_constant_answer_are_compared_with_the_network_alone(experiment: str) -> None:
    assert not compared_with(f"experiment={experiment}").is_bad


@pytest.mark.usefixtures("project")
def test_steps_that_are_too_large_are_told_from_inputs_of_other_rows() -> None:
    compared = compared_with("data=wine", *SMALL, "optim.lr=100")
    assert compared.status == "warning"
    assert compared.key == "optim.lr"
    assert "the steps are too large" in compared.why


def test_labels_of_other_rows_show(project: Path) -> None:
    (project / "mine.py").write_text(
        "import torch\nfrom lightkit.data.tables import digits\n"
        "def mispaired():\n"
        "    data = digits()\n"
        "    data.y = data.y[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))]\n"
        "    return data\n"
    )
    custom = ["data=custom", "data.dataset._target_=mine.mispaired", "loss=cross_entropy", "metrics=multiclass"]
    compared = compared_with(*custom, "model=mlp", "model.hidden=[16]")
    assert (compared.status, compared.key) == ("warning", "data.dataset")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("steps", "val", "why"), [(18, 0.2, "so few steps"), (60, 0.05, "so few rows")])
def test_of_few_steps_or_rows_nothing_bad_is_said(
    steps: int, val: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "_MOST_STEPS", steps)
    few = ["data=wine", f"data.split.val={val}", "data.batch_size=60", "model=mlp", "model.hidden=[16]"]
    compared = compared_with(*few, "optim.lr=1e-9")
    assert compared.status == "skipped"
    assert why in compared.measured
