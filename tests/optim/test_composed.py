"""Optimizers that are made of others: who steps over what, and that the numbers are those of the papers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.stepping import needs_closure
from lightkit.optim import Lbfgs, Muon, Sam, SparseAdam, parameter_groups


class Tokens(nn.Module):
    """A table, a hidden layer with a norm, a convolution and an output layer."""

    def __init__(self, *, sparse: bool = False, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 4, sparse=sparse)
        self.hidden, self.norm, self.conv = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(4, 4, 1)
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.norm(self.hidden(self.table(tokens)))
        return self.head(self.conv(found.transpose(1, 2)).transpose(1, 2))


def loss_of(model: nn.Module) -> torch.Tensor:
    tokens = torch.arange(12).reshape(3, 4) % 6
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> nn.Module:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model


def grouped(model: nn.Module, **options) -> list[dict]:
    return parameter_groups(model, lr=0.01, **options)


def names(optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    return {group["name"]: group["param_names"] for group in optimizer.param_groups}


def test_muon_takes_the_matrices_of_hidden_layers_and_adamw_all_else():
    model = Tokens()
    optimizer = Muon(grouped(model, no_decay=True), model)
    assert names(optimizer) == {
        "decay_muon": ["hidden.weight"],
        "decay": ["table.weight", "conv.weight", "head.weight"],
        "no_decay": ["hidden.bias", "norm.weight", "norm.bias", "conv.bias"],
    }
    trained(model, optimizer)
    kept = {name: sorted(optimizer.state[parameter]) for name, parameter in model.named_parameters()}
    assert kept["hidden.weight"] == ["momentum_buffer"]
    assert kept["table.weight"] == kept["norm.bias"] == ["exp_avg", "exp_avg_sq", "step"]
    tied = Tokens(tied=True)
    assert names(Muon(grouped(tied), tied))["all_muon"] == ["hidden.weight"], "the table gives the outputs, too"


def test_the_parts_step_as_they_do_alone():
    model, alone = Tokens(), Tokens()
    trained(model, Muon(grouped(model), model, lr=0.01, weight_decay=0.1))
    hidden = [alone.hidden.weight]
    others = [each for each in alone.parameters() if each is not hidden[0]]
    parts = [
        torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.01, weight_decay=0.1),
    ]
    for _ in range(4):
        alone.zero_grad()
        loss_of(alone).backward()
        [part.step() for part in parts]
    assert all(torch.equal(mine, own) for mine, own in zip(model.parameters(), alone.parameters(), strict=True))


def test_rows_of_a_sparse_table_that_no_batch_looked_up_stay():
    model = Tokens(sparse=True)
    before = model.table.weight.detach().clone()
    optimizer = SparseAdam(grouped(model, weight_decay=0.5), model)
    trained(model, optimizer)
    assert names(optimizer)["all_sparse"] == ["table.weight"]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]
    moved = (model.table.weight != before).any(1)
    assert moved.tolist() == [True] * 6 + [False]
    with pytest.raises(UserError, match=r"no table of embeddings[\s\S]*sparse=True"):
        SparseAdam(grouped(Tokens()), Tokens())


MAKERS = {
    "muon": lambda model: Muon(grouped(model), model),
    "sparse": lambda model: SparseAdam(grouped(model), model),
    "lbfgs": lambda model: Lbfgs(grouped(model), max_iter=3),
    "sam": lambda model: Sam(grouped(model), torch.optim.Adam),
    "asam": lambda model: Sam(grouped(model), torch.optim.SGD, rho=0.5, adaptive=True),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_loaded_or_copied_optimizer_goes_on_with_the_same_bits(kind):
    whole, broken = (Tokens(sparse=kind == "sparse") for _ in range(2))
    trained(whole, MAKERS[kind](whole), 6)
    first = MAKERS[kind](broken)
    trained(broken, first, 3)
    model, copied = copy.deepcopy((broken, first)) if kind != "lbfgs" else (None, None)  # PyTorch's cannot be copied
    second = MAKERS[kind](broken)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for resumed in (trained(broken, second, 3), *([trained(model, copied, 3)] if copied else [])):
        pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
        assert all(torch.equal(mine, other) for mine, other in pairs)


def test_sam_steps_from_the_weights_by_the_gradients_at_the_edge_of_the_ball():
    model, rho = Tokens(), 0.1
    before = [each.detach().clone() for each in model.parameters()]
    slopes = torch.autograd.grad(loss_of(model), list(model.parameters()))
    norm = torch.stack([slope.norm() for slope in slopes]).norm()
    climbed = Tokens()
    with torch.no_grad():
        for each, slope in zip(climbed.parameters(), slopes):
            each += rho * slope / norm
    beyond = torch.autograd.grad(loss_of(climbed), list(climbed.parameters()))
    trained(model, Sam(grouped(model), torch.optim.SGD, rho=rho), 1)
    for after, start, slope in zip(model.parameters(), before, beyond, strict=True):
        torch.testing.assert_close(after.detach(), start - 0.01 * slope)
    still, plain = Tokens(), Tokens()
    trained(still, Sam(grouped(still), torch.optim.SGD, rho=0.0), 3)
    trained(plain, torch.optim.SGD(grouped(plain)), 3)
    assert all(torch.equal(mine, other) for mine, other in zip(still.parameters(), plain.parameters(), strict=True))


def test_lbfgs_steps_over_all_groups_as_over_one():
    model, alone = Tokens(), Tokens()
    optimizer = Lbfgs(grouped(model, no_decay=True), lr=0.01)
    assert len(optimizer.param_groups) == 2
    trained(model, optimizer, 2)
    flat = [each for group in optimizer.param_groups for each in group["params"]]
    order = {id(each): name for name, each in model.named_parameters()}
    own = dict(alone.named_parameters())
    rest = {"lr": 0.01, "line_search_fn": "strong_wolfe", "history_size": 10}
    trained(alone, torch.optim.LBFGS([own[order[id(each)]] for each in flat], **rest), 2)
    assert all(torch.equal(mine, other) for mine, other in zip(model.parameters(), alone.parameters(), strict=True))
    assert loss_of(model) < loss_of(Tokens())


@pytest.mark.parametrize(
    ("rule", "words"),
    [({"lr_scale": 2.0}, "rules: L-BFGS steps over all"), ({"weight_decay": 0.1}, "rate, weight decay or warm-up")],
)
def test_lbfgs_has_one_rate(rule, words):
    with pytest.raises(UserError, match=words):
        Lbfgs(grouped(Tokens(), rules=[{"match": "head", **rule}]))


def test_a_base_of_sam_is_an_optimizer_that_needs_no_closure():
    for base in ("sgd", lambda groups, lr: groups, lambda groups, lr: torch.optim.LBFGS([nn.Parameter(torch.ones(1))])):
        with pytest.raises(UserError, match="base: not an optimizer"):
            Sam(grouped(Tokens()), base)
    with pytest.raises(UserError, match="rho: out of range"):
        Sam(grouped(Tokens()), torch.optim.SGD, rho=-0.1)


def test_who_needs_a_closure():
    model = Tokens()
    assert [needs_closure(made(model)) for made in (MAKERS["sam"], MAKERS["lbfgs"], MAKERS["muon"])] == [1, 1, 0]
    assert needs_closure(torch.optim.LBFGS(model.parameters()))
    assert not needs_closure(torch.optim.Adam(model.parameters()))
