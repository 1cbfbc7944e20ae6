"""Containers and files of torchensemble."""

from __future__ import annotations

import logging
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
METHODS = ("Voting", "Bagging", "Greedy", "Adversarial", "Snapshot", "FastGeometric", "GradientBoosting")
METHODS += ("Fusion", "SoftGradientBoosting")
SUMS = {"GradientBoosting": 0.5, "FastGeometric": 1 / 3}
JOINT = {"Fusion": 1 / 3, "SoftGradientBoosting": 0.3}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.left(left) * self.right(right)


def ensemble(task: str, method: str = "Voting", make: Any = lambda: nn.Linear(**SIZES), count: int = 3) -> Ensemble:
    torch.manual_seed(1)
    estimators = [make() for _ in range(count)]
    if method in JOINT:
        return Ensemble([Joint(estimators, scale=JOINT[method] * 3 / count)], task=task).eval()
    rule: Any = "sum" if method in SUMS else "soft"
    return Ensemble(estimators, task=task, rule=rule, weights=[SUMS.get(method, 1 / 3) * 3 / count] * count).eval()


def predicted(ours: Any, *x: torch.Tensor) -> torch.Tensor:
    """What an ensemble of ours predicts: as torchensemble does, probabilities of classes."""
    outputs: torch.Tensor = ours(*x)
    return outputs.softmax(1) if ours.task == "multiclass" else outputs


@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize("method", METHODS)
def test_there_and_back_by_its_own_loader(tmp_path: Path, method: str, task: str) -> None:
    ours, x = ensemble(task, method), torch.randn(7, 4)
    made = to_torchensemble(ours, method=method, outputs=3)
    path, kind = write_file(made, tmp_path), type(made)
    options = {"shrinkage_rate": made.shrinkage_rate} if hasattr(made, "shrinkage_rate") else {}
    loaded = kind(estimator=nn.Linear, estimator_args=SIZES, n_estimators=3, cuda=False, **options)
    io.load(loaded, str(tmp_path))
    assert path.name == f"{kind.__name__}_Linear_3_ckpt.pth"
    assert loaded.n_outputs == 3
    assert torch.allclose(loaded.predict(x), predicted(ours, x), atol=1e-6)
    back = read_file(path, torch.load(path, weights_only=True))
    assert (len(back.states), back.kind == "FastGeometric") == (3, method == "FastGeometric")


def test_probabilities_that_are_averaged_and_hard_votes_have_another_class() -> None:
    ours, x = ensemble("multiclass"), torch.randn(50, 4)
    averaged = to_torchensemble(ours, method="FastGeometric", outputs=3)  # theirs averages outputs
    assert type(averaged).__name__ == "VotingClassifier"
    ours.rule = "hard"
    made = to_torchensemble(ours, method="Bagging", outputs=3)
    assert made.voting_strategy == "hard"
    assert torch.equal(made.predict(x).argmax(1), ours(x).argmax(1))


@pytest.mark.parametrize("count", [2, 12])  # twelve of this size are computed at once
@pytest.mark.parametrize("method", ["Voting", "Fusion", "FastGeometric", "GradientBoosting"])
def test_networks_with_two_inputs(method: str, count: int) -> None:
    ours, x = ensemble("multiclass", method, TwoInputs, count), (torch.randn(9, 4), torch.randn(9, 2))
    expected = to_torchensemble(ours, method=method, outputs=3).predict(*x)
    with torch.no_grad():
        for _ in range(2):  # alike networks are checked in the first batch
            assert torch.allclose(predicted(ours, *x), expected, atol=1e-6)


def test_what_torchensemble_has_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows: Any = [(torch.randn(4), torch.tensor(number % 3)) for number in range(16)]
    theirs = torchensemble.VotingClassifier(estimator=nn.Linear, estimator_args=SIZES, n_estimators=2, cuda=False)
    theirs.set_optimizer("SGD", lr=0.1)
    theirs.fit(torch.utils.data.DataLoader(rows, batch_size=8), epochs=1, log_interval=100, save_model=False)
    io.save(theirs, str(tmp_path), logging.getLogger())
    (path,) = tmp_path.glob("*.pth")
    back = read_file(path, torch.load(path, weights_only=False))
    assert (back.kind, back.task) == ("Voting", "multiclass")
    assert torch.equal(back.states[1]["weight"], theirs[1].weight)


def of(*estimators: nn.Module, **options: Any) -> Ensemble:
    return Ensemble(estimators, task="multiclass", **options)


def test_what_it_does_not_know_is_refused() -> None:
    unlike = of(nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3)))
    for made, method, message in (
        (unlike, "Voting", "unlike members"),
        (of(nn.Linear(4, 3), nn.Linear(4, 2)), "Voting", "unlike members"),
        (of(unlike, unlike), "Voting", "members that are ensembles"),
        (ensemble("binary"), "Voting", "targets of this kind"),
        (ensemble("multiclass"), "Stacking", "this method"),
        (of(nn.Linear(4, 3), nn.Linear(4, 3), weights=[0.2, 0.8]), "Voting", "unlike weight"),
    ):
        with pytest.raises(UserError, match=f"torchensemble does not know .*{message}"):
            to_torchensemble(made, method=method, outputs=3)


def test_other_files_are_refused_and_so_is_a_folder_that_takes_none(tmp_path: Path) -> None:
    named, weights = "VotingClassifier_MLP_2_ckpt.pth", {"estimators_.0.weight": torch.zeros(1)}
    contents: Any = (
        ("weights.pt", {}, "does not tell which ensemble"),
        ("NeuralForestClassifier_BaseTree_3_ckpt.pth", {}, "does not tell which ensemble"),
        (named, {"state": 1}, "not one of torchensemble"),
        (named, {"n_estimators": 2, "model": weights}, "lacks networks"),
    )
    for name, content, message in contents:
        with pytest.raises(UserError, match=message):
            read_file(tmp_path / name, content)
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_file(to_torchensemble(ensemble("multiclass"), outputs=3), tmp_path / "out")


def test_rules_by_class() -> None:
    rules = {"Fusion": ("sum", 0.25), "FastGeometric": ("sum", 0.25), "GradientBoosting": ("sum", 1.0)}
    assert {kind: rule_of(kind, size=4) for kind in rules} == rules
    assert rule_of("Bagging", vote="hard", size=4) == ("soft", 0.25)
