from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.checkpoint import content, optimizer_state
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError, UserErrors

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "asgd": lambda groups: torch.optim.ASGD(groups, lr=0.01, t0=1),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
}


class Part:
    """Something stateful that may refuse what it is given."""

    def __init__(self, refuse: bool = False, **values):
        self.values, self.refuse = values, refuse

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        if self.refuse and state.keys() != self.values.keys():
            raise KeyError("nope")
        self.values = dict(state)


class Average(Part):
    def __init__(self, model):
        super().__init__(steps=3, weights={name: tensor + 1 for name, tensor in model.state_dict().items()})


def network(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def groups(model: nn.Module, *, backwards: bool = False) -> list[dict]:
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    made = [{"params": weights, "name": "weights", "weight_decay": 0.1}, {"params": rest, "name": "rest", "lr": 0.003}]
    return [g | {"params": g["params"][::-1]} for g in reversed(made)] if backwards else made


def train(model, optimizer, steps: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        model(torch.randn(16, 4, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def run(kind: str = "adamw", *, width: int = 8, seed: int = 0, backwards: bool = False, steps: int = 0, **parts):
    torch.manual_seed(seed)
    model = network(width)
    optimizer = OPTIMIZERS[kind](groups(model, backwards=backwards))
    train(model, optimizer, steps)
    made = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": Part(step=steps),
        "precision": Part(),
        "callbacks": {"early": Part(waited=1), "silent": Part()},
        "metrics": {"train": Part(total=torch.ones(2) * steps)},
        "state": Part(epoch=2, step=steps),
        "ema": None,
    }
    return made | parts


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_everything_goes_through_a_file_and_training_goes_on_the_same(tmp_path, kind):
    first = run(kind, steps=3)
    made = CheckpointStore(tmp_path)
    path = made.save(content.gather(**first, config_text="a: 1\n"), step=3)
    second = run(kind, seed=1)
    content.apply(made.load(path), **second)
    train(first["model"], first["optimizer"], seed=5)
    train(second["model"], second["optimizer"], seed=5)
    assert same(content.gather(**first), content.gather(**second))
    assert second["callbacks"]["early"].values == {"waited": 1}
    assert made.load(path)["config"] == "a: 1\n"


def in_format(kind: str, dtype: torch.dtype, steps: int):
    made = run()
    model = made["model"].to(dtype)
    model.register_forward_pre_hook(lambda _module, inputs: tuple(x.to(dtype) for x in inputs))
    optimizer = OPTIMIZERS[kind](groups(model))
    train(model, optimizer, steps)
    return made | {"optimizer": optimizer}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("nadam", torch.bfloat16), ("nadam", torch.float64), ("adagrad", torch.bfloat16), ("asgd", torch.bfloat16)],
)
def test_state_keeps_its_number_format_beside_weights_of_another_one(kind, dtype):
    """PyTorch turns scalars such as the `mu_product` of NAdam into the format of the weights when it loads them."""
    first, second = in_format(kind, dtype, 3), in_format(kind, dtype, 0)
    content.apply(copy.deepcopy(content.gather(**first)), **second)
    for made in (first, second):
        train(made["model"], made["optimizer"], seed=5)
    one, other = (optimizer_state.by_name(made["optimizer"], made["model"]) for made in (first, second))
    for name, values in one["state"].items():
        formats = {key: value.dtype for key, value in values.items() if isinstance(value, torch.Tensor)}
        assert {key: other["state"][name][key].dtype for key in formats} == formats
    assert same(one, other)
    assert same(first["model"].state_dict(), second["model"].state_dict())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_optimizer_state_follows_the_name_not_the_position(kind):
    first, second = run(kind, steps=3), run(kind, seed=1, backwards=True)
    content.apply(content.gather(**first), **second)
    weights = dict(second["model"].named_parameters())
    assert set(content.gather(**first)["optimizer"]["state"]) == {*weights}
    for name, parameter in first["model"].named_parameters():
        assert same(first["optimizer"].state[parameter], second["optimizer"].state[weights[name]])
    assert [group["name"] for group in second["optimizer"].param_groups] == ["rest", "weights"]
    rest, weighted = second["optimizer"].param_groups
    assert (rest["lr"], weighted["lr"]) == (0.003, first["optimizer"].param_groups[0]["lr"])
    assert weighted["weight_decay"] == 0.1


def test_optimizers_over_named_parameters_keep_their_names():
    model, other = network(), network()
    first, second = (torch.optim.AdamW([{"params": list(m.named_parameters()), "name": "all"}]) for m in (model, other))
    train(model, first)
    saved = optimizer_state.by_name(first, model)
    assert "param_names" not in saved["groups"][0]
    second.load_state_dict(optimizer_state.from_names(saved, second, other))
    assert second.param_groups[0]["param_names"] == [name for name, _ in other.named_parameters()]
    train(other, second)


def test_a_frozen_parameter_without_state_and_tied_weights_pass():
    def tied():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        model[0].bias.requires_grad_(False)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    (model, optimizer), (other, target) = tied(), tied()
    train(model, optimizer)
    saved = optimizer_state.by_name(optimizer, model)
    assert set(saved["state"]) == {"0.weight", "1.bias"}
    target.load_state_dict(optimizer_state.from_names(saved, target, other))
    assert same(target.state[other[0].weight], optimizer.state[model[0].weight])


def test_a_parameter_the_model_does_not_name_is_refused():
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="a parameter that the model has no name for"):
        optimizer_state.by_name(stranger, network())


def test_what_was_applied_does_not_change_while_training_goes_on():
    first, second = run(steps=3), run(seed=1)
    saved = copy.deepcopy(content.gather(**first))
    before = copy.deepcopy(saved)
    content.apply(saved, **second)
    train(second["model"], second["optimizer"])
    assert same(saved, before)


def _other_names(parts):
    model = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 2)})
    return parts | {
        "model": model,
        "optimizer": OPTIMIZERS["adamw"]([{"params": list(model.parameters()), "name": "all"}]),
    }


MISMATCHES = {
    "shape": (
        lambda parts: run(width=9),
        r"model: 0\.weight has another shape in the checkpoint\n.*\(9, 4\)\n.*\(8, 4\)",
    ),
    "missing": (_other_names, r"the checkpoint has no weights for body\.weight, body\.bias, head\.weight, head\.bias"),
    "unexpected": (_other_names, r"the checkpoint has weights for 0\.weight, .*which this run does not have"),
    "optimizer names": (_other_names, r"optim: the checkpoint has no optimizer state for body\.weight"),
    "optimizer": (lambda parts: run("sgd"), r"optim\._target_: the checkpoint was written with another optimizer"),
    "callback": (
        lambda parts: parts | {"callbacks": {"early": Part(waited=0), "new": Part(x=1)}},
        r"callbacks: the checkpoint has no state for new",
    ),
    "lost callback": (lambda parts: parts | {"callbacks": {}}, r"callbacks: the checkpoint has state for early, which"),
    "metrics": (
        lambda parts: parts | {"metrics": {"val": Part(total=1)}},
        r"metrics: the checkpoint has state for train",
    ),
    "average": (
        lambda parts: parts | {"ema": Part(steps=1)},
        r"trainer\.ema\.decay: the checkpoint was written without",
    ),
    "refusing": (
        lambda parts: parts | {"metrics": {"train": Part(refuse=True, sum=5)}},
        r"metrics\.train: the saved state does not fit this run \(KeyError: 'nope'\)",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_is_named_and_touches_nothing(case):
    saved = content.gather(**run(steps=3))
    change, message = MISMATCHES[case]
    target = change(run(seed=1))
    before = copy.deepcopy(content.gather(**target))
    with pytest.raises(UserError, match=message):
        content.apply(saved, **target)
    assert same(before, content.gather(**target))


def test_the_schedule_has_the_last_word_on_the_rates():
    class Schedule(Part):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            for group in fresh["optimizer"].param_groups:
                group["lr"] = 0.5

    saved, fresh = content.gather(**run(steps=1)), run(seed=1, scheduler=Schedule(step=0))
    content.apply(saved, **fresh)
    assert [group["lr"] for group in fresh["optimizer"].param_groups] == [0.5, 0.5]


def test_a_parts_own_explanation_is_passed_on():
    class Explaining(Part):
        def load_state_dict(self, state):
            raise UserError("other metrics", key="metrics.train")

    saved = content.gather(**run(steps=1))
    with pytest.raises(UserError, match=r"^metrics\.train: other metrics$"):
        content.apply(saved, **run(metrics={"train": Explaining(total=0)}))


def test_parts_that_had_nothing_to_remember_may_come_and_go():
    saved = content.gather(**run(callbacks={"early": Part(), "gone": Part()}, metrics={"train": Part()}))
    fresh = run(seed=1, callbacks={"early": Part(waited=0), "new": Part()}, metrics={"train": Part(total=0)})
    content.apply(saved, **fresh)
    assert fresh["callbacks"]["early"].values == {"waited": 0}


def test_all_mismatches_come_in_one_report():
    with pytest.raises(UserErrors) as caught:
        content.apply(content.gather(**run(steps=1)), **(run("sgd", width=9) | {"callbacks": {}}))
    assert {error.key for error in caught.value.errors} == {"model", "optim._target_", "callbacks"}


def test_other_groups_are_named():
    first, second = run(), run()
    second["optimizer"].param_groups[0]["name"] = "kernels"
    with pytest.raises(
        UserError, match=r"optim\.rules: the parameter groups are not those(.|\n)*weights, rest(.|\n)*kernels, rest"
    ):
        content.apply(content.gather(**first), **second)


def test_weights_alone_are_the_averaged_ones_where_there_are_any(tmp_path):
    parts = run(steps=2)
    path = CheckpointStore(tmp_path).save(content.gather(**parts | {"ema": Average(parts["model"])}), step=2)
    own = parts["model"].state_dict()
    assert same(dict(content.load_model_state(path)), {name: tensor + 1 for name, tensor in own.items()})
    assert same(dict(content.load_model_state(path, averaged=False)), dict(own))
    path = CheckpointStore(tmp_path).save(content.gather(**parts), step=3)
    assert same(dict(content.load_model_state(path)), dict(own))


class Versioned(nn.Module):
    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version") != 2:
            raise ValueError("an older layout")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_modules_see_the_version_they_were_saved_with(tmp_path):
    model = nn.Sequential(Versioned())
    parts = run() | {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    path = CheckpointStore(tmp_path).save(content.gather(**parts), step=1)
    content.apply(CheckpointStore(tmp_path).load(path), **parts)
    model.load_state_dict(content.load_model_state(path))


def test_older_layouts_are_read(monkeypatch):
    monkeypatch.setattr(content, "VERSION", 3)
    monkeypatch.setitem(content.UPGRADES, 1, lambda old: {"version": 2, "weights": old["model"]})
    monkeypatch.setitem(content.UPGRADES, 2, lambda old: {"version": 3, "model": old["weights"]})
    assert content.upgrade({"version": 1, "model": 7}) == {"version": 3, "model": 7}


def test_a_later_layout_and_something_else_are_refused():
    with pytest.raises(UserError, match="the checkpoint has format version 99; this lightkit reads up to 1") as caught:
        content.upgrade({"version": 99})
    assert caught.value.exit_code == 5

    with pytest.raises(UserError, match="not the content of a lightkit checkpoint"):
        content.upgrade({"state_dict": {}})
