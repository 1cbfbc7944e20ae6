"""Containers and files of torchensemble."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchensemble
from torch import nn
from torchensemble.utils import io

from lightkit.common.errors import UserError
from lightkit.ensemble.bridge import read_file, rule_of, to_torchensemble, write_file
from lightkit.ensemble.module import Ensemble, Joint

SIZES = {"in_features": 4, "out_features": 3}
WHOLE = ("Voting", "Bagging", "Adversarial", "Snapshot", "FastGeometric", "GradientBoosting")


def ensemble(task: str, method: str = "Voting", count: int = 3) -> Ensemble:
    torch.manual_seed(1)
    estimators = [nn.Linear(**SIZES) for _ in range(count)]
    if method in ("Fusion", "SoftGradientBoosting"):
        joint = Joint(estimators, scale=1 / count if method == "Fusion" else 0.3)
        return Ensemble([joint], task=task).eval()
    if method == "GradientBoosting":
        return Ensemble(estimators, task=task, rule="sum", weights=[0.5] * count).eval()
    return Ensemble(estimators, task=task).eval()


def predicted(found: Any, task: str, x: torch.Tensor) -> torch.Tensor:
    """What an ensemble of ours predicts: as torchensemble does, probabilities of classes."""
    outputs: torch.Tensor = found(x)
    return outputs.softmax(1) if task == "multiclass" else outputs


@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize("method", [*WHOLE, "Greedy", "Fusion", "SoftGradientBoosting"])
def test_there_and_back_by_its_own_loader(tmp_path: Path, method: str, task: str) -> None:
    ours, x = ensemble(task, method), torch.randn(7, 4)
    made = to_torchensemble(ours, method=method, outputs=3)
    path = write_file(made, tmp_path)
    kind = type(made)
    options = {"shrinkage_rate": made.shrinkage_rate} if hasattr(made, "shrinkage_rate") else {}
    loaded = kind(estimator=nn.Linear, estimator_args=SIZES, n_estimators=3, cuda=False, **options)
    io.load(loaded, str(tmp_path))
    expected = predicted(ours, task, x)
    assert path.name == f"{kind.__name__}_Linear_3_ckpt.pth"
    assert loaded.n_outputs == 3
    assert torch.allclose(loaded.predict(x), expected, atol=1e-6)
    content = torch.load(path, weights_only=True)
    assert len(read_file(path, content).states) == 3


def test_a_hard_vote_decides_the_same(tmp_path: Path) -> None:
    ours, x = ensemble("multiclass"), torch.randn(50, 4)
    ours.rule = "hard"
    made = to_torchensemble(ours, method="Bagging", outputs=3)
    assert made.voting_strategy == "hard"
    assert torch.equal(made.predict(x).argmax(1), ours(x).argmax(1))


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_a_container_that_averages_outputs_there_and_back(task: str, tmp_path: Path) -> None:
    kind, x = "Classifier" if task == "multiclass" else "Regressor", torch.randn(9, 4)
    ours = Ensemble([nn.Linear(4, 3) for _ in range(3)], task=task, rule="sum", weights=[1 / 3] * 3).eval()
    back = to_torchensemble(ours, method="FastGeometric", outputs=3)
    assert type(back).__name__ == f"FastGeometric{kind}"
    assert torch.allclose(predicted(ours, task, x), back.predict(x), atol=1e-6)
    path = write_file(back, tmp_path)
    assert read_file(path, torch.load(path, weights_only=True)).kind == "FastGeometric"
    averaged = to_torchensemble(ensemble(task), method="FastGeometric", outputs=3)  # ours averages probabilities
    assert type(averaged).__name__ == f"Voting{kind}"


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.left(left) * self.right(right)


@pytest.mark.parametrize("count", [2, 12])  # twelve of this size are computed at once
@pytest.mark.parametrize("method", ["Voting", "Fusion", "FastGeometric", "GradientBoosting"])
def test_networks_with_two_inputs_there_and_back(method: str, count: int) -> None:
    torch.manual_seed(1)
    estimators, shares = [TwoInputs() for _ in range(count)], {"Voting": 1 / count, "FastGeometric": 1 / count}
    rule: Any = "soft" if method == "Voting" else "sum"
    weights = [shares.get(method, 1.0)] * count
    ours = Ensemble(estimators, task="multiclass", rule=rule, weights=weights).eval()
    if method == "Fusion":
        ours = Ensemble([Joint(estimators, scale=1 / count)], task="multiclass").eval()
    left, right = torch.randn(9, 4), torch.randn(9, 2)
    expected = to_torchensemble(ours, method=method, outputs=3).predict(left, right)
    with torch.no_grad():
        for _ in range(2):  # alike networks are checked in the first batch
            assert torch.allclose(ours(left, right).softmax(1), expected, atol=1e-6)


def test_what_torchensemble_has_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(2)]
    theirs = torchensemble.VotingClassifier(estimator=nn.Linear, estimator_args=SIZES, n_estimators=2, cuda=False)
    theirs.set_optimizer("SGD", lr=0.1)
    loader = torch.utils.data.DataLoader([(x[i], y[i]) for x, y in data for i in range(8)], batch_size=8)  # type: ignore[arg-type]
    theirs.fit(loader, epochs=1, log_interval=100, save_model=False)
    io.save(theirs, str(tmp_path), logging.getLogger())
    (path,) = tmp_path.glob("*.pth")
    found = read_file(path, torch.load(path, weights_only=False))
    assert (found.kind, found.task) == ("Voting", "multiclass")
    assert torch.equal(found.states[1]["weight"], theirs[1].weight)


def unlike() -> Ensemble:
    return Ensemble([nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3))], task="multiclass")


@pytest.mark.parametrize(
    ("make", "method", "message"),
    [
        (unlike, "Voting", "unlike members"),
        (lambda: Ensemble([nn.Linear(4, 3), nn.Linear(4, 2)], task="multiclass"), "Voting", "unlike members"),
        (lambda: Ensemble([unlike(), unlike()], task="multiclass"), "Voting", "members that are ensembles"),
        (partial(ensemble, "binary"), "Voting", "targets of this kind"),
        (partial(ensemble, "multiclass"), "Stacking", "this method"),
        (
            lambda: Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], task="multiclass", weights=[0.2, 0.8]),
            "Voting",
            "unlike weight",
        ),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_refused(make: Any, method: str, message: str) -> None:
    with pytest.raises(
        UserError, match=f"torchensemble does not know {message}|torchensemble does not know .*{message}"
    ):
        to_torchensemble(make(), method=method, outputs=3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not tell which ensemble"):
        read_file(tmp_path / "weights.pt", {})
    with pytest.raises(UserError, match="does not tell which ensemble"):
        read_file(tmp_path / "NeuralForestClassifier_BaseTree_3_ckpt.pth", {})
    named = tmp_path / "VotingClassifier_MLP_2_ckpt.pth"
    with pytest.raises(UserError, match="not one of torchensemble"):
        read_file(named, {"state": 1})
    with pytest.raises(UserError, match="lacks networks"):
        read_file(named, {"n_estimators": 2, "model": {"estimators_.0.weight": torch.zeros(1)}})


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_file(to_torchensemble(ensemble("multiclass"), outputs=3), tmp_path / "out")


def test_rules_by_class() -> None:
    assert rule_of("Fusion", size=4) == ("sum", 0.25)
    assert rule_of("FastGeometric", size=4) == ("sum", 0.25)
    assert rule_of("GradientBoosting", size=4) == ("sum", 1.0)
    assert rule_of("Bagging", vote="hard", size=4) == ("soft", 0.25)
