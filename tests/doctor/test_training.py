"""Faults of model, loss and training, planted one at a time: each is told by the check that is for it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.config import compose
from lightkit.doctor import checks
from lightkit.doctor.checks import examined
from lightkit.doctor.finding import Finding
from lightkit.doctor.training import trials
from lightkit.doctor.training.probing import own_rates
from lightkit.doctor.training.saving import disk, kept_at_once
from lightkit.doctor.training.trials import Try, attempt, lowest_loss
from lightkit.trainer.state import Timetable
from tests.doctor.judging import judge
from tests.doctor.strangers import faults_data, faults_training, healthy
from tests.doctor.strangers.cases import Case

STRANGERS = {case.name: case for case in (*faults_training.CASES, *faults_data.CASES, *healthy.CASES)}
OF_STRANGERS = """
softmax before cross entropy ; initial loss ; error outputs: softmax twice | leave `3` (Softmax) out
sigmoid before the loss of logits ; initial loss ; warning outputs: no prediction can come below
outputs that cannot be negative ; initial loss ; warning outputs: are 0 or more | 49 % of the targets
weight that begins at the mean of targets ; initial loss ; ok initial loss
likelihood without its minus ; loss, baselines ; error sign of the loss
the task gives the target to the network ; loss, baselines ; error shuffled labels
padding in the loss of a language model ; loss ; warning padding: the token 0 | -100 as the target
padding in the loss of tags ; loss ; warning padding: the token 0
weights of classes ; initial loss, loss, baselines ; ok
density with a negative loss ; initial loss, loss, baselines ; ok
nearly all targets are equal ; initial loss, loss, baselines ; ok
position in a sequence tells ; initial loss, loss, baselines ; ok
padding by a value that the loss ignores ; loss ; ok
autoencoder ; initial loss, loss, baselines ; ok shuffled labels
losses add up from step to step ; loss of rows ; error loss: adds up | `trainer.task.total`
input changed in place ; loss of rows ; warning input changed in place: Net changes its input
first layer overwrites its input ; loss of rows ; warning input changed in place: `0` (LeakyReLU)
loss broadcasts ; loss of rows ; warning loss: broadcast
loss broadcasts a column of targets ; loss of rows ; warning loss: broadcast
norm with a momentum of zero ; structure ; warning norm layers: `0` (BatchNorm1d) has momentum=0 | momentum=0.1
norm is always in evaluation ; structure ; warning norm layers: is in evaluation mode while | self.norm.train()
optimizer holds one of six ; structure ; error optimizer: holds 1 of the 6 tensors
a parameter is part of another ; structure ; error shared memory of weights: `body.weight` and `scale`
two parameters on one memory ; structure ; error shared memory of weights: `a.weight` and `b.weight`
tensor that is no buffer ; structure ; warning tensors without a buffer: register_buffer("directions", directions)
tied weights ; structure, loss of rows ; ok loss
frozen body from a file ; structure, loss of rows ; ok loss
constant table outside of the checkpoint ; structure ; ok optimizer
frozen body from a file ; gradients ; ok gradients: each of the 2 tensors that train gets one; 4 other tensors frozen
ten sigmoids ; activations ; warning signal: through 10 Sigmoid
a language model that looks ahead ; causality ; error causality: reads the answer
transformer language model ; causality ; ok causality
rows are scaled by their batch ; evaluation ; error batch size: neighbours | forward of Net
batch statistics in evaluation ; evaluation ; error batch size: `1` (BatchNorm1d) normalizes by the statistics
running scale that is no buffer ; checkpoint ; error checkpoint: `level` begins anew | register_buffer
memory of the step before ; training step ; error kept graph: self.memory = self.memory.detach()
losses kept with their graphs ; training step ; error kept graph: `trainer.task.history`
a step that raises after some time ; training step ; error training step: KeyError
rate of SGD diverges ; one batch ; error one batch: optim.lr=0.5 or less
rate 600 times too low ; baselines ; warning baselines: optim.lr | a larger optim.lr
weight decay of fifty ; baselines ; warning baselines: optim.weight_decay=0.01
pictures as height, width, channels ; pictures ; warning layout: 16 rows for channels
"""


def net(forward: str, init: str = "") -> str:
    """Return a module with a network that is made and computed so, between two linear layers."""
    return f"""
def data(): return TensorDataset(*blobs())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(8, 64), nn.Linear(64, 3)
        {init}

    def forward(self, x):
        {forward}
"""


PLAIN = "return self.head(self.hidden(x).relu())"
HEAD = """self.head = nn.Linear(8, 3)
        nn.init.normal_(self.head.weight, std=0.001)
        nn.init.constant_(self.head.bias, 0.5)"""
CHAIN = "self.body = nn.Sequential(*(each for _ in range(20) for each in (nn.Linear(64, 64), nn.Sigmoid())))"
NORMED = "self.hidden = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64))"
BLOBS = "def data(): return TensorDataset(*blobs())\n"
MEAN_OF_BATCHES = """
from torchmetrics import Metric

class Own(Metric):
    higher_is_better = True

    def __init__(self, **options):
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")
        self.add_state("batches", torch.zeros(()), "sum")

    def update(self, preds, target):
        self.total += (preds.argmax(1) == target).float().mean()
        self.batches += 1

    def compute(self): return self.total / self.batches
"""
COLUMN = """
def data():
    x, y = curve()
    return TensorDataset(x, y[:, None])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(6, 1)
    def forward(self, x): return self.body(x).squeeze(1)
"""
OTHER_ROWS = """
from lightkit.data.tables import digits

def data():
    data = digits()
    data.y = data.y[torch.randperm(len(data), generator=generator())]
    return data
"""
DENYING = """
class Denying(TensorDataset):
    draws = False
    def __getitem__(self, row): return self.tensors[0][row] + torch.randn(8), self.tensors[1][row]

def data(): return Denying(*blobs())
"""
CHANGING = "class Loss(nn.Module):\n    def forward(self, output, target):\n        {}\n"
NO_INPUTS = """
class Rows(Dataset):
    def __len__(self): return 60
    def __getitem__(self, row): return {"x": torch.ones(3), "y": 1.0}

def data(): return Rows()

class Step(Task):
    def step(self, model, batch, criterion): return StepOutput(model(batch["x"].float()).mean())
"""
REBUILT = """
class Step(Task):
    def step(self, model, batch, criterion):
        output = model(batch[0] + batch[1][:, None].float())
        return StepOutput(criterion(output, batch[0]), output, batch[0])
"""
FORCED = """
class Words(Dataset):
    info = DataInfo("language_modeling", (20,), 12, vocab_size=12, context_length=20)
    def __init__(self):
        self.x = torch.randint(1, 12, (200, 20), generator=generator())
        self.y = (self.x + torch.arange(20) // 5) % 11 + 1
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]

def data(): return Words()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places, self.head = nn.Embedding(12, 16), nn.Parameter(torch.randn(20, 16)), nn.Linear(16, 12)
    def forward(self, x): return self.head(self.embed(x) + self.places)

class Step(Task):
    def step(self, model, batch, criterion):
        x, y = batch
        before = {}
        output = model(torch.where(torch.arange(20) % 2 == 0, x, before))
        return StepOutput(criterion(output, y), output, y)
"""
SEQUENCES = "loss=token_cross_entropy metrics=none optim.lr=0.01"
WINE = "data=wine model.hidden=[16] optim.lr=0.01"
FEW = "data.split.val=0.2 data.batch_size=60 model.hidden=[16] optim.lr=1e-9"
OWN = {
    "outputs begin too large": (
        net(PLAIN, "self.head.weight.data *= 200"), "", "initial loss", "warning initial loss: outputs begin too large",
    ),
    "root of a negative": (net("return self.head(self.hidden(x).sqrt())"), "", "initial loss",
        "error initial loss: nan"),
    "sigmoid before cross entropy": (
        net("return self.head(self.hidden(x)).sigmoid()"), "", "initial loss", "warning outputs: logits",
    ),
    "sigmoid before a regression": (
        STRANGERS["outputs that cannot be negative"].module.replace("relu", "sigmoid"), "loss=mse metrics=regression",
        "initial loss", "warning outputs: between 0 and 1",
    ),
    "outputs near a half by chance": (net("return self.head(x)", HEAD), "", "initial loss", "ok initial loss"),
    "ReLU behind outputs near a half": (
        net("return self.head(x).relu()", HEAD), "", "initial loss", "warning outputs: cannot say no",
    ),
    "detached": (net("return self.head(self.hidden(x).relu().detach())"), "", "gradients",
        "error gradients: hidden.weight"),
    "unused layer": (net(PLAIN, "self.second = nn.Linear(8, 8)"), "", "gradients", "warning gradients: second.weight"),
    "vanishing": (
        net("return self.head(self.body(self.hidden(x)))", CHAIN), "", "gradients", "warning gradients: vanish",
    ),
    "layers in a list": (
        net("return self.head(self.more[0](self.hidden(x)).relu())", "self.more = [nn.Linear(64, 64)]"), "",
        "structure",
        "error unregistered layers: nn.ModuleList",
    ),
    "layer made in forward": (
        net("return self.head(nn.LayerNorm(64)(self.hidden(x)).relu())"), "", "structure",
        "error unregistered layers: a LayerNorm",
    ),
    "norm that never trains": (
        net("return self.head(self.hidden(self.norm(x)).relu())", "self.norm = nn.LayerNorm(8).requires_grad_(False)"),
        "",
        "structure", "warning norm layers: `norm` (LayerNorm) is frozen",
    ),
    "buffers, and outputs kept without their graph": (
        net(
            "self.seen = (self.hidden(x) * self.scale).detach()\n        return self.head(self.hidden(x) * self.scale)",
            'self.register_buffer("scale", torch.full((64,), 2.0))',
        ),
        "", "training step, structure, loss of rows", "ok loss",
    ),
    "tensors that a module moves itself": (
        net(
            "self.kept = [one.to(x.device) for one in self.kept]; return self.head(self.hidden(x) * self.kept[0])",
            "self.kept = [torch.full((64,), 2.0)]",
        ),
        "", "structure", "ok optimizer",
    ),
    "a generator draws in evaluation": (
        "", "experiment=gan_ring data.dataset.rows=500 data.batch_size=64", "evaluation, one batch",
        "skipped evaluation: may draw",
    ),
    "norm of batches": (net(PLAIN, NORMED), "", "structure, loss of rows", "ok loss"),
    "dead ReLUs": (
        net(PLAIN, "nn.init.constant_(self.hidden.bias, -1000.0)"), "", "activations", "error ReLUs: off for all",
    ),
    "exploding": (
        net("return self.head(self.hidden(x) / 1e9)", "self.hidden.weight.data *= 1e6"), "", "activations",
        "warning activations: drown",
    ),
    "dropout of nearly all": ("", "data=wine model.dropout=0.95", "activations", "warning dropout: 95 %"),
    "dropout in evaluation": (
        net("return self.head(F.dropout(self.hidden(x).relu(), 0.5))"), "", "evaluation",
        "error evaluation: differ | training=self.training | forward of Net",
    ),
    "random inputs in evaluation": (DENYING, "model.hidden=[8]", "evaluation", "error evaluation: data.augment"),
    "buffer in evaluation": (
        net(f"self.seen += len(x)\n        {PLAIN}", 'self.register_buffer("seen", torch.zeros(()))'), "", "evaluation",
        "error evaluation changes: seen",
    ),
    "metric over batches": (
        MEAN_OF_BATCHES, "data=digits model.hidden=[8] 'metrics.val.own={_target_: planted.Own}'", "evaluation",
        "warning batch size: val/own",
    ),
    "targets changed": (
        BLOBS + CHANGING.format("target[target > 1] = 1\n        return F.cross_entropy(output, target)"), "",
        "loss of rows", "warning input changed in place: the targets",
    ),
    "loss of all calls": (
        BLOBS + CHANGING.format(
            "self.total = getattr(self, 'total', 0.0) + F.cross_entropy(output, target).detach()\n        "
            "return F.cross_entropy(output, target) + self.total"
        ),
        "", "loss of rows", "error loss: adds up | `loss.total`",
    ),
    "sum over rows": (
        BLOBS + CHANGING.format("return F.cross_entropy(output, target, reduction='sum')"), "", "loss of rows",
        "error loss: .mean() in place of .sum()",
    ),
    "fails in validation": (
        net(f"if not (self.training or len(x) < 3): raise KeyError('no such mode')\n        {PLAIN}"),
        "", "training step", "error training step: no such mode",
    ),
    "what is to be said now": (
        FORCED.format("y"), SEQUENCES, "loss, baselines", "error shuffled labels",
    ),
    "what was said before": (FORCED.format("F.pad(y[:, :-1], (1, 0))"), SEQUENCES, "loss, baselines",
        "ok shuffled labels"),
    "an autoencoder with labels": (
        REBUILT, "data=wine model.hidden=[16] model.num_classes=13 loss=mse metrics=none",
        "initial loss, loss, baselines",
        "skipped shuffled labels",
    ),
    "smoothed labels": ("", f"{WINE} loss.label_smoothing=0.3", "initial loss, loss, baselines", "ok baselines"),
    "rate too small": ("", "data=wine optim.lr=1e-9", "one batch", "warning one batch: lightkit find lr"),
    "uphill": ("", "data=wine optim.maximize=true optim.lr=0.01", "one batch",
        "warning one batch: optim.maximize=false"),
    "clipped to nothing": (
        "", "optim=sgd optim.lr=0.1 trainer.clip_norm=1e-6", "one batch", "warning one batch: trainer.clip_norm=1.0",
    ),
    "a rate of nothing": (
        "", "data=digits model.hidden=[16] optim.lr=1e-9", "baselines",
        "warning baselines: learns nothing from its inputs | data.dataset",
    ),
    "steps too large": (
        "", "data=wine model.hidden=[16] optim.lr=100", "baselines",
        "warning baselines: optim.lr | the steps are too large",
    ),
    "training rows alone": (
        "", f"{WINE} data.split.val=0 data.split.test=0 metrics.monitor=train/loss", "baselines",
        "ok baselines: loss on train | % right",
    ),
    "no inputs to take away": (
        NO_INPUTS, "loss=mse metrics=none model.hidden=[4] model.in_features=3 model.num_classes=1", "baselines",
        "skipped baselines: no pairs",
    ),
    "no loss without inputs": (net("return self.head(self.hidden(x.abs().log()))"), "", "baselines", "ok"),
    "labels of other rows": (OTHER_ROWS, "model.hidden=[16]", "baselines", "warning baselines: data.dataset"),
    "targets in a column": (
        COLUMN, "loss=mse metrics=regression", "loss of rows", "error outputs: every output with every target",
    ),
}  # fmt: skip


LONG = {"a rate of nothing", "what was said before", "uphill", "clipped to nothing"}
"""Trainings of hundreds of steps, of kinds of which others are in the short suite."""


def findings(names: str, *overrides: str) -> list[Finding]:
    """Return what checks of these names find in a run."""
    with examined(compose([*overrides]).cfg, 60) as run:
        found = []
        for name in names.split(", "):
            for each in checks.import_path(dict(checks.CHECKS)[name])(run):
                run.findings.append(each)
                found.append(each)
    return found


@pytest.mark.thorough(first=3)
@pytest.mark.parametrize("row", OF_STRANGERS.strip().splitlines(), ids=lambda row: "; ".join(row.split(" ; ")[:2]))
def test_the_check_for_it_finds_the_fault_of_a_stranger(project: Path, row: str) -> None:
    name, names, says = row.split(" ; ")
    judge(findings(names, *STRANGERS[name].write(project)), says)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough(first=0)) if name in LONG else name for name in OWN]
)
def test_a_planted_fault_is_found(project: Path, name: str) -> None:
    module, overrides, names, says = OWN[name]
    judge(findings(names, *Case(name, module, overrides).write(project)), says)


@pytest.mark.parametrize(
    ("forward", "init", "says"),
    [
        ("return F.one_hot(self.head(self.hidden(x)).argmax(1), 3).float()", "", "argmax"),
        ("hidden = self.hidden(x).sigmoid()\n        hidden += 1\n        return self.head(hidden)", "", "x = x + y"),
        (PLAIN, NORMED, "data.drop_last=true"),
    ],
)
def test_a_step_that_fails_is_told_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, forward: str, init: str, says: str
) -> None:
    first = ("training step", "initial loss", "gradients", "activations")
    monkeypatch.setattr(checks, "CHECKS", tuple(each for each in checks.CHECKS if each[0] in first))
    overrides = Case("", net(forward, init), "data.batch_size=1").write(project)
    with examined(compose(overrides).cfg, 60) as run:
        found = [*checks.examine(run)]
    judge(found, f"error training step: {says}")
    assert {each.measured for each in found if each.status == "skipped"} <= {"a training step fails"}


def test_what_fails_in_a_check_alone_is_no_fault_of_the_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", (("broken", "tests.doctor.test_training:findings"),))
    with examined(compose(["data=wine", "model.hidden=[8]"]).cfg, 60) as run:
        judge([*checks.examine(run)], "note broken: the check itself failed:")


def test_a_run_of_which_nothing_was_looked_at_is_no_sound_one(
    project: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("training step", "splits", "features", "scale")
    monkeypatch.setattr(checks, "CHECKS", tuple(each for each in checks.CHECKS if each[0] in few))
    outcome = cli("doctor", "data=wine", "model.hidden=[8]", "--seconds=1e-3", "--json")
    status = {each["check"]: each["status"] for each in json.loads(outcome.out)["findings"]}

    assert (outcome.code, status["training step"], status["time"]) == (1, "ok", "error")


@pytest.mark.parametrize(("epochs", "statuses"), [(1000, {"warning", "note"}), (2, {"ok"})])
def test_slow_data_need_workers_where_the_run_is_long(project: Path, epochs: int, statuses: set[str]) -> None:
    slow = """
import time

class Slow(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.004)
        return super().__getitem__(row)

def data(): return Slow(*blobs(160))
"""
    (found,) = findings("speed", *Case("", slow, f"model.hidden=[8] trainer.epochs={epochs}").write(project))
    assert found.status in statuses  # a machine of one CPU has no workers to give
    assert ("input-bound" in found.measured) is (epochs > 2)


@pytest.mark.parametrize(("steps", "val", "why"), [(18, 0.2, "so few steps"), (60, 0.05, "so few rows")])
def test_of_few_steps_or_rows_nothing_bad_is_said(
    project: Path, steps: int, val: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_MOST_STEPS", steps)
    few = ("data=wine", f"data.split.val={val}", "data.batch_size=60", "model.hidden=[16]", "optim.lr=1e-9")
    judge(findings("baselines", *few), f"skipped baselines: {why}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "overrides",
    [
        "data=wine",
        "data=diabetes",
        "data=breast_cancer data.dataset.binary=true loss=bce_with_logits metrics=binary",
        "data=digits_multilabel",
    ],
)
def test_a_network_that_learns_is_better_than_answers_without_inputs(project: Path, overrides: str) -> None:
    (compared,) = findings("baselines", *overrides.split(), "model=mlp", "model.hidden=[16]", "optim.lr=0.01")
    numbers = compared.numbers
    assert compared.status == "ok"
    assert numbers["loss"] < 0.9 * numbers["without_inputs"]
    # The best constant answer and what a network without inputs comes to are the same thing.
    assert numbers["without_inputs"] == pytest.approx(numbers["constant"], rel=0.15)
    assert numbers["accuracy"] is None or numbers["accuracy"] > numbers["accuracy_without_inputs"]


def with_loss(criterion: object) -> Learner:
    return cast("Learner", SimpleNamespace(criterion=criterion))


def test_the_lowest_loss_of_smoothed_labels_is_their_entropy_and_of_others_nothing() -> None:
    calls = [(torch.zeros(8, 3), torch.arange(8) % 3)]
    for smoothing in (0.0, 0.5):
        share = smoothing / 3
        entropy = -sum(value * math.log(value) for value in (1 - smoothing + share, share, share) if value)
        lowest = lowest_loss(with_loss(nn.CrossEntropyLoss(label_smoothing=smoothing)), calls)
        assert lowest == pytest.approx(entropy, abs=2e-3)

    def unbounded(preds: Tensor, target: Tensor) -> Tensor:
        return (preds * target).mean()

    assert lowest_loss(with_loss(nn.NLLLoss()), calls) == 0
    assert lowest_loss(with_loss(unbounded), [(torch.zeros(4), torch.ones(4))]) == 0


def test_a_few_rows_are_learnt_by_heart_at_the_rate_after_the_warm_up_in_spite_of_dropout(project: Path) -> None:
    hard = ("model.dropout=0.5", "loss.label_smoothing=0.1", "optim.lr=0.01", "scheduler.warmup_epochs=5")
    with examined(compose(["data=wine", *hard]).cfg, 60) as run:
        learner = run.learner()
        assert {*own_rates(learner)} == {0.01}
        assert learner.optimizer.param_groups[0]["lr"] < 0.005
        tried = attempt(learner, 8, seconds=60)
    assert tried.progress > 0.9
    assert tried.losses[-1] > tried.floor > 0.1


@pytest.mark.parametrize(
    ("losses", "progress", "diverged"),
    [([2.0, 1.0], 0.5, False), ([2.0, 0.0], 1.0, False), ([2.0, 4.0], 0.0, True), ([2.0, 1.0, math.nan], 0.5, True)],
)
def test_how_far_a_try_came(losses: list[float], progress: float, diverged: bool) -> None:
    tried = Try(losses, floor=0.0, spread=1.0)
    assert (tried.progress, tried.diverged) == (pytest.approx(progress), diverged)


@pytest.mark.parametrize(
    ("changes", "last", "best", "every", "expected"),
    [
        ({}, 1, 0, None, 2),  # the new one lies beside the old one for a moment
        ({}, 2, 1, None, 4),
        ({"epochs": 1}, 5, 5, None, 2),
        ({}, 1, 1, 50, 7),
        ({"save_steps": 1}, 1, 1, 1, 203),
        ({"save_epochs": None}, 1, 0, None, 2),
    ],
)
def test_checkpoints_that_lie_on_the_disk_at_once(
    changes: dict[str, Any], last: int, best: int, every: int | None, expected: int
) -> None:
    timetable = Timetable(**{"epoch_samples": 100, "batch_size": 10, "epochs": 20, **changes})
    assert kept_at_once(timetable, last=last, best=best, every=every) == expected


def test_room_for_the_checkpoints_to_come_is_counted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project)
    with examined(compose(["data=wine", "model.hidden=[64]"]).cfg, 60) as run:
        timetable = run.learner().timetable
        for free, status in ((300_000, "error"), (700_000, "warning"), (10**12, "ok")):
            monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
            found = disk(run, timetable, 100_000)
            assert (found.status, found.numbers["needed_bytes"]) == (status, 400_000)
            assert found.key == ("" if status == "ok" else "checkpoint.keep_last")


def test_rows_with_weights_are_looked_at_as_others(project: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    rows = [
        f"{a},{b},3,{k},1,{'xy'[k]}" for (a, b), k in zip(torch.randn(120, 2, generator=drawn).tolist(), [0, 1] * 60)
    ]
    (project / "rows.csv").write_text("\n".join(["a,b,same,knows,w,k", *rows]))
    table = [
        "data=table",
        "data.dataset.path=rows.csv",
        "data.dataset.target=k",
        "data.dataset.features=[a,b,same,knows]",
    ]
    names = "splits, order, features, labels, leaks, initial loss, loss, loss of rows, one batch"
    plain, weighted = (
        [(each.check, each.status) for each in findings(names, *table, *more)]
        for more in ([], ["data.dataset.weight_column=w"])
    )
    assert weighted == plain
    assert {("leaking features", "warning"), ("constant features", "warning"), ("one batch", "ok")} <= {*plain}
