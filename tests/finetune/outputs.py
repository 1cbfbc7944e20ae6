"""Networks by what makes their outputs: each with samples, and the parameters of its output layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.models import TabM, TransformerLM
from lightkit.models.zoo import torchvision_model

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
    "averaged heads of other parts": Case(
        lambda: Net(lambda n, x: (n.zz(n.a(x)) + n.out(n.b(x))) / 2, zz=lin(), a=body(), b=body(), out=lin()),
        ("zz", "out"),
    ),
    "wide and deep": Case(
        lambda: Net(lambda n, x: n.wide(x) + n.deep(n.body(x)), wide=lin(6), body=body(), deep=lin()), ("wide", "deep")
    ),
    "wide lookup and deep": Case(
        lambda: Net(
            lambda n, x: n.wide(x) + n.deep(n.table(x).flatten(1)),
            wide=nn.EmbeddingBag(7, 3),
            table=nn.Embedding(7, 4),
            deep=lin(12),
        ),
        ("wide", "deep"),
        IDS,
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
    "list of heads": Case(
        lambda: Net(
            lambda n, x: _mean(n.body(x) @ matrix for matrix in n.ws),
            ws=nn.ParameterList([par(8, 3), par(8, 3)]),
            body=body(),
        ),
        ("ws",),
    ),
    "bare with bias": Case(
        lambda: Net(lambda n, x: F.linear(n.body(x), n.w, n.b), b=par(3), w=par(3, 8), body=body()), ("w", "b")
    ),
    "bias added": Case(
        lambda: Net(lambda n, x: n.fc(n.body(x)) + n.shift, shift=par(3), fc=lin(bias=False), body=body()),
        ("fc", "shift"),
    ),
    "all in one part": Case(lambda: nn.Sequential(Cell()), ("0.w2", "0.b2")),
    "all in the network itself": Case(Cell, ("w2", "b2")),
    "two ways from one part": Case(
        lambda: Net(lambda n, x: (h := n.body(x)) @ n.eye + n.fc(h), fc=lin(8, 8), eye=par(8, 8), body=body()),
        ("fc", "eye"),
    ),
    "stream of a residual network": Case(_residual_net, ("blocks.2.2",)),
    "dense stream": Case(
        lambda: Net(lambda n, x: torch.cat([h := n.a(x).relu(), n.b(h)], 1), a=lin(6, 8), b=lin()), ("b",)
    ),
    "skip without weights": Case(lambda: Net(lambda n, x: x[:, :3] + n.fc(n.body(x)), fc=lin(), body=body()), ("fc",)),
    "sum of blocks": Case(
        lambda: Net(
            _blocks,
            ahead=heads(),
            inner=nn.ModuleList(lin(6, 8) for _ in range(3)),
            back=nn.ModuleList(lin(8, 6) for _ in range(3)),
        ),
        ("ahead",),
    ),
    "put side by side": Case(
        lambda: Net(lambda n, x: torch.cat([n.a(h := n.body(x)), n.b(h)], 1), a=lin(8, 2), b=lin(8, 1), body=body()),
        ("a", "b"),
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
    "norm before the head": Case(lambda: nn.Sequential(body(), nn.LayerNorm(8), lin()), ("2",)),
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
    "outputs by name": Case(
        lambda: Net(
            lambda n, x: {"logits": n.b(h := n.body(x)), "aside": n.a(h)}["logits"], a=lin(), b=lin(), body=body()
        ),
        ("b",),
    ),
    "einsum": Case(
        lambda: Net(lambda n, x: torch.einsum("bd,hdc->bc", n.body(x), n.w) / 2, w=par(2, 8, 3), body=body()), ("w",)
    ),
    "bilinear": Case(lambda: Net(lambda n, x: n.two(n.body(x), x), two=nn.Bilinear(8, 6, 3), body=body()), ("two",)),
    "quantiles in order": Case(
        lambda: Net(
            lambda n, x: torch.cat([low := n.low(h := n.body(x)), low + F.softplus(n.steps(h)).cumsum(1)], 1),
            steps=lin(8, 2),
            low=lin(8, 1),
            body=body(),
        ),
        ("low", "steps"),
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
    "auxiliary head in training": Case(
        lambda: Net(
            lambda n, x: (n.fc(h), n.aux(h))[0] if (h := n.body(x)).shape and n.training else n.fc(n.body(x)),
            aux=lin(),
            fc=lin(),
            body=body(),
        ),
        ("fc",),
    ),
    "weight norm": Case(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(lin(6, 8)), nn.utils.parametrizations.weight_norm(lin())
        ),
        ("1",),
    ),
    "gated layer without weights after": Case(lambda: nn.Sequential(body(), nn.Linear(8, 6), nn.GLU()), ("1",)),
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
    "tabm": Case(lambda: TabM(6, 3, hidden=[8], k=2), ("head",)),
    "GoogLeNet": Case(lambda: torchvision_model("googlenet", 3), ("fc",), torch.rand(2, 3, 64, 64)),
}
