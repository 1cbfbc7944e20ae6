"""Checkpoints of other programs: what is found in them, and whose state of the optimizer it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.checkpoint.training_file import TrainingFile, fit_optimizer, fit_weights, read_training_file
from lightkit.common.errors import UserError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()


def trained(groups: Any = None, kind: Any = torch.optim.AdamW, **options: Any) -> tuple[nn.Module, Any]:
    model = network()
    optimizer = kind(groups(model) if groups else model.parameters(), **{"lr": 0.01} | options)
    stepped(model, optimizer)
    return model, optimizer


def saved(folder: Path, content: Any) -> TrainingFile:
    torch.save(content, folder / "file.pt")
    return read_training_file(folder / "file.pt")


def test_the_usual_file(tmp_path: Path) -> None:
    model, optimizer = trained()
    file = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
    assert (file.epoch, file.step) == (3, 5), "the optimizer counts its steps"
    old = {name: tensor for name, tensor in file.weights.items() if "num_batches" not in name}
    assert fit_weights(old, model.state_dict()).keys() == model.state_dict().keys()
    assert file.scaler is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(file.weights[name], tensor)


@pytest.mark.parametrize(
    ("names", "wrapper"),
    [
        (("model_state_dict", "optimizer_state_dict", "epoch"), nn.Identity),
        (("state_dict", "optim", "current_epoch"), nn.DataParallel),
    ],
)
def test_names_that_training_loops_use(names: tuple[str, ...], wrapper: Any, tmp_path: Path) -> None:
    model, optimizer = trained()
    prefix = "module." if wrapper is nn.DataParallel else ""
    weights = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    besides = {"iteration": 70, "scaler": {"scale": 8.0}, "model_ema": {name: weights[name] * 0 for name in weights}}
    file = saved(tmp_path, besides | dict(zip(names, (weights, optimizer.state_dict(), 7))))
    assert file.scaler == {"scale": 8.0}
    assert (file.epoch, file.step) == (7, 70)
    assert file.optimizer is not None
    assert fit_weights(file.weights, model.state_dict()).keys() == model.state_dict().keys()


def test_a_file_of_lightning(tmp_path: Path) -> None:
    model, optimizer = trained()
    content = {
        "pytorch-lightning_version": "2.6",
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "optimizer_states": [optimizer.state_dict()],
        "epoch": 2,
        "global_step": 30,
    }
    file = saved(tmp_path, content)
    assert (file.epoch, file.step) == (2, 30)
    assert fit_weights(file.weights, model.state_dict()).keys() == model.state_dict().keys()
    with pytest.raises(UserError, match="the file has several optimizers"):
        saved(tmp_path, content | {"optimizer_states": [optimizer.state_dict()] * 2})


def test_the_epoch_is_a_number_of_epochs_or_the_index_of_the_last() -> None:
    def file(epoch: int | None, step: int | None) -> TrainingFile:
        return TrainingFile(Path("x"), {}, None, epoch, step, None)

    assert file(3, 30).epochs_done(10) == 3
    assert file(2, 30).epochs_done(10) == 3
    assert file(2, None).epochs_done(10) == 2
    assert file(2, 31).epochs_done(10) == 2
    assert file(None, 35).epochs_done(10) == 3
    assert file(None, None).epochs_done(10) == 0


def with_and_without_decay(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
    ]


def named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters()][::-1]


@pytest.mark.parametrize(
    ("groups", "kind", "options"),
    [
        (None, torch.optim.AdamW, {}),
        (with_and_without_decay, torch.optim.SGD, {"momentum": 0.9}),
        (named, torch.optim.Adam, {"amsgrad": True}),
    ],
)
def test_the_state_goes_to_the_parameters_it_belongs_to(
    groups: Any, kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    model, optimizer = trained(groups, kind, **options)
    file = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    here = network()
    other = kind([{"params": [*here.parameters()][::-1], "name": "all"}], lr=0.5, **options)
    fitted = fit_optimizer(file, other, here)
    own = dict(model.named_parameters())
    assert fitted["state"].keys() == own.keys()
    for name, state in fitted["state"].items():
        for what, value in optimizer.state[own[name]].items():
            assert torch.equal(torch.as_tensor(state[what]), torch.as_tensor(value)), (name, what)
    assert [(group["lr"], group["name"]) for group in fitted["groups"]] == [(0.5, "all")]


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    file = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    for other in (
        torch.optim.SGD(model.parameters(), momentum=0.9),
        torch.optim.Adam(model.parameters(), amsgrad=True),
    ):
        with pytest.raises(UserError, match=r"optim\._target_(.|\n)*one that keeps exp_avg, exp_avg_sq, step"):
            fit_optimizer(file, other, model)


def test_state_that_could_belong_to_several_parameters_is_refused(tmp_path: Path) -> None:
    def halves(model: nn.Module) -> list[dict[str, Any]]:
        own = dict(model.named_parameters())
        return [{"params": [own["1.bias"], own["0.bias"]]}, {"params": [own["1.weight"], own["0.weight"]]}]

    model, optimizer = trained(halves)
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with pytest.raises(UserError, match=r"cannot be matched(.|\n)*2 groups(.|\n)*named_parameters"):
        fit_optimizer(saved(tmp_path, content), torch.optim.AdamW(model.parameters()), model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3}, "no weights in the usual places"),
        ({"model": {"a": torch.ones(1)}, "optimizer": {"lr": 1}}, "not what its state_dict"),
        ({"saved": {}, "version": 1, "model": {}}, r"a checkpoint of a run of lightkit(.|\n)*lightkit resume"),
    ],
)
def test_files_that_are_none(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        saved(tmp_path, content)


def test_files_that_hold_code_are_opened_on_request_only(tmp_path: Path) -> None:
    torch.save({"model": network(), "epoch": 2}, tmp_path / "file.pt")
    with pytest.raises(UserError, match=r"resume\.trust=true"):
        read_training_file(tmp_path / "file.pt")
    assert read_training_file(tmp_path / "file.pt", trust=True).epoch == 2


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (torch.optim.SGD, ["optim=sgd", "optim.momentum=0", "optim.nesterov=false"]),
        (lambda parameters: torch.optim.Adam(parameters, amsgrad=True), ["optim=adam", "optim.amsgrad=true"]),
        (torch.optim.AdamW, ["optim=adamw"]),
        (torch.optim.NAdam, ["optim=nadam"]),
        (lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5), ["optim=rmsprop", "optim.momentum=0.5"]),
        (torch.optim.Adamax, []),
    ],
)
def test_the_overrides_that_choose_the_optimizer(made: Any, wanted: list[str]) -> None:
    content = made([nn.Parameter(torch.zeros(2))]).state_dict()
    assert TrainingFile(Path("file.pt"), {}, content, None, None, None).optimizer_overrides() == wanted
    assert TrainingFile(Path("file.pt"), {}, None, None, None, None).optimizer_overrides() == []
