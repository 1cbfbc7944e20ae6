"""What forward passes tell of a network: which parameters compute its outputs, and when it uses which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.common.modules import inside
from lightkit.finetune.head import find_head, guess_head
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.tracing import running_order
from lightkit.models import TransformerLM
from lightkit.models.zoo import torchvision_model
from lightkit.optim.layers import layer_depths

X = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(12).view(4, 3) % 7


class Net(nn.Module):
    """A network of some parts, and a function of it and its input."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Case(NamedTuple):
    """A network with a batch for it, and patterns of what its output layer is: names or the beginnings of some."""

    make: Callable[[], nn.Module]
    head: tuple[str, ...]
    x: Tensor = X


def lin(rows: int = 8, outputs: int = 3, **options: Any) -> nn.Linear:
    """A linear layer of the usual size."""
    return nn.Linear(rows, outputs, **options)


def body() -> nn.Sequential:
    """What comes before an output layer."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())


def par(*shape: int) -> nn.Parameter:
    """A parameter that no layer holds."""
    return nn.Parameter(torch.rand(shape))


def heads(count: int = 3) -> nn.ModuleList:
    """Equal layers."""
    return nn.ModuleList(lin() for _ in range(count))


def _mean(outputs: Any) -> Tensor:
    return torch.stack(list(outputs)).mean(0)


class Cell(nn.Module):
    """A part that holds all its matrices itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2, self.b2 = par(8, 6), par(8), par(3, 8), par(3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.w1, self.b1).relu(), self.w2, self.b2)


def _blocks(net: Any, x: Tensor) -> Tensor:
    """Add up what each block forecasts; each takes what it explains off the rest."""
    rest, total = x, torch.zeros(())
    for inner, back, ahead in zip(net.inner, net.back, net.ahead):
        hidden = inner(rest).relu()
        rest, total = rest - back(hidden), total + ahead(hidden)
    return total


def _residual(net: Any, x: Tensor) -> Tensor:
    x = net.embed(x)
    for block in net.blocks:
        x = x + block(x)
    return x


def _list(net: Any, x: Tensor) -> Tensor:
    for matrix in list(net.ws)[:-1]:
        x = (x @ matrix).relu()
    return x @ net.ws[-1]


def _residual_net() -> Net:
    blocks = [nn.Sequential(lin(8, 8), nn.ReLU(), lin(8, 8)) for _ in range(3)]
    return Net(_residual, embed=lin(6, 8), blocks=nn.ModuleList(blocks))


CASES: dict[str, Case] = {
    "averaged heads": Case(
        lambda: Net(lambda n, x: _mean(h(n.body(x)) for h in n.heads), heads=heads(), body=body()), ("heads",)
    ),
    "wide and deep": Case(
        lambda: Net(lambda n, x: n.wide(x) + n.deep(n.body(x)), wide=lin(6), body=body(), deep=lin()), ("wide", "deep")
    ),
    "dot of lookups": Case(
        lambda: Net(
            lambda n, x: (n.user(x[:, 0]) * n.item(x[:, 1])).sum(-1, keepdim=True) + n.bias,
            user=nn.Embedding(7, 4),
            item=nn.Embedding(7, 4),
            bias=par(1),
        ),
        ("user", "item", "bias"),
        IDS,
    ),
    "parameter list": Case(lambda: Net(_list, ws=nn.ParameterList([par(6, 8), par(8, 8), par(8, 3)])), ("ws.2",)),
    "parameter dict": Case(
        lambda: Net(
            lambda n, x: F.linear(F.linear(x, n.p["a"]).relu(), n.p["b"], n.p["c"]),
            p=nn.ParameterDict({"c": par(3), "b": par(3, 8), "a": par(8, 6)}),
        ),
        ("p.b", "p.c"),
    ),
    "bare with bias": Case(
        lambda: Net(lambda n, x: F.linear(n.body(x), n.w, n.b), b=par(3), w=par(3, 8), body=body()), ("w", "b")
    ),
    "bias added": Case(
        lambda: Net(lambda n, x: n.fc(n.body(x)) + n.shift, shift=par(3), fc=lin(bias=False), body=body()),
        ("fc", "shift"),
    ),
    "all in the network itself": Case(Cell, ("w2", "b2")),
    "stream of a residual network": Case(_residual_net, ("blocks.2.2",)),
    "dense stream": Case(
        lambda: Net(lambda n, x: torch.cat([h := n.a(x).relu(), n.b(h)], 1), a=lin(6, 8), b=lin()), ("b",)
    ),
    "sum of blocks": Case(
        lambda: Net(
            _blocks,
            ahead=heads(),
            inner=nn.ModuleList(lin(6, 8) for _ in range(3)),
            back=nn.ModuleList(lin(8, 6) for _ in range(3)),
        ),
        ("ahead",),
    ),
    "temperature": Case(
        lambda: Net(lambda n, x: n.fc(n.body(x)) * n.t.exp(), t=par(), fc=lin(), body=body()), ("fc", "t")
    ),
    "cosine with a scale": Case(
        lambda: Net(
            lambda n, x: n.s * (F.normalize(n.body(x)) @ F.normalize(n.w).T), s=par(1), w=par(3, 8), body=body()
        ),
        ("w", "s"),
    ),
    "norm at the output": Case(lambda: nn.Sequential(body(), lin(), nn.LayerNorm(3)), ("1", "2")),
    "batch norm and log-softmax": Case(
        lambda: nn.Sequential(body(), lin(bias=False), nn.BatchNorm1d(3), nn.LogSoftmax(1)), ("1", "2")
    ),
    "tied": Case(
        lambda: Net(
            lambda n, x: F.linear(n.last(n.embed(x)), n.embed.weight, n.bias),
            embed=nn.Embedding(7, 8),
            last=lin(8, 8),
            bias=par(7),
        ),
        ("embed", "bias"),
        IDS,
    ),
    "language model": Case(lambda: TransformerLM(7, 3, dim=8, depth=1, heads=2), ("embed.values.weight",), IDS),
    "einsum": Case(
        lambda: Net(lambda n, x: torch.einsum("bd,hdc->bc", n.body(x), n.w) / 2, w=par(2, 8, 3), body=body()), ("w",)
    ),
    "experts and gate": Case(
        lambda: Net(
            lambda n, x: (
                torch.stack([e(h := n.body(x)) for e in n.experts], 1) * n.gate(h).softmax(1)[:, :, None]
            ).sum(1),
            gate=lin(),
            experts=heads(),
            body=body(),
        ),
        ("gate", "experts"),
    ),
    "weight norm": Case(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(lin(6, 8)), nn.utils.parametrizations.weight_norm(lin())
        ),
        ("1",),
    ),
    "set of dots": Case(
        lambda: Net(lambda n, x: -torch.cdist(n.body(x), n.centres), centres=par(3, 8), body=body()), ("centres",)
    ),
    "recurrent": Case(
        lambda: Net(lambda n, x: n.fc(n.rnn(x[:, :, None])[0][:, -1]), fc=lin(), rnn=nn.LSTM(1, 8, 2)), ("fc",)
    ),
    "convolution": Case(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Conv1d(8, 3, 4), nn.Flatten()),
        ("3",),
    ),
    "GoogLeNet": Case(lambda: torchvision_model("googlenet", 3), ("fc",), torch.rand(2, 3, 64, 64)),
}


def ran(model: nn.Module, x: Tensor) -> str | None:
    """Path of the output layer that a forward pass tells."""
    head = find_head(model, forwards=[lambda twin: twin(x)])
    assert head is None or head.found == "computed", head
    return head and head.path


def test_nothing_is_left_of_the_forward_pass() -> None:
    model: Any = strange.Quiet(4, 3).train()
    model.body.requires_grad_(False)
    assert ran(model, torch.rand(2, 4)) == "last"
    assert model.training
    assert model.seen is None
    assert model.times == 0
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]


def test_a_network_of_convolutions_has_one_when_it_is_run() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Softmax(1))
    assert guess_head(model) is None
    assert ran(model, torch.rand(2, 1, 4, 4)) == "2"


@pytest.mark.parametrize("name", CASES)
def test_all_that_makes_the_outputs_is_the_output_layer_and_nothing_else(name: str) -> None:
    case = CASES[name]
    model = case.make()
    head = find_head(model, forwards=[lambda twin: twin(case.x)])
    assert head is not None
    assert head.found == "computed"
    names = NetworkNames(model, head=head.path, beside=head.beside)
    wanted = {own for own in names.aliases if any(inside(own, path) for path in case.head)}
    assert len(wanted) >= len(case.head)
    assert names.match_parameters("@head", argument="train") == wanted


# The order in which parameters are used

ROWS = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def test_parameters_in_and_outside_of_layers_are_seen_and_nothing_is_left() -> None:
    model = strange.Bare(4, 3).train()
    order, why = running_order(model, [lambda twin: twin(ROWS)])
    assert order is not None, why
    assert set(order.uses) == {"body.weight", "body.bias", "out", "shift"}
    assert order.uses["body.weight"][0] < order.uses["out"][0] < order.uses["shift"][0]
    assert order.products == {"body.weight", "out"}
    assert model.training


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("all in the network itself", {"w1": 0, "b1": 0, "w2": 1, "b2": 1}),
        ("parameter dict", {"p.a": 0, "p.b": 1, "p.c": 1}),
        ("bare with bias", {"body.0.weight": 0, "body.3.weight": 1, "w": 2, "b": 2}),
        ("cosine with a scale", {"body.0.weight": 0, "body.3.weight": 1, "w": 2, "s": 2}),
        ("einsum", {"body.0.weight": 0, "body.3.weight": 1, "w": 2}),
        ("temperature", {"body.0.weight": 0, "body.3.weight": 1, "fc.weight": 2, "t": 2}),
    ],
)
def test_matrices_outside_of_layers_have_a_depth_of_their_own(name: str, depths: dict[str, int]) -> None:
    model = CASES[name].make()
    order, why = running_order(model, [lambda twin: twin(CASES[name].x)])
    assert order is not None, why
    found = layer_depths(model, order)
    assert {name: found[name] for name in depths} == depths


def test_a_body_without_gradients_is_seen() -> None:
    order, _ = running_order(strange.Quiet(4, 3), [lambda twin: twin(ROWS)])
    assert order is not None
    assert order.uses["body.weight"][0] < order.uses["last.weight"][0]


def test_what_changes_its_place_with_the_samples_is_told() -> None:
    def sample(seed: int) -> Tensor:
        return torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))

    model = strange.Unordered(4, 3)
    turns = {bool((sample(seed).double().sum() * 1e4).floor() % 2): seed for seed in range(20)}
    order, _ = running_order(model, [lambda twin, seed=seed: twin(sample(seed)) for seed in turns.values()])
    assert order is not None
    assert order.unsteady == {f"{layer}.{name}" for layer in ("one", "two") for name in ("weight", "bias")}


def test_without_a_forward_pass_there_is_a_reason() -> None:
    assert running_order(nn.Linear(2, 2), []) == (None, "no sample of the inputs is known")
    order, why = running_order(strange.Stubborn(4, 3), [lambda twin: twin(ROWS)])
    assert order is None
    assert "a forward pass fails: RuntimeError: only for training" in why
