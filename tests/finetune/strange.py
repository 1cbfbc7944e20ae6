"""Networks whose output layer is not where the order of definition would have it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.trainer.tasks import Criterion, StepOutput, Task


class Unusual(nn.Module):
    """An output layer with a name of its own, defined first."""

    def __init__(self, in_features: int, classes: int = 3) -> None:
        super().__init__()
        self.zz = nn.Linear(8, classes)
        self.body = nn.Sequential(nn.Linear(in_features, 8), nn.BatchNorm1d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.zz(self.body(x))


class Projected(nn.Module):
    """A part with a usual name that projects, in front of the output layer."""

    def __init__(self, in_features: int, classes: int = 3, between: int = 6) -> None:
        super().__init__()
        self.answer = nn.Linear(between, classes)
        self.body, self.head = nn.Linear(in_features, 8), nn.Linear(8, between)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.head(self.body(x)).relu())


class Bare(nn.Module):
    """A matrix and a bias that no layer holds, after a layer."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.out, self.shift = nn.Parameter(torch.randn(8, num_classes)), nn.Parameter(torch.zeros(num_classes))
        self.body = nn.Linear(in_features, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1)).relu() @ self.out + self.shift


class Bound(Bare):
    """The same for a number of classes of its own."""

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features, 5)


class Both(Task):
    """Takes the second of two outputs in its place, for all splits."""

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        x, y = batch
        output = model(x)["second"]
        return StepOutput(criterion(output, y), output, y)


class Named(nn.Module):
    """Outputs by name, of which a task takes the second."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.body, self.two, self.one = (
            nn.Linear(in_features, 8),
            nn.Linear(8, num_classes),
            nn.Linear(8, num_classes),
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x).relu()
        return {"first": self.one(x), "second": self.two(x)}


class Cosine(nn.Module):
    """A layer of a class of its own: the angle to a vector of each class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(classes, width)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


class Angles(nn.Module):
    """A network that ends in one."""

    def __init__(self, in_features: int, classes: int = 3) -> None:
        super().__init__()
        self.angles = Cosine(8, classes)
        self.body = nn.Sequential(nn.Linear(in_features, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.angles(self.body(x))


class SizedAngles(Angles):
    """The same for the classes of the data."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)


class Tempered(nn.Linear):
    """A linear layer of a class of its own that needs to know nothing of its outputs."""

    def __init__(self, width: int, classes: int, temperature: float) -> None:
        super().__init__(width, classes, bias=False)
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.temperature


class Cool(nn.Module):
    """A network that ends in one."""

    def __init__(self, in_features: int, classes: int = 3) -> None:
        super().__init__()
        self.cool, self.body = Tempered(8, classes, 0.5), nn.Linear(in_features, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.cool(self.body(x).relu())


class Quiet(nn.Module):
    """A body that gives no gradient, and keeps what it saw."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.last, self.body = nn.Linear(8, num_classes), nn.Linear(in_features, 8)
        self.register_buffer("times", torch.zeros(()))
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.body(x) + torch.rand(())
        self.times += 1
        self.seen = x
        return self.last(x)


class Stubborn(Unusual):
    """A network that cannot be run on inputs that are made up."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            raise RuntimeError("only for training")
        return super().forward(x)


class Averaged(nn.Module):
    """The mean of three output layers."""

    def __init__(self, in_features: int, classes: int = 3) -> None:
        super().__init__()
        self.ends = nn.ModuleList(nn.Linear(8, classes) for _ in range(3))
        self.body = nn.Linear(in_features, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        return torch.stack([end(x) for end in self.ends]).mean(0)


class Beside(Averaged):
    """Output layers of which each makes one output."""

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        return torch.cat([end(x) for end in self.ends], 1)


class WideAndDeep(nn.Module):
    """A straight way from the inputs to the outputs beside a deep one."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(in_features, num_classes), nn.Linear(8, num_classes)
        self.body = nn.Linear(in_features, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.wide(x) + self.last(self.body(x).relu())


class Backwards(nn.Module):
    """Layers defined from the output to the input."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(8, num_classes)
        self.parts = nn.ModuleDict({"b": nn.Linear(8, 8), "norm": nn.LayerNorm(8), "a": nn.Linear(in_features, 8)})

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.parts["b"](self.parts["norm"](self.parts["a"](x))).relu())


class Unordered(nn.Module):
    """One layer that does not run, one that runs twice, and two whose turn depends on the samples."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.out, self.again, self.idle = nn.Linear(8, num_classes), nn.Linear(8, 8), nn.Linear(8, 8)
        self.one, self.two, self.first = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(in_features, 8)

    def forward(self, x: Tensor) -> Tensor:
        turn = bool((x.detach().double().sum() * 1e4).floor() % 2)
        x = self.again(self.first(x))
        for layer in (self.one, self.two) if turn else (self.two, self.one):
            x = layer(x)
        return self.out(self.again(x))
